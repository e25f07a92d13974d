"""Hot loops in plain torch that never read a value: for accelerators, and what `torch.compile` traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from mrr_torch._device import compiling

# Scores in a tile: large enough to outweigh the launch of its kernels. A comparison takes 1 byte a score.
TILE = 2**24


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
    for part in row_tiles(*scores.shape):
        above, same = scores[part] > best[part], scores[part] == best[part]
        if competes is not None:
            above, same = above & competes[part], same & competes[part]
        parts.append((above.sum(1), same.sum(1)))
    if len(parts) == 1:
        return parts[0]
    higher, equal = zip(*parts, strict=True) if parts else ((), ())
    none = best.new_zeros(0, dtype=torch.int64)
    return torch.cat([none, *higher]), torch.cat([none, *equal])


def count_true(mask: Tensor) -> Tensor:
    """Count the True values of each row ``(rows, columns)``: ``(rows,)`` int64."""
    return mask.sum(1)


def some(where: Tensor) -> bool:
    """Return True if ``where`` may hold anywhere."""
    return True


def none_beyond(numbers: Tensor, most: int) -> bool:
    """Return True if all ``numbers`` are known to be at most ``most``."""
    return False


def rows_at(where: Tensor) -> Tensor:
    """Return the indexes of the rows that have to be worked on: all, since which cannot be read."""
    return torch.arange(where.shape[0], device=where.device)


def sort_rows(ids: Tensor) -> Tensor:
    """Sort each row of ids."""
    return ids.sort(-1).values


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
