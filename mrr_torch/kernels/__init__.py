"""Where the values of a tensor can be read, and the hot loops for it, the same names in each file.

- `cpu`: may read values, and works in tiles that stay in cache.
- `device`: plain torch that never reads a value; for accelerators, and what `torch.compile` traces.
- `fused`: as `device`, with Triton kernels; imported only when chosen.
"""

from __future__ import annotations

import os
from types import ModuleType

import torch
from torch import Tensor

from mrr_torch.kernels import cpu, device, triton

__all__ = ["backend", "readable"]

# Device types whose memory the host reads as its own.
HOST_TYPES = frozenset({"cpu"})


def readable(tensor: Tensor) -> bool:
    """Return True if the values of ``tensor`` can be read on the host at no cost.

    Reading a value of an accelerator synchronises with it; reading one while `torch.compile` traces breaks the graph.
    """
    return tensor.device.type in HOST_TYPES and not torch.compiler.is_compiling()


def backend(tensor: Tensor) -> ModuleType:
    """Return the file that serves ``tensor``.

    Triton kernels are chosen where they have been shown right and faster (`triton.PROVEN`), or where the environment
    variable MRR_TORCH_TRITON is 1.
    """
    if readable(tensor):
        return cpu
    if torch.compiler.is_compiling():
        return device
    if (triton.PROVEN or os.environ.get("MRR_TORCH_TRITON") == "1") and triton.available(tensor) is None:
        from mrr_torch.kernels import fused

        return fused
    return device
