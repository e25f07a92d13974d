"""Ranks from embeddings in constant memory: the items pass by in tiles that are scored, counted and forgotten.

A target ties with an equal item only if both scores come out of the same arithmetic, to the last bit. A matrix product
does not promise that: its last columns may be summed in another order than the others, and so may a product of another
shape. Here every product of a query has one shape and one set of buffers, its width is a multiple of what kernels work
in, and the targets' rows go through the same buffer as the tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from mrr_torch.catalogue.excluded import places_taken_out, shared_out
from mrr_torch.catalogue.inputs import score_type

# Kernels compute 4 to 64 columns at once (MKL with AVX-512: 48 in float32, 24 in float64), and what is left over in
# another way. Measured there: in widths that 24 does not divide equal items of float64 differ in their last bit.
GRAIN = 192

# Scores in a tile. On a CPU they stay in its caches with their comparisons, and are many enough for several threads;
# on an accelerator they stay in its L2 cache, and have to outweigh the launch of the kernels.
HOST_CELLS, DEVICE_CELLS = 2**19, 2**22
HOST_ROWS, DEVICE_ROWS = 512, 2048
# Few queries would make a tile wide, and with it the copy of its items, and the one more product for the targets.
LEAST_ROWS = 64


class Cut(NamedTuple):
    """The sizes of a tile: rows (queries), items, and the width of the product, which may be more than the items."""

    rows: int
    items: int
    width: int


class Counted(NamedTuple):
    """What is counted for each query, all ``(Q,)``: int64, but ``own``, the score of the target."""

    higher: Tensor
    tied: Tensor
    candidates: Tensor
    own: Tensor


def cut_tiles(queries: int, items: int, columns: int, listed: int, tile: int | None, device: torch.device) -> Cut:
    """Choose the sizes of the tiles.

    Args:
        queries: number of queries.
        items: number of items.
        columns: length of an embedding.
        listed: length of the queries' lists of excluded items, which have to be held for all rows of a tile.
        tile: items in a tile, or None.
        device: where the tiles are.
    """
    cells, rows = (HOST_CELLS, HOST_ROWS) if device.type == "cpu" else (DEVICE_CELLS, DEVICE_ROWS)
    rows = max(1, min(rows, cells // 2 // (listed + 1)))
    if tile is not None:  # a wide tile of few rows
        rows = max(1, min(rows, 4 * cells // _whole(tile)))
    rows = max(1, -(-queries // max(1, -(-queries // rows))))  # blocks of equal height
    step = tile or max(GRAIN, cells // max(rows, columns, LEAST_ROWS) // GRAIN * GRAIN)
    step = max(1, min(step, items))
    return Cut(rows, step, _whole(step))


def _whole(columns: int) -> int:
    return -(-columns // GRAIN) * GRAIN


class Tiles:
    """Scores of items, a tile at a time, always by a product of the same shape in the same buffers."""

    def __init__(self, items: Tensor, bias: Tensor | None, dtype: torch.dtype, cut: Cut) -> None:
        self.items, self.bias, self.rivals_bias = items, bias, bias
        self.dtype, self.cut = dtype, cut
        self.staged = torch.zeros(cut.width, items.shape[1], dtype=dtype, device=items.device)
        self.staged_columns = self.staged.T
        self.buffer = torch.empty(2 * cut.rows * cut.width, dtype=dtype, device=items.device)

    def blocks(self, queries: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Cut the queries ``(Q, D)`` into blocks of rows.

        Yields:
            The rows; their queries, in the type of the scores; the buffers of their scores and of comparisons, as
            ``(2, rows, width)``.
        """
        for top in range(0, queries.shape[0], self.cut.rows):
            rows = slice(top, min(top + self.cut.rows, queries.shape[0]))
            height, width = rows.stop - top, self.cut.width
            pair = self.buffer[: 2 * height * width].view(2, height, width)
            yield rows, queries[rows].to(self.dtype).contiguous(), pair

    def score(self, queries: Tensor, scores: Tensor, first: int, last: int) -> None:
        """Score items ``first`` to ``last`` for a block; columns of ``scores`` beyond them hold nothing of use."""
        # The one copy of a tile: of any strides and type into the same place, so that its product is always the same.
        self.staged[: last - first].copy_(self.items[first:last])
        torch.mm(queries, self.staged_columns, out=scores)  # with `out`, autocast lets it be
        if self.rivals_bias is not None:  # after the product, as for the targets
            scores[:, : last - first].add_(self.rivals_bias[first:last].to(self.dtype).contiguous())

    def own(self, queries: Tensor, scores: Tensor, ids: Tensor) -> Tensor:
        """Score one item for each query of a block, by its id ``(rows,)``; an id that is no item scores 0."""
        own = torch.zeros(queries.shape[0], dtype=self.dtype, device=queries.device)
        if self.items.shape[0] == 0:
            return own
        real = (ids >= 0) & (ids < self.items.shape[0])
        ids = torch.where(real, ids, 0)
        for top in range(0, queries.shape[0], self.cut.width):
            rows = slice(top, min(top + self.cut.width, queries.shape[0]))
            self.staged[: rows.stop - top].copy_(self.items.index_select(0, ids[rows]))
            torch.mm(queries, self.staged_columns, out=scores)
            # Row i asks for column i: of a product of the same shape, the same number.
            own[rows] = scores[rows].diagonal()
        if self.bias is not None:
            own += self.bias.index_select(0, ids).to(self.dtype)
        return torch.where(real, own, 0)


def own_scores(tiles: Tiles, queries: Tensor, own: Tensor) -> Tensor:
    """Score each query's target ``own`` ``(Q,)``; 0 where it is not among the items."""
    scores = torch.empty(queries.shape[0], dtype=tiles.dtype, device=queries.device)
    for rows, block, pair in tiles.blocks(queries):
        scores[rows] = tiles.own(block, pair[0], own[rows])
    return scores


def count_rivals(tiles: Tiles, queries: Tensor, best: Tensor, own: Tensor, ids: Tensor | None) -> Tensor:
    """Count the other items that score above ``best``, those equal to it, and all that take part.

    Args:
        tiles: the items.
        queries: ``(Q, D)``.
        best: ``(Q,)``; the score of each target.
        own: ``(Q,)``; the target, which does not count, if it is among the items.
        ids: excluded items, ``(Q, H)``, or ``(1, H)`` for all queries, or None.

    Returns:
        ``(3, Q)`` int64: tied, higher, all that take part.
    """
    total, step = tiles.items.shape[0], tiles.cut.items
    counts = torch.zeros(3, queries.shape[0], dtype=torch.int64, device=queries.device)
    if total == 0:  # an empty part of the items
        return counts
    counts[2] = total
    if ids is not None and ids.shape[0] == 1:
        tiles.rivals_bias, gone = shared_out(ids[0], tiles.bias, total, tiles.dtype)
        real = (own >= 0) & (own < total)
        # The target is among those that `places_taken_out` counts.
        counts[2] -= gone.sum() - (real & gone[torch.where(real, own, 0)]).long()
        ids = None
    for rows, block, pair in tiles.blocks(queries):
        scores, threshold, found = pair[0], best[rows, None], counts[:2, rows]
        places, taken = places_taken_out(own[rows], None if ids is None else ids[rows], total, step, tiles.cut.width)
        counts[2, rows] -= taken
        for first in range(0, total, step):
            last = min(first + step, total)
            tiles.score(block, scores, first, last)
            tiles.buffer.index_fill_(0, places(first), torch.nan)
            tile = pair[:, :, : last - first]
            values, above = tile.unbind()
            # Comparisons that write the type of the scores are vectorised, and so is their sum (exact below 2**24).
            torch.gt(values, threshold, out=above)
            torch.eq(values, threshold, out=values)
            found += tile.sum(-1).long()
    return counts


def count_streamed(
    queries: Tensor, items: Tensor, target: Tensor, bias: Tensor | None, exclude: Tensor | None, tile: int | None
) -> Counted:
    """Count the competitors of each target in tiles of items; arguments are checked, ids in range."""
    count = _as_one_operation if torch.compiler.is_compiling() else _count
    own, counts = count(queries, items, target, bias, exclude, tile)
    return Counted(counts[1], counts[0], counts[2] + 1, own)


def _count(
    queries: Tensor, items: Tensor, target: Tensor, bias: Tensor | None, exclude: Tensor | None, tile: int | None
) -> tuple[Tensor, Tensor]:
    listed = 0 if exclude is None or exclude.shape[0] == 1 else exclude.shape[1]
    cut = cut_tiles(queries.shape[0], items.shape[0], items.shape[1], listed, tile, queries.device)
    tiles = Tiles(items, bias, score_type(queries, items), cut)
    own = own_scores(tiles, queries, target)
    return own, count_rivals(tiles, queries, own, target, exclude)


# In a compiled graph the loop over tiles is one operation: unrolled, it would be compiled once for each tile.
_as_one_operation = torch.library.custom_op(
    "mrr_torch::count_streamed",
    _count,
    mutates_args=(),
    schema="(Tensor queries, Tensor items, Tensor target, Tensor? bias, Tensor? exclude, int? tile)"
    " -> (Tensor, Tensor)",
)


@_as_one_operation.register_fake
def _like_counts(
    queries: Tensor, items: Tensor, target: Tensor, bias: Tensor | None, exclude: Tensor | None, tile: int | None
) -> tuple[Tensor, Tensor]:
    own = queries.new_empty(queries.shape[0], dtype=score_type(queries, items))
    return own, target.new_empty(3, queries.shape[0])
