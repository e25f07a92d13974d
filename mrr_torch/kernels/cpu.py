"""Hot loops on a CPU: they may read values, and work in tiles that stay in cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from mrr_torch._device import lowest
from mrr_torch.kernels import device
from mrr_torch.kernels.cpu_runs import (  # noqa: F401
    any_in_runs,
    as_numpy,
    best_of_each,
    count_runs,
    ids_of_runs,
    runs,
    runs_if_sorted,
)

# Bytes of a comparison buffer for each thread: a tile and its comparisons stay in a core's own caches.
BUFFER = 3 * 2**19
# Scores in a tile of which masks are made.
TILE = 2**19
# The same where the mask is given: the relevant columns are found by index.
LABELS_TILE = 2**20
# Columns that are counted together are fewer: sums of float32 are exact below this number.
EXACT = 2**24
# Share of relevant items up to which they are found by index, and the number of rows that tell it.
FEW, SAMPLE = 1 / 32, 64

# glibc maps a block of memory anew, page by page, if no larger one was freed before: some 1 ms for the buffers of a
# batch. So a larger one is freed first; nothing is written to it.
torch.empty(2**24, dtype=torch.uint8, device="cpu")


def row_tiles(rows: int, columns: int, tile: int = TILE) -> Iterator[slice]:
    """Cut ``rows`` into slices of about ``tile`` elements each, at least one row."""
    height = max(1, tile // max(columns, 1))
    for top in range(0, rows, height):
        yield slice(top, min(top + height, rows))


def count(scores: Tensor, best: Tensor, competes: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Count, per row, the scores above ``best`` and those equal to it. NaN is neither.

    Args:
        scores: ``(rows, columns)``; not bool.
        best: ``(rows, 1)``; of the dtype of the scores.
        competes: ``(rows, columns)`` bool; the scores that count; all if None.

    Returns:
        two ``(rows,)`` int64.
    """
    # A comparison that writes the type of the scores, and a sum of that, are both vectorised. Into bool neither is
    # fast, and `bool.sum(1)` makes an int64 copy, 8 bytes a score.
    rows, columns = scores.shape
    size = max(1, min(BUFFER * torch.get_num_threads() // scores.element_size(), EXACT // 2))
    # Rounded, not cut off: a buffer that is only half used takes twice as many operations.
    width = max(1, math.ceil(columns / max(1, round(columns / size))))
    height = max(1, min(rows, round(size / width)))
    buffer = scores.new_empty(height, width)
    if height >= rows and width == columns:
        return _count_tile(scores, best, competes, buffer[:rows])
    counts = []
    for top in range(0, rows, height):
        part = slice(top, min(top + height, rows))
        total: list[tuple[Tensor, Tensor]] = []
        for left in range(0, columns, width):
            at = slice(left, min(left + width, columns))
            hits, keep = buffer[: part.stop - top, : at.stop - left], None if competes is None else competes[part, at]
            total.append(_count_tile(scores[part, at], best[part], keep, hits))
        counts.append(total[0] if len(total) == 1 else tuple(map(sum, zip(*total, strict=True))))
    higher, equal = (torch.cat(parts) for parts in zip(*counts, strict=True)) if counts else best.new_zeros(2, 0).long()
    return higher, equal


def _count_tile(tile: Tensor, best: Tensor, competes: Tensor | None, hits: Tensor) -> tuple[Tensor, Tensor]:
    # Bytes become the type of the scores several times faster than bools do.
    weight, dtype = None if competes is None else competes.view(torch.uint8).to(tile.dtype), _dtype_of_sums(tile.dtype)
    torch.gt(tile, best, out=hits)
    higher = (hits if weight is None else hits.mul_(weight)).sum(-1, dtype=dtype)
    torch.eq(tile, best, out=hits)
    return higher.long(), (hits if weight is None else hits.mul_(weight)).sum(-1, dtype=dtype).long()


def best_relevant(scores: Tensor, relevant: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return, per row, the best score of a relevant item (NaN if none has a score) and the number of relevant items.

    Args:
        scores: ``(rows, columns)``; not bool.
        relevant: ``(rows, columns)`` bool.

    Returns:
        ``(rows, 1)`` of the dtype of the scores (the lowest value where integers have no relevant item); ``(rows,)``;
        and the number of relevant items with that score ``(rows,)``, if it is known by the way.
    """
    where = relevant.numpy()
    some = where[:: 1 + len(where) // SAMPLE]
    if np.count_nonzero(some) > FEW * some.size:
        best_of_row = _only(relevant, scores).amax(1, keepdim=True)
        if best_of_row.min().item() > lowest(scores.dtype):  # neither NaN, nor without a relevant item
            return best_of_row, count_true(relevant), None
        return device.best_relevant(scores, relevant)
    rows, columns = np.divmod(np.flatnonzero(where), where.shape[1])
    theirs = as_numpy(scores[torch.from_numpy(rows), torch.from_numpy(columns)])
    number = np.bincount(rows, minlength=relevant.shape[0])
    best, level = best_of_each(theirs, number, scores.dtype)
    return torch.from_numpy(best).to(scores.dtype)[:, None], torch.from_numpy(number), torch.from_numpy(level)


def _only(relevant: Tensor, scores: Tensor) -> Tensor:
    """Return ``scores`` where they are ``relevant``, elsewhere the lowest value (or NaN, of NaN and infinity)."""
    if not scores.is_floating_point() or scores.element_size() > 4:
        return torch.where(relevant, scores, scores.new_full((), lowest(scores.dtype)))
    # Less infinity where they are not: twice as fast as `torch.where`, which is not vectorised.
    others = relevant.view(torch.uint8).to(scores.dtype).clamp_(max=1).reciprocal_().sub_(1)
    return torch.sub(scores, others, out=others)


def count_level(scores: Tensor, best: Tensor, relevant: Tensor, equal: Tensor) -> Tensor:
    """Count, per row, the relevant items whose score is ``best``; ``equal`` counts all items of that score."""
    level = equal.clone()
    if equal.numel() and int(equal.max()) > 1:  # a score that stands alone is that of the relevant item
        rows = (equal > 1).nonzero()[:, 0]
        level[rows] = count_true((scores[rows] == best[rows]) & relevant[rows])
    return level


def count_true(mask: Tensor) -> Tensor:
    """Count the True values of each row ``(rows, columns)``: ``(rows,)`` int64."""
    return mask.sum(1, dtype=torch.int32).long()


def all_positive(numbers: Tensor) -> bool:
    """Return True if all ``numbers`` are known to be above 0."""
    return numbers.numel() == 0 or int(numbers.min()) > 0


def some(where: Tensor) -> bool:
    """Return True if ``where`` may hold anywhere."""
    return bool(where.any())


def within(ids: Tensor, number: int) -> bool:
    """Return True if all ``ids`` are known to be in 0..number-1."""
    if ids.numel() == 0:
        return True
    least, most = ids.aminmax()
    return int(least) >= 0 and int(most) < number


def rows_at(where: Tensor) -> Tensor:
    """Return the indexes of the rows that have to be worked on: those at ``where`` ``(rows,)``."""
    return where.nonzero()[:, 0]


def subset(where: Tensor) -> Tensor | None:
    """Return the indexes of the rows at ``where`` ``(rows,)``; None for all rows, where that is no more work."""
    return rows_at(where)


def accumulate(state: Tensor, index: Tensor) -> None:
    """Add 1 to ``state`` at each ``index``, in place."""
    if index.numel() > state.numel():  # many at one place would wait for each other's sums
        state.add_(torch.bincount(index, minlength=state.numel()))
        return
    state.index_put_((index,), state.new_ones(()), accumulate=True)


def add_rows(sums: Tensor, group: Tensor | None, rows: Tensor) -> None:
    """Add each row of ``rows`` to the row of ``sums`` that is its ``group``, the first if None, in place."""
    # One after the other, whatever the group: its sum does not depend on what the other groups are given.
    group = torch.zeros(rows.shape[0], dtype=torch.int64, device=rows.device) if group is None else group
    sums.index_add_(0, group, rows)


def sort_rows(ids: Tensor) -> Tensor:
    """Sort each row of ids."""
    # NumPy sorts integers with vector instructions, some 20 times faster than torch, which sorts pairs with indexes.
    return torch.from_numpy(np.sort(ids.numpy(), axis=-1))


def _dtype_of_sums(dtype: torch.dtype) -> torch.dtype:
    """Return a type that holds sums of `EXACT` numbers of 0 or 1 exactly, and is summed fast."""
    if dtype in (torch.float16, torch.bfloat16):
        return torch.float32
    return dtype if dtype.is_floating_point or dtype == torch.int64 else torch.int32


# Rows and scores of a tile of a catalogue: with their comparisons they stay in cache, and are many enough for several
# threads.
CATALOGUE_ROWS, CATALOGUE_TILE = 512, 2**19


def positions_by_tile(ids: Tensor, used: Tensor, items: int, step: int, width: int) -> Callable[[int], Tensor]:
    """Return the function that gives the positions of ``ids`` in a tile of scores, counted row by row.

    Args:
        ids: ``(rows, H)``; items of each row.
        used: ``(rows, H)`` bool; the ids to give the positions of, all in 0..items-1.
        items: number of items.
        step: number of items in a tile.
        width: length of a row of the tile's buffer.

    Returns:
        Of the first item of a tile, the positions ``(n,)``.
    """
    # Sorted by tile and position, the positions of a tile are a slice: all tiles together cost one pass over the ids.
    rows = torch.arange(ids.shape[0], device=ids.device)[:, None]
    listed, row, size = ids[used], rows.expand_as(ids)[used], max(ids.shape[0] * width, 1)
    keys = (listed // step * size + row * width + listed % step).sort().values
    edges = torch.searchsorted(keys, torch.arange(-(-items // step) + 1, device=keys.device) * size).tolist()
    positions = keys % size

    def of_tile(first: int) -> Tensor:
        return positions[edges[first // step] : edges[first // step + 1]]

    return of_tile


def tiles_with(ids: Tensor, items: int, step: int) -> list[int]:
    """Return the first items of the tiles of ``step`` items that hold one of ``ids``; negative ids are padding."""
    return [int(tile) * step for tile in np.unique(ids[ids >= 0].numpy() // step)]
