"""Hot loops on a CPU: they may read values, and work in tiles that stay in cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

# Bytes of a comparison buffer for each thread: a tile and its comparisons stay in a core's own cache.
BUFFER = 2**20
# Scores in a tile of which masks are made. Counts in a tile are sums of float32, exact below 2**24.
TILE = 2**19


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
    higher, equal = scores.new_empty(2, rows, dtype=torch.int64).unbind()
    buffers = 1 if competes is None else 2
    size = max(BUFFER * torch.get_num_threads() // scores.element_size(), 1)
    width = min(columns, size, 2**23)  # sums of float32 are exact
    height = max(1, min(rows, size // max(width, 1)))
    buffer = scores.new_empty(buffers, height * width)
    for top in range(0, rows, height):
        part = slice(top, min(top + height, rows))
        for left in range(0, columns, width):
            tile, threshold = scores[part, left : left + width], best[part]
            hits, *rest = (room[: tile.numel()].view(tile.shape) for room in buffer)
            # Bytes become the type of the scores several times faster than bools do.
            keep = None if competes is None else rest[0].copy_(competes[part, left : left + width].view(torch.uint8))
            for total, compare in ((higher, torch.gt), (equal, torch.eq)):
                compare(tile, threshold, out=hits)
                counted = _sum(hits if keep is None else hits.mul_(keep))
                if left == 0:
                    total[part] = counted
                else:
                    total[part] += counted
    return higher, equal


def count_true(mask: Tensor) -> Tensor:
    """Count the True values of each row ``(rows, columns)``: ``(rows,)`` int64."""
    return mask.sum(1, dtype=torch.int32).long()


def some(where: Tensor) -> bool:
    """Return True if ``where`` may hold anywhere."""
    return bool(where.any())


def none_beyond(numbers: Tensor, most: int) -> bool:
    """Return True if all ``numbers`` are known to be at most ``most``."""
    return numbers.numel() == 0 or int(numbers.max()) <= most


def rows_at(where: Tensor) -> Tensor:
    """Return the indexes of the rows that have to be worked on: those at ``where`` ``(rows,)``."""
    return where.nonzero()[:, 0]


def sort_rows(ids: Tensor) -> Tensor:
    """Sort each row of ids."""
    # NumPy sorts integers with vector instructions, some 20 times faster than torch, which sorts pairs with indexes.
    return torch.from_numpy(np.sort(ids.numpy(), axis=-1))


def _sum(hits: Tensor) -> Tensor:
    kind = None
    if hits.dtype in (torch.float16, torch.bfloat16):
        kind = torch.float32  # half precision could not count to 2,049
    elif not hits.is_floating_point() and hits.element_size() < 8:
        kind = torch.int32  # less to copy
    return hits.sum(-1, dtype=kind)


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
    rows = torch.arange(ids.shape[0])[:, None]
    listed, row, size = ids[used], rows.expand_as(ids)[used], max(ids.shape[0] * width, 1)
    keys = (listed // step * size + row * width + listed % step).sort().values
    edges = torch.searchsorted(keys, torch.arange(-(-items // step) + 1) * size).tolist()
    positions = keys % size

    def of_tile(first: int) -> Tensor:
        return positions[edges[first // step] : edges[first // step + 1]]

    return of_tile


def tiles_with(ids: Tensor, items: int, step: int) -> list[int]:
    """Return the first items of the tiles of ``step`` items that hold one of ``ids``; negative ids are padding."""
    return [int(tile) * step for tile in np.unique(ids[ids >= 0].numpy() // step)]
