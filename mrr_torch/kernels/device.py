"""Hot loops in plain torch that never read a value: for accelerators, and what `torch.compile` traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from mrr_torch._device import compiling, lowest
from mrr_torch.kernels.runs import NO_ID, RunCounts, Runs

# Scores in a tile of which masks are made, and of one that is only compared (1 byte a score): large enough to outweigh
# the launch of the kernels.
TILE = LABELS_TILE = 2**22
COMPARED = 2**26


def row_tiles(rows: int, columns: int, tile: int = TILE) -> Iterator[slice]:
    """Cut ``rows`` into slices of about ``tile`` elements each, at least one row."""
    # Under `torch.compile` the passes are fused, and a loop would only be unrolled.
    height = max(1, rows if compiling() else tile // max(columns, 1))
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
    parts = []
    for part in row_tiles(scores.shape[0], scores.shape[1], COMPARED):
        above, same = scores[part] > best[part], scores[part] == best[part]
        if competes is not None:
            above, same = above & competes[part], same & competes[part]
        parts.append((above.sum(1), same.sum(1)))
    if len(parts) == 1:
        return parts[0]
    higher, equal = zip(*parts, strict=True) if parts else ((), ())
    none = best.new_zeros(0, dtype=torch.int64)
    return torch.cat([none, *higher]), torch.cat([none, *equal])


def best_relevant(scores: Tensor, relevant: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return, per row, the best score of a relevant item (NaN if none has a score) and the number of relevant items.

    Args:
        scores: ``(rows, columns)``; not bool.
        relevant: ``(rows, columns)`` bool.

    Returns:
        ``(rows, 1)`` of the dtype of the scores (the lowest value where integers have no relevant item); ``(rows,)``;
        and the number of relevant items with that score ``(rows,)``, if it is known by the way.
    """
    found = relevant & (scores == scores)
    best = torch.where(found, scores, lowest(scores.dtype)).amax(1, keepdim=True)
    if scores.is_floating_point():
        best = best.masked_fill(~found.any(1, keepdim=True), torch.nan)
    return best, count_true(relevant), None


def count_level(scores: Tensor, best: Tensor, relevant: Tensor, equal: Tensor) -> Tensor:
    """Count, per row, the relevant items whose score is ``best``; ``equal`` counts all items of that score."""
    return count_true((scores == best) & relevant)


def count_true(mask: Tensor) -> Tensor:
    """Count the True values of each row ``(rows, columns)``: ``(rows,)`` int64."""
    return mask.sum(1)


def all_positive(numbers: Tensor) -> bool:
    """Return True if all ``numbers`` are known to be above 0."""
    return False


def some(where: Tensor) -> bool:
    """Return True if ``where`` may hold anywhere."""
    return True


def within(ids: Tensor, number: int) -> bool:
    """Return True if all ``ids`` are known to be in 0..number-1."""
    return False


def rows_at(where: Tensor) -> Tensor:
    """Return the indexes of the rows that have to be worked on: all, since which cannot be read."""
    return torch.arange(where.shape[0], device=where.device)


def subset(where: Tensor) -> Tensor | None:
    """Return the indexes of the rows at ``where`` ``(rows,)``; None for all rows, where that is no more work."""
    return None


def accumulate(state: Tensor, index: Tensor) -> None:
    """Add 1 to ``state`` at each ``index``, in place."""
    state.index_add_(0, index, state.new_ones(1).expand(index.shape))


def add_rows(sums: Tensor, group: Tensor | None, rows: Tensor) -> None:
    """Add each row of ``rows`` to the row of ``sums`` that is its ``group``, the first if None, in place."""
    if group is None:  # many threads that add to one place would wait for each other
        sums[0].add_(rows.sum(0))
    else:
        sums.index_add_(0, group, rows)


def sort_rows(ids: Tensor) -> Tensor:
    """Sort each row of ids."""
    return ids.sort(-1).values


def runs(indexes: Tensor) -> Runs:
    """Find the runs of equal ids in sorted ``indexes`` ``(T,)``."""
    segments = indexes.new_zeros(indexes.shape)
    segments[1:] = (indexes[1:] != indexes[:-1]).cumsum(0)
    padding = any_in_runs(torch.ones_like(indexes, dtype=torch.bool), Runs(indexes.shape[0], False, segments))
    return Runs(indexes.shape[0], False, segments, None, ~padding)


def runs_if_sorted(indexes: Tensor) -> Runs | None:
    """Find the runs of ``indexes`` ``(T,)``; None if they are not sorted, or may not be."""
    return None


def ids_of_runs(indexes: Tensor, runs: Runs) -> Tensor:
    """Return the id of each run; `NO_ID` of padding."""
    return indexes.new_full(indexes.shape, NO_ID).scatter_(0, runs.starts, indexes)


def any_in_runs(where: Tensor, runs: Runs) -> Tensor:
    """Return the mask of the runs in which ``where`` ``(T,)`` holds."""
    return _add_up(where, runs) > 0


def count_runs(scores: Tensor, relevant: Tensor, competes: Tensor | None, runs: Runs) -> RunCounts:
    """Count, per run, what `RunCounts` holds.

    Args:
        scores: ``(T,)``; not bool.
        relevant: ``(T,)`` bool.
        competes: ``(T,)`` bool; items that are relevant or compete; all if None.
        runs: from `runs`.
    """
    found = relevant & (scores == scores)  # a NaN can't be the best
    nothing = lowest(scores.dtype)
    best = scores.new_full((runs.number,), nothing)
    best = best.scatter_reduce(0, runs.starts, torch.where(found, scores, nothing), "amax")
    threshold = best[runs.starts]
    above, same = scores > threshold, scores == threshold
    if competes is not None:
        above, same = above & competes, same & competes
    candidates = torch.ones_like(relevant) if competes is None else competes
    counted = (above, same, same & found, relevant, candidates)
    return RunCounts(*(_add_up(where, runs) for where in counted))


def _add_up(where: Tensor, runs: Runs) -> Tensor:
    return runs.starts.new_zeros(runs.number).index_add_(0, runs.starts, where.long())


# Rows and scores of a tile of a catalogue: it stays in the L2 cache, and outweighs the launch of its kernels.
CATALOGUE_ROWS, CATALOGUE_TILE = 2048, 2**22


def positions_by_tile(ids: Tensor, used: Tensor, items: int, step: int, width: int) -> Callable[[int], Tensor]:
    """Return the function that gives the positions of ``ids`` in a tile of scores, counted row by row.

    Args:
        ids: ``(rows, H)``; items of each row.
        used: ``(rows, H)`` bool; the ids to give the positions of, all in 0..items-1.
        items: number of items.
        step: number of items in a tile.
        width: length of a row of the tile's buffer.

    Returns:
        Of the first item of a tile, the positions ``(rows * H,)``; ids of other tiles give the first position behind
        the scores, ``rows * width``.
    """
    rows = torch.arange(ids.shape[0], device=ids.device)[:, None]

    def of_tile(first: int) -> Tensor:
        inside = used & (ids >= first) & (ids < first + step)
        return torch.where(inside, rows * width + ids - first, ids.shape[0] * width).flatten()

    return of_tile


def tiles_with(ids: Tensor, items: int, step: int) -> range:
    """Return the first items of the tiles of ``step`` items that may hold one of ``ids``: all."""
    return range(0, items, step)
