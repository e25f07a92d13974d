"""Fused kernels in Triton, one file a kernel with its launcher; each is imported only when it is called for.

- `scores`: counts in rows of scores, in one read.
- `catalogue`: counts from embeddings; scores are compared in registers and never written.
- `accumulate`: adds queries to a histogram in one launch.

This file imports no Triton, so that it can tell why the kernels cannot be used.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import TypeVar

import torch
from torch import Tensor

__all__ = ["PROVEN", "attempt", "available", "on_device_of", "serves_embeddings"]

# Cards and dates on which a run showed the kernels right, and faster than the plain path: ("H200, 2026-12-01", ...).
# Empty: they are compiled and interpreted in tests but have never run on a GPU, so nothing may choose them unasked.
PROVEN: tuple[str, ...] = ()

# Kernels that failed, with the reason: they are not tried again, and warned of once.
_failed: dict[str, str] = {}

Result = TypeVar("Result")


def available(tensor: Tensor) -> str | None:
    """Return why the kernels cannot serve ``tensor``, or None if they can."""
    if find_spec("triton") is None:
        return "triton is not installed"
    if torch.compiler.is_compiling():
        return "torch.compile traces plain operators only"
    if tensor.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return None
    if tensor.device.type != "cuda":  # AMD's too
        return f"no Triton backend for {tensor.device.type} tensors"
    if torch.version.hip is None and torch.cuda.get_device_capability(tensor.device) < (8, 0):
        return "the GPU is older than compute capability 8.0"
    return None


def serves_embeddings(queries: Tensor, items: Tensor) -> str | None:
    """Return why the catalogue kernel cannot serve these embeddings, or None if it can."""
    if torch.float64 in (queries.dtype, items.dtype):
        return "float64 embeddings need float64 scores, and the kernel accumulates in float32"
    return available(items)


def attempt(name: str, kernel: Callable[[], Result], plain: Callable[[], Result]) -> Result:
    """Return what ``kernel`` gives; where it does not compile or launch, what ``plain`` gives, with one warning.

    Args:
        name: of the kernel; once it has failed it is not tried again in this process.
        kernel: imports and launches the kernel.
        plain: the same in plain torch.
    """
    if name not in _failed:
        try:
            return kernel()
        # Whatever is missing (compiler, driver, registers, shared memory) raises an error of its own type.
        except Exception as error:
            _failed[name] = f"{type(error).__name__}: {error}"
            warnings.warn(f"The Triton kernel {name!r} cannot be used: {_failed[name]}", RuntimeWarning, stacklevel=2)
    return plain()


def on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Make the GPU of ``tensor`` the current one, where Triton launches."""
    return torch.cuda.device(tensor.device) if tensor.device.type == "cuda" else nullcontext()
