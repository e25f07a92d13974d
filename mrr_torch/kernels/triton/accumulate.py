"""Adds queries to a histogram in one launch."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from mrr_torch.kernels.triton import on_device_of

BLOCK = 256


def accumulate(state: Tensor, place: Tensor) -> Tensor:
    """Add 1 to ``state``, in place, at each ``place``; a place outside ``state`` adds nothing.

    Whole numbers add up exactly in any order, so the result does not depend on the order of the additions.

    Args:
        state: ``(n,)`` float64, contiguous.
        place: ``(queries,)`` int64.

    Returns:
        ``state``.
    """
    queries = place.shape[0]
    if queries > 0:
        with on_device_of(state):
            _accumulate[(triton.cdiv(queries, BLOCK),)](
                *(state, place, state.shape[0], queries, place.stride(0)),
                BLOCK=BLOCK,
                num_warps=4,
                enable_fp_fusion=True,
            )
    return state


@triton.jit
def _accumulate(state, place, size, queries, stride, BLOCK: tl.constexpr):
    query = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(place + query * stride, mask=query < queries, other=-1)
    one = tl.full((BLOCK,), 1, dtype=tl.float64)
    tl.atomic_add(state + at, one, mask=(at >= 0) & (at < size), sem="relaxed")
