"""Argument checks. Every message has one form: name of the argument, what was expected, what came."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

SCORES = {
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
}


def fault(name: str, expected: str, got: object) -> str:
    """Return the one form that error messages take."""
    return f"{name}: expected {expected}, got {got}"


def shape(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape as a plain tuple, which prints as users write it."""
    return tuple(tensor.shape)


def on_host(tensor: Tensor) -> bool:
    """Say whether the values of ``tensor`` may be looked at: not where that waits for a device or breaks a graph."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def some(where: Tensor) -> bool:
    """Say whether ``where`` holds anywhere: by looking where that costs nothing, else that it may, so do the work."""
    return bool(where.any()) if on_host(where) else True


def none_beyond(numbers: Tensor, most: int) -> bool:
    """Say whether all ``numbers`` are at most ``most``: by looking where that costs nothing, else that they may not."""
    return on_host(numbers) and (numbers.numel() == 0 or int(numbers.max()) <= most)


def rows_at(where: Tensor) -> Tensor:
    """Return the indexes of the queries at ``where``; of all queries where looking would wait for the device."""
    return where.nonzero()[:, 0] if on_host(where) else torch.arange(where.shape[0], device=where.device)


def is_one_number(tensor: Tensor) -> bool:
    """Say whether all elements of a ``(n,)`` tensor are the same one, as seen from the stride, without looking."""
    return tensor.stride() == (0,) and tensor.shape[0] > 0


def all_are(tensor: Tensor, number: int) -> bool:
    """Say whether ``tensor`` is known to hold one number only, from its stride and one look at its one element."""
    return is_one_number(tensor) and on_host(tensor) and int(tensor[0]) == number


def flat(tensor: Tensor) -> Tensor:
    """Flatten to one dimension, at no cost where there is just one."""
    return tensor if tensor.ndim == 1 else tensor.reshape(-1)


def scores_tensor(name: str, value: Any, *, may_be_empty: bool = False) -> Tensor:
    """Check that ``value`` is a tensor of real numbers, with at least one column unless said otherwise; detach it."""
    if not isinstance(value, Tensor):
        raise TypeError(fault(name, "a tensor of scores", type(value).__name__))
    if value.dtype not in SCORES:
        raise TypeError(fault(name, "real scores, of a type that torch compares", value.dtype))
    if value.ndim == 0 or (value.shape[-1] == 0 and not may_be_empty):
        raise ValueError(fault(name, "at least one score per query (shape (..., N), N >= 1)", f"shape {shape(value)}"))
    # The comparisons write into buffers (`out=`), which tensors with a gradient refuse.
    return value.detach() if value.requires_grad else value


def integer_tensor(name: str, value: Any, like: Tensor, *, expected: str = "a tensor of integer ids") -> Tensor:
    """Check that ``value`` is an integer tensor (bool refused) on the device of ``like``; return it as int64."""
    if not isinstance(value, Tensor):
        raise TypeError(fault(name, expected, type(value).__name__))
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise TypeError(fault(name, expected, value.dtype))
    same_device(name, value, like)
    return value.long()  # the same tensor if it is int64 already


def bool_tensor(name: str, value: Any, like: Tensor) -> Tensor:
    """Check that ``value`` is a bool tensor of the shape and on the device of ``like``."""
    if not isinstance(value, Tensor):
        raise TypeError(fault(name, "a bool tensor", type(value).__name__))
    if value.dtype != torch.bool:
        raise TypeError(fault(name, "a bool tensor", value.dtype))
    same_shape(name, value, shape(like))
    same_device(name, value, like)
    return value


def same_shape(name: str, value: Tensor, expected: tuple[int, ...]) -> None:
    """Check the exact shape of ``value``."""
    if shape(value) != expected:
        raise ValueError(fault(name, f"shape {expected}", f"shape {shape(value)}"))


def same_device(name: str, value: Tensor, like: Tensor) -> None:
    """Check that ``value`` lies where ``like`` lies."""
    if value.device != like.device:
        raise ValueError(fault(name, f"a tensor on {like.device}, where the scores are", value.device))


def positive_int(name: str, value: Any) -> int:
    """Check for an integer of at least 1; bool, floats and NaN are refused."""
    number = integer(name, value, expected="a positive int")
    if number < 1:
        raise ValueError(fault(name, "a positive int", number))
    return number


def integer(name: str, value: Any, *, expected: str = "an int") -> int:
    """Check for an integer of any kind (numpy's too), but not a bool."""
    if isinstance(value, bool) or getattr(value, "dtype", None) == torch.bool:
        raise TypeError(fault(name, expected, repr(value)))
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(fault(name, expected, repr(value))) from None


def one_of(name: str, value: Any, choices: Iterable[str]) -> str:
    """Check that ``value`` is one of ``choices``."""
    choices = tuple(choices)
    if not isinstance(value, str) or value not in choices:
        raise ValueError(fault(name, "one of " + ", ".join(map(repr, choices)), repr(value)))
    return value
