"""Counts in rows of scores: both counts from one read of the scores, of any strides."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mrr_torch.kernels.triton import on_device_of

# Scores in a tile, and columns that one program counts: long rows are shared among programs.
TILE, SPAN = 2048, 2**14
# Rows of a tile where the scores of a column, not those of a row, are neighbours in memory.
TALL = 64


def count(scores: Tensor, best: Tensor, competes: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Count, per row, the scores above ``best`` and those equal to it. NaN is neither.

    Args:
        scores: ``(rows, columns)``; not bool.
        best: ``(rows, 1)``; of the dtype of the scores.
        competes: ``(rows, columns)`` bool; the scores that count; all if None.

    Returns:
        two ``(rows,)`` int64.
    """
    rows, columns = scores.shape
    parts = triton.cdiv(columns, SPAN)
    # Programs that share a row add to it; a single one writes it.
    new = scores.new_empty if parts == 1 else scores.new_zeros
    counts = new((2, rows), dtype=torch.int64)
    if rows > 0 and columns > 0:
        mask = scores if competes is None else competes.view(torch.uint8)
        height, width = tile_of(scores)
        with on_device_of(scores):
            _count[(triton.cdiv(rows, height), parts)](
                *(scores, best, mask, counts, rows, columns),
                *(*scores.stride(), best.stride(0), *mask.stride()),
                MASKED=competes is not None,
                SHARED=parts > 1,
                SPAN=SPAN,
                HEIGHT=height,
                WIDTH=width,
                num_warps=8 if scores.element_size() == 1 else 4,  # unpacking bytes takes registers
                enable_fp_fusion=True,
            )
    higher, equal = counts.unbind()
    return higher, equal


def tile_of(scores: Tensor) -> tuple[int, int]:
    """Return height and width of a tile: along what is contiguous in memory."""
    rows, columns = scores.shape
    if scores.stride(0) < scores.stride(1) and rows >= TALL:
        return TALL, TILE // TALL
    width = min(triton.next_power_of_2(columns), TILE)
    return min(triton.next_power_of_2(rows), TILE // width), width


@triton.jit
def _count(
    scores,
    best,
    competes,
    counts,
    rows,
    columns,
    row_stride,
    column_stride,
    best_stride,
    mask_row_stride,
    mask_column_stride,
    MASKED: tl.constexpr,
    SHARED: tl.constexpr,
    SPAN: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT)
    inside = row < rows
    threshold = _comparable(tl.load(best + row.to(tl.int64) * best_stride, mask=inside, other=0))[:, None]
    first = tl.program_id(1) * SPAN
    last = tl.minimum(first + SPAN, columns)
    # Offsets in 64 bits: a matrix of scores may have more than 2**31.
    score_row = scores + row.to(tl.int64)[:, None] * row_stride
    mask_row = competes + row.to(tl.int64)[:, None] * mask_row_stride
    # One count for each cell of the tile: they are summed once, after the loop.
    higher = tl.zeros((HEIGHT, WIDTH), dtype=tl.int32)
    equal = tl.zeros((HEIGHT, WIDTH), dtype=tl.int32)
    for left in range(first, last, WIDTH):
        column = left + tl.arange(0, WIDTH)
        counts_here = inside[:, None] & (column < last)[None, :]
        value = _comparable(
            tl.load(score_row + column.to(tl.int64)[None, :] * column_stride, mask=counts_here, other=0)
        )
        if MASKED:
            mask = mask_row + column.to(tl.int64)[None, :] * mask_column_stride
            counts_here = tl.load(mask, mask=counts_here, other=0) != 0
        higher += ((value > threshold) & counts_here).to(tl.int32)
        equal += ((value == threshold) & counts_here).to(tl.int32)
    _add(counts + row, tl.sum(higher, 1), inside, SHARED)
    _add(counts + rows + row, tl.sum(equal, 1), inside, SHARED)


@triton.jit
def _comparable(value):
    # Half precision becomes float32, which holds it exactly; every other type is compared as it is.
    if value.dtype == tl.float16 or value.dtype == tl.bfloat16:
        return value.to(tl.float32)
    else:
        return value


@triton.jit
def _add(address, number, inside, SHARED: tl.constexpr):
    if SHARED:
        tl.atomic_add(address, number.to(tl.int64), mask=inside, sem="relaxed")
    else:
        tl.store(address, number.to(tl.int64), mask=inside)
