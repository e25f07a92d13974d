"""Where a tensor lives, and what that and its dtype allow: moves, float64, a lowest value."""

from __future__ import annotations

import torch
from torch import Tensor


def compiling() -> bool:
    """Return True while `torch.compile` traces."""
    return torch.compiler.is_compiling()


def kind(place: Tensor | torch.device) -> str:
    """Return the kind of device that a tensor is on, or that a device is: "cpu", "cuda", ..."""
    return (place.device if isinstance(place, Tensor) else place).type


def state_dtype(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on devices without it (MPS), where whole numbers are exact up to 2**24."""
    return torch.float32 if device.type == "mps" else torch.float64


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return ``tensor`` on ``device``, without waiting for the device it goes to.

    A copy to the host is waited for: an asynchronous one could be read before it has arrived.
    """
    return tensor if tensor.device == device else tensor.to(device, non_blocking=device.type != "cpu")


def lowest(dtype: torch.dtype) -> float | int:
    """Return a value that no score of ``dtype`` is below."""
    return -torch.inf if dtype.is_floating_point else torch.iinfo(dtype).min
