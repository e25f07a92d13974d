"""The hot loops, the same names in each file.

- `cpu`: may read values, and works in tiles that stay in cache.
- `device`: plain torch that never reads a value; for accelerators, and what `torch.compile` traces.
- `triton`: fused kernels, imported only when they are asked for.
"""

from __future__ import annotations

from types import ModuleType

from torch import Tensor

from mrr_torch._device import readable
from mrr_torch.kernels import cpu, device

__all__ = ["backend"]


def backend(tensor: Tensor) -> ModuleType:
    """Return the file that serves ``tensor``."""
    return cpu if readable(tensor) else device
