"""What `device` does, by Triton kernels where there is one; where it does not compile, by plain torch."""

from __future__ import annotations

from torch import Tensor

from mrr_torch.kernels import device
from mrr_torch.kernels.device import *  # noqa: F403
from mrr_torch.kernels.triton import attempt


def count(scores: Tensor, best: Tensor, competes: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[no-redef]
    """Count as `device.count` does, with one read of the scores."""

    def by_kernel() -> tuple[Tensor, Tensor]:
        from mrr_torch.kernels.triton import scores as kernel

        return kernel.count(scores, best, competes)

    return attempt("scores", by_kernel, lambda: device.count(scores, best, competes))


def accumulate(state: Tensor, index: Tensor) -> None:  # type: ignore[no-redef]
    """Add 1 to ``state`` at each ``index``, in place, in one launch."""

    def by_kernel() -> None:
        from mrr_torch.kernels.triton import accumulate as kernel

        kernel.accumulate(state, index)

    attempt("accumulate", by_kernel, lambda: device.accumulate(state, index))
