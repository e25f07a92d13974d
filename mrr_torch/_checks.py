"""Argument checks. Every message has one form: name of the argument, what was expected, what came.

Static checks (type, shape, device) always run. Values are checked by `refuse`: it raises where they can be read on the
host and elsewhere returns the mask of the queries to be marked, so that `compute` raises.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from mrr_torch.kernels import readable

INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
SCORES = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, *INTEGERS}


def message(name: str, expected: str, got: object) -> str:
    """Return the one form of error messages."""
    return f"{name}: expected {expected}, got {got}"


def queries(count: float) -> str:
    """Return a number of queries in words that a sentence can take: "1 query", "2 queries"."""
    return f"{count:,.0f} " + ("query" if count == 1 else "queries")


def shape(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape as a plain tuple, which prints as users write it."""
    return tuple(tensor.shape)


def refuse(where: Tensor | None, name: str, expected: str, got: Callable[[], object]) -> Tensor | None:
    """Raise if ``where`` holds anywhere and can be read on the host; else return it, to be marked.

    Args:
        where: bool mask of invalid values, or None if there are none.
        name: of the argument.
        expected: what was expected.
        got: returns what came; called only to raise.

    Returns:
        None if there are certainly no invalid values, else ``where``.
    """
    if where is None or not readable(where):
        return where
    if bool(where.any()):
        raise ValueError(message(name, expected, got()))
    return None


def mark(relevant: Tensor, where: Tensor | None, outcome: IntEnum) -> Tensor:
    """Set ``outcome`` for the queries at ``where`` (none if None); the last call wins, so errors are marked last."""
    return relevant if where is None else relevant.masked_fill(where, outcome.value)


def refuse_given(given: dict[str, Any], expected: str) -> None:
    """Refuse arguments that make no sense in this form of input."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(message(name, expected, type(value).__name__))


def dense_tensor(name: str, value: Any, expected: str) -> Tensor:
    """Check that ``value`` is a tensor with strides (not sparse)."""
    if not isinstance(value, Tensor):
        raise TypeError(message(name, expected, type(value).__name__))
    if value.layout != torch.strided:
        raise TypeError(message(name, f"{expected}, not sparse", value.layout))
    return value


def scores_tensor(name: str, value: Any, *, may_be_empty: bool = False) -> Tensor:
    """Check that ``value`` is a tensor of real numbers, with at least one column unless said otherwise; detach it."""
    tensor = dense_tensor(name, value, "a tensor of scores")
    if tensor.dtype not in SCORES:
        raise TypeError(message(name, "real scores, of a type that torch compares", tensor.dtype))
    if tensor.ndim == 0 or (tensor.shape[-1] == 0 and not may_be_empty):
        raise ValueError(
            message(name, "at least one score per query (shape (..., N), N >= 1)", f"shape {shape(tensor)}")
        )
    # The comparisons write into buffers (`out=`), which tensors with a gradient refuse.
    return tensor.detach() if tensor.requires_grad else tensor


def integer_tensor(name: str, value: Any, like: Tensor, *, expected: str = "a tensor of integer ids") -> Tensor:
    """Check that ``value`` is an integer tensor (bool refused) on the device of ``like``; return it as int64."""
    tensor = dense_tensor(name, value, expected)
    if tensor.dtype not in INTEGERS:
        raise TypeError(message(name, expected, tensor.dtype))
    same_device(name, tensor, like)
    return tensor.long()  # the same tensor if it is int64 already


def numbers_tensor(name: str, value: Any, like: Tensor) -> Tensor:
    """Check that ``value`` is a tensor of real numbers (bool refused) on the device of ``like``; detach it."""
    expected = "a tensor of real numbers"
    tensor = dense_tensor(name, value, expected)
    if tensor.dtype not in SCORES - {torch.bool}:
        raise TypeError(message(name, expected, tensor.dtype))
    same_device(name, tensor, like)
    return tensor.detach()


def bool_tensor(name: str, value: Any, like: Tensor) -> Tensor:
    """Check that ``value`` is a bool tensor of the shape and on the device of ``like``."""
    tensor = dense_tensor(name, value, "a bool tensor")
    if tensor.dtype != torch.bool:
        raise TypeError(message(name, "a bool tensor", tensor.dtype))
    same_shape(name, tensor, shape(like))
    same_device(name, tensor, like)
    return tensor


def relevance_tensor(name: str, value: Any, like: Tensor) -> Tensor:
    """Check that ``value`` is bool or integer relevance of the shape and on the device of ``like``."""
    expected = "bool or integer relevance"
    tensor = dense_tensor(name, value, expected)
    if tensor.dtype != torch.bool and tensor.dtype not in INTEGERS:
        raise TypeError(message(name, expected, tensor.dtype))
    same_shape(name, tensor, shape(like))
    same_device(name, tensor, like)
    return tensor


def same_shape(name: str, value: Tensor, expected: tuple[int, ...]) -> None:
    """Check the exact shape of ``value``."""
    if shape(value) != expected:
        raise ValueError(message(name, f"shape {expected}", f"shape {shape(value)}"))


def same_device(name: str, value: Tensor, like: Tensor) -> None:
    """Check that ``value`` is on the device of ``like``."""
    if value.device != like.device:
        raise ValueError(message(name, f"a tensor on {like.device}, where the scores are", value.device))


def positive_int(name: str, value: Any) -> int:
    """Check for an integer of at least 1; bool, floats and NaN are refused."""
    number = integer(name, value, expected="a positive int")
    if number < 1:
        raise ValueError(message(name, "a positive int", number))
    return number


def integer(name: str, value: Any, *, expected: str = "an int") -> int:
    """Check for an integer of any kind (numpy's too) that int64 holds, but not a bool."""
    if isinstance(value, bool) or getattr(value, "dtype", None) == torch.bool:
        raise TypeError(message(name, expected, repr(value)))
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(message(name, expected, repr(value))) from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(message(name, f"{expected} within int64", number))
    return number


def one_of(name: str, value: Any, choices: Iterable[str]) -> str:
    """Check that ``value`` is one of ``choices``."""
    choices = tuple(choices)
    if not isinstance(value, str) or value not in choices:
        raise ValueError(message(name, "one of " + ", ".join(map(repr, choices)), repr(value)))
    return value


def flatten(tensor: Tensor) -> Tensor:
    """Flatten all dimensions but the last; sizes may be 0."""
    return tensor[None] if tensor.ndim == 1 else tensor.flatten(0, -2)


def flat(tensor: Tensor) -> Tensor:
    """Flatten to one dimension, at no cost where there is just one."""
    return tensor if tensor.ndim == 1 else tensor.reshape(-1)
