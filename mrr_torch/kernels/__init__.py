"""The hot loops, the same names in each file.

- `cpu`: may read values, and works in tiles that stay in cache.
- `device`: plain torch that never reads a value; for accelerators, and what `torch.compile` traces.
- `fused`: as `device`, with Triton kernels; imported only when chosen.
"""

from __future__ import annotations

import os
from types import ModuleType

from torch import Tensor

from mrr_torch._device import compiling, readable
from mrr_torch.kernels import cpu, device, triton

__all__ = ["backend"]


def backend(tensor: Tensor) -> ModuleType:
    """Return the file that serves ``tensor``.

    Triton kernels are chosen where they have been shown right and faster (`triton.PROVEN`), or where the environment
    variable MRR_TORCH_TRITON is 1.
    """
    if readable(tensor):
        return cpu
    if compiling():
        return device
    if (triton.PROVEN or os.environ.get("MRR_TORCH_TRITON") == "1") and triton.available(tensor) is None:
        from mrr_torch.kernels import fused

        return fused
    return device
