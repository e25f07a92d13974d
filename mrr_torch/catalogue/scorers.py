"""Scores of a catalogue, a slice of items at a time: products of embeddings, or a function of the user's.

A target ties with an equal item only if both scores come out of the same arithmetic, to the last bit, so both scorers
take the scores of relevant items from the arithmetic that scores their competitors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.kernels import backend

# Kernels compute 4 to 64 columns at once (MKL with AVX-512: 48 in float32, 24 in float64), and what is left over in
# another way. Measured there: in widths that 24 does not divide equal items of float64 differ in their last bit.
GRAIN = 192
# Few queries would make a tile wide, and with it the copy of its items, and the one more product for the targets.
LEAST_ROWS = 64
# Counts in a tile are sums of float32, exact up to here.
MOST_ITEMS = 2**24


class Cut(NamedTuple):
    """The sizes of a tile: rows (queries), items, and the width of its buffer, which may be more than the items."""

    rows: int
    items: int
    width: int


def cut_products(queries: int, items: int, columns: int, listed: int, tile: int | None, like: Tensor) -> Cut:
    """Choose the sizes of the tiles of `DotProducts`.

    Args:
        queries: number of queries.
        items: number of items.
        columns: length of an embedding.
        listed: length of the queries' lists of ids, which have to be held for all rows of a tile.
        tile: items in a tile, or None.
        like: a tensor where the tiles are.
    """
    kernels = backend(like)
    cells = kernels.CATALOGUE_TILE
    rows = max(1, min(kernels.CATALOGUE_ROWS, cells // 2 // (listed + 1)))
    if tile is not None:  # a wide tile of few rows
        rows = max(1, min(rows, 4 * cells // _whole(min(tile, MOST_ITEMS))))
    rows = max(1, -(-queries // max(1, -(-queries // rows))))  # blocks of equal height
    step = tile or max(GRAIN, cells // max(rows, columns, LEAST_ROWS) // GRAIN * GRAIN)
    step = max(1, min(step, items, MOST_ITEMS))
    return Cut(rows, step, _whole(step))


def cut_function(queries: int, items: int, tile: int | None, like: Tensor) -> Cut:
    """Choose the sizes of the slices of a `ScoreFunction`, which scores all queries at once."""
    step = tile or max(LEAST_ROWS, backend(like).CATALOGUE_TILE // max(queries, 1))
    step = max(1, min(step, items, MOST_ITEMS))
    return Cut(queries, step, step)


def _whole(columns: int) -> int:
    return -(-columns // GRAIN) * GRAIN


class DotProducts:
    """Scores of embeddings, always by a product of the same shape in the same buffers.

    A matrix product does not promise that equal items get equal scores: its last columns may be summed in another order
    than the others, and so may a product of another shape. Here every product of a query has one shape and one set of
    buffers, its width is a multiple of what kernels work in, and relevant items go through the same buffer as tiles.
    """

    def __init__(self, queries: Tensor, items: Tensor, bias: Tensor | None, dtype: torch.dtype, cut: Cut) -> None:
        self.queries, self.items, self.bias, self.dtype, self.cut = queries, items, bias, dtype, cut
        self.num_items = items.shape[0]
        self.staged = torch.zeros(cut.width, items.shape[1], dtype=dtype, device=items.device)
        self.staged_columns = self.staged.T

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Cut the queries into blocks; yield their rows, and their embeddings in the type of the scores."""
        for top in range(0, self.queries.shape[0], self.cut.rows):
            rows = slice(top, min(top + self.cut.rows, self.queries.shape[0]))
            yield rows, self.queries[rows].to(self.dtype).contiguous()

    def score(self, block: Tensor | None, first: int, last: int, scores: Tensor) -> None:
        """Score items ``first`` to ``last`` for a block; columns of ``scores`` beyond them hold nothing of use."""
        # The one copy of a tile: of any strides and type into the same buffer, so that its product is always the same.
        self.staged[: last - first].copy_(self.items[first:last])
        assert block is not None
        torch.mm(block, self.staged_columns, out=scores)  # with `out`, autocast does not change it
        if self.bias is not None:  # after the product, as for relevant items
            scores[:, : last - first].add_(self.bias[first:last].to(self.dtype).contiguous())

    def score_ids(self, ids: Tensor, buffer: Tensor) -> Tensor:
        """Score the items ``ids`` ``(Q, M)`` of each query ``(Q, M)``; ids that are no item score 0."""
        found = torch.zeros(ids.shape, dtype=self.dtype, device=ids.device)
        if self.num_items == 0:
            return found
        exists = (ids >= 0) & (ids < self.num_items)
        ids = torch.where(exists, ids, 0)
        for rows, block in self.blocks():
            scores = _first(buffer, block.shape[0], self.cut.width)
            pairs = backend(ids).rows_at(exists[rows].flatten())  # as row * M + column
            for part in pairs.split(self.cut.width):
                wanted = ids[rows].flatten().index_select(0, part)
                self.staged[: part.shape[0]].copy_(self.items.index_select(0, wanted))
                torch.mm(block, self.staged_columns, out=scores)
                # A pair asks for its own row and column: of a product of the same shape, the same number.
                asked = part // ids.shape[1] * self.cut.width + torch.arange(part.shape[0], device=part.device)
                found[rows].view(-1).index_copy_(0, part, scores.view(-1).index_select(0, asked))
        if self.bias is not None:
            found += self.bias.index_select(0, ids.flatten()).view_as(ids).to(self.dtype)
        return torch.where(exists, found, 0)


class ScoreFunction:
    """Scores by a user's function, for all queries at once; each call is checked, and its last slice kept.

    Slices that hold relevant items are scored twice, first for the scores of these and then to count.
    """

    def __init__(self, function: Callable[[int, int], Any], num_items: int, cut: Cut, like: Tensor) -> None:
        self.function, self.num_items, self.like = function, num_items, like
        self.kept_first, self.kept, self.step = 0, self._call(0, min(cut.items, num_items)), cut.items
        self.shape = _checks.shape(self.kept)[:-1]  # of the queries
        self.dtype = torch.float64 if self.kept.dtype == torch.float64 else torch.float32
        self.cut = cut._replace(rows=self.kept[..., 0].numel())
        self.ids = self.found = torch.empty(self.cut.rows, 0, dtype=torch.int64, device=like.device)

    def blocks(self) -> Iterator[tuple[slice, None]]:
        """Yield one block of all queries, if there are any."""
        if self.cut.rows:
            yield slice(0, self.cut.rows), None

    def score(self, block: Tensor | None, first: int, last: int, scores: Tensor) -> None:
        """Score items ``first`` to ``last`` for all queries."""
        scores[:, : last - first].copy_(self.slice(first))
        again = self._pick(first, self.ids, self.found)
        changed = (again != self.found) & ~(again.isnan() & self.found.isnan())
        expected = "the same scores whenever it is called for a slice (is a model in training mode?)"
        _checks.refuse(changed, "score", expected, lambda: f"others for items {first}..{last - 1}")

    def score_ids(self, ids: Tensor, buffer: Tensor) -> Tensor:
        """Score the items ``ids`` ``(Q, M)`` of each query ``(Q, M)``, by a pass over the slices that hold them."""
        found = torch.zeros(ids.shape, dtype=self.dtype, device=ids.device)
        for first in backend(ids).tiles_with(ids, self.num_items, self.step):
            found = self._pick(first, ids, found)
        self.ids, self.found = ids, found
        return found

    def slice(self, first: int) -> Tensor:
        """Return the scores ``(Q, n)`` of the slice that begins at item ``first``."""
        if first != self.kept_first:
            last = min(first + self.step, self.num_items)
            scores = self._call(first, last)
            if scores.dtype != self.kept.dtype:
                raise TypeError(_checks.message("score", f"{self.kept.dtype}, as its first result", scores.dtype))
            if _checks.shape(scores)[:-1] != self.shape:
                wanted = f"shape {(*self.shape, last - first)} for items {first}..{last - 1}"
                raise ValueError(_checks.message("score", wanted, f"shape {_checks.shape(scores)}"))
            self.kept_first, self.kept = first, scores
        return self.kept.reshape(self.cut.rows, self.kept.shape[-1])

    def _call(self, first: int, last: int) -> Tensor:
        scores = _checks.dense_tensor("score", self.function(first, last), "a function that returns a tensor")
        if not scores.is_floating_point():
            raise TypeError(_checks.message("score", "floating-point scores", scores.dtype))
        if scores.ndim == 0 or scores.shape[-1] != last - first:
            wanted = f"shape (..., {last - first}) for items {first}..{last - 1}"
            raise ValueError(_checks.message("score", wanted, f"shape {_checks.shape(scores)}"))
        if scores.device != self.like.device:
            wanted = f"scores on {self.like.device}, where target is"
            raise ValueError(_checks.message("score", wanted, scores.device))
        return scores.detach()

    def _pick(self, first: int, ids: Tensor, found: Tensor) -> Tensor:
        """Return ``found`` with the scores of those ``ids`` that are in the slice that begins at ``first``."""
        scores = self.slice(first)
        inside = (ids >= first) & (ids < first + scores.shape[1])
        return torch.where(inside, scores.gather(1, torch.where(inside, ids - first, 0)).to(self.dtype), found)


def _first(buffer: Tensor, rows: int, width: int) -> Tensor:
    return buffer[: rows * width].view(rows, width)
