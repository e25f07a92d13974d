"""Counting scores above and equal to a threshold, without sorting and without a temporary of the scores' size.

The scores are read in tiles that stay in cache while they are compared and summed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from mrr_torch import _checks

# Scores per tile. On a CPU the comparison buffer (4 bytes a score for float32) has to stay in the L2 caches; on an
# accelerator (1 byte a score) a tile has to be large enough to outweigh the launch of its kernels.
HOST_TILE = 2**19
DEVICE_TILE = 2**22

_held = threading.local()

Tile = tuple[slice, slice]
# Gives the bool mask of a tile of the scores.
TileMask = Callable[[slice, slice], Tensor]


class Counts(NamedTuple):
    """What was counted in each row, all ``(rows,)`` int64; ``equal`` includes the relevant items."""

    higher: Tensor
    equal: Tensor
    relevant: Tensor
    candidates: Tensor


def row_tiles(rows: int, columns: int, device: torch.device) -> Iterator[slice]:
    """Cut ``rows`` so that each part has about a tile of elements, and at least one row."""
    size = HOST_TILE if device.type == "cpu" else DEVICE_TILE
    # Under `torch.compile` the passes are fused, and a loop would only be unrolled.
    height = rows if torch.compiler.is_compiling() else max(1, size // max(columns, 1))
    for top in range(0, rows, max(height, 1)):
        yield slice(top, min(top + height, rows))


def tiles(rows: int, columns: int, device: torch.device) -> Iterator[Tile]:
    """Cut ``rows`` x ``columns`` into tiles of whole rows, or of a part of one row where rows are wider than a tile."""
    size = HOST_TILE if device.type == "cpu" else DEVICE_TILE
    width = columns if torch.compiler.is_compiling() else min(columns, size)
    for row in row_tiles(rows, columns, device):
        for left in range(0, columns, width):
            yield row, slice(left, min(left + width, columns))


def count(scores: Tensor, best: Tensor, competes: TileMask | None = None, relevant: TileMask | None = None) -> Counts:
    """Count, per row, the scores above ``best``, those equal to it, and the relevant ones among these.

    NaN is neither above nor equal.

    Args:
        scores: ``(rows, columns)``; not bool (see `comparable`).
        best: ``(rows,)``; of the dtype of the scores.
        competes: the mask of the scores that take part; all if None.
        relevant: the mask of the relevant ones; if None each row has one, and it is among the equal ones.
    """
    rows, columns = scores.shape
    # On a CPU tiles of scores are summed in their own type, and float32 sums are exact for rows below 2**24 columns.
    kind = torch.int64
    if scores.device.type == "cpu" and scores.is_floating_point():
        kind = torch.float32 if columns < 2**24 else torch.float64
    both = torch.zeros(2, rows, dtype=kind, device=scores.device)  # above, and equal
    # One number for all rows is kept as one number, which readers can tell from the stride.
    in_tie = torch.ones(1, dtype=torch.int64, device=scores.device).expand(rows)
    if relevant is not None:
        in_tie = torch.zeros(rows, dtype=torch.int64, device=scores.device)
    candidates = torch.full((1,), columns, device=scores.device).expand(rows)
    if competes is not None:
        candidates = torch.zeros(rows, dtype=torch.int64, device=scores.device)
    for row, column in tiles(rows, columns, scores.device):
        tile, threshold = scores[row, column], best[row, None]
        kept = None if competes is None else competes(row, column)
        both[0, row].add_(_sum(_compare(torch.gt, tile, threshold, kept)))
        hits = _compare(torch.eq, tile, threshold, kept)
        same = _sum(hits)
        both[1, row].add_(same)
        if relevant is not None:
            # A score that stands alone is that of the relevant item itself.
            alone = not _checks.some(same > 1)
            in_tie[row].add_((same if alone else _sum(hits.mul_(relevant(row, column)))).long())
        if kept is not None:
            candidates[row].add_(_sum(kept))
    higher, equal = both.long()
    return Counts(higher, equal, in_tie, candidates)


def comparable(scores: Tensor) -> Tensor:
    """Return scores in a type that comparisons can write to: bool as uint8, everything else as it is."""
    return scores.view(torch.uint8) if scores.dtype == torch.bool else scores


def _compare(compare: Callable[..., Tensor], tile: Tensor, threshold: Tensor, kept: Tensor | None) -> Tensor:
    """Return where the comparison holds, and the score is kept, as zeros and ones; overwritten by the next call."""
    if tile.device.type == "cpu" and not torch.compiler.is_compiling():
        # A comparison that writes the type of the scores, and a sum of that, are both vectorised. Into bool neither is
        # fast, and `bool.sum(1)` makes an int64 copy, 8 bytes a score.
        hits = compare(tile, threshold, out=_workspace(tile.dtype)[: tile.numel()].view(tile.shape))
    else:
        hits = compare(tile, threshold)
    return hits if kept is None else hits.mul_(kept)


def _workspace(dtype: torch.dtype) -> Tensor:
    """Return this thread's buffer of a tile. New memory would cost as much as counting: the system clears its pages."""
    buffers = _held.__dict__.setdefault("buffers", {})
    if dtype not in buffers:
        with torch.inference_mode(False):  # whoever comes first, all may write to it
            buffers[dtype] = torch.empty(HOST_TILE, dtype=dtype, device="cpu")
    buffer: Tensor = buffers[dtype]
    return buffer


def _sum(hits: Tensor) -> Tensor:
    # float32 holds every count up to the size of a tile exactly; half precision would not.
    if hits.dtype in (torch.float16, torch.bfloat16):
        return hits.sum(-1, dtype=torch.float32)
    return hits.sum(-1, dtype=torch.int32 if hits.dtype == torch.bool else None)
