"""Counts from embeddings: scores are compared in registers and never written.

A kernel counts, tile by tile, all items above and equal to each query's threshold. Another gives the scores of single
items (targets, excluded items) by the same arithmetic, so that they can be taken out of the counts to the last one.
Hence the kernel that reads the whole catalogue holds no masks.

Scores are sums in float32. Tensor cores do not round each sum to the nearest: allow eps, not eps / 2, a product.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.kernels.triton import on_device_of
from mrr_torch.kernels.triton.tiles import Tile, choose

# Programs to cut the work into: several waves on any GPU, so that the last one idles for a small part of the time.
PROGRAMS = 2048


def count_catalogue(
    queries: Tensor,
    items: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    exclude: Tensor | None = None,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor]:
    """Count the competitors of each query's best relevant item among all items.

    Relevant items do not compete; excluded ones neither, unless they are relevant. Repeated ids count once. An id that
    is no item means nothing.

    Args:
        queries: ``(Q, D)``; any floating dtype but float64.
        items: ``(N, D)``; any floating dtype but float64, any strides.
        target: ``(Q,)`` or ``(Q, M)`` int64; the relevant items, padded with negative ids.
        bias: ``(N,)`` or None; added to the items' scores.
        exclude: ``(Q, H)``, or ``(1, H)`` for all queries, int64, or None.
        tile: sizes of a tile; by default chosen by the sizes of the input.

    Returns:
        the score of the best relevant item ``(Q,)`` float32, NaN if all are, 0 if there is none; and ``(4, Q)`` int64:
        competitors equal to it, competitors above it, all competitors, and relevant items equal to it.
    """
    inputs = _Inputs(queries, items, bias, tile)
    number, device = items.shape[0], items.device
    relevant = _once(target if target.ndim == 2 else target[:, None], number)
    is_relevant = relevant >= 0
    own = inputs.score(relevant)
    best = torch.where(own.isnan(), -torch.inf, own).amax(1) if own.shape[1] else own.new_zeros(own.shape[0])
    best = torch.where((own.isnan() | ~is_relevant).all(1), torch.nan, best)
    best = torch.where(is_relevant.any(1), best, 0)

    competitors = number - is_relevant.sum(1)
    listed = None
    if exclude is not None and exclude.shape[0] == 1:
        gone = torch.zeros(number + 1, dtype=torch.bool, device=device)
        gone.index_fill_(0, torch.where((exclude[0] >= 0) & (exclude[0] < number), exclude[0], number), True)
        gone = gone[:number]
        competitors = competitors - gone.sum() + (is_relevant & _at(gone, relevant)).sum(1)
        inputs.exclude(gone)
        is_relevant = is_relevant & ~_at(gone, relevant)
    elif exclude is not None:
        listed = _once(exclude, number)
        listed = listed.masked_fill(_occurs(listed, relevant), -1)
        competitors = competitors - (listed >= 0).sum(1)

    tied, higher = inputs.count(best)
    threshold = best[:, None]
    in_tie = own == threshold
    # What competes with nothing was counted with the others. A tie below 0 would mean that scores differ by kernel.
    tied -= (in_tie & is_relevant).sum(1)
    if listed is not None:
        theirs = inputs.score(listed)
        tied -= (theirs == threshold).sum(1)
        higher -= (theirs > threshold).sum(1)
    return best, torch.stack([tied, higher, competitors, in_tie.sum(1)])


class _Inputs:
    """Queries and items, ready for the kernels, which all use the same tile."""

    def __init__(self, queries: Tensor, items: Tensor, bias: Tensor | None, tile: Tile | None) -> None:
        for name, value in (("queries", queries), ("items", items)):
            if value.dtype == torch.float64:
                raise TypeError(_checks.message(name, "embeddings of at most 32 bits", value.dtype))
        # Products of one type are exact in float32, whichever it is; those of two types need float32 operands.
        operand = queries.dtype if queries.dtype == items.dtype else torch.float32
        if operand == torch.bfloat16 and items.device.type == "cpu":
            operand = torch.float32  # the interpreter takes the bits of bfloat16 operands for integers
        self.queries, self.items = queries.to(operand).contiguous(), items
        self.bias = None if bias is None else bias.float().contiguous()
        tile = tile or choose(operand, items.shape[1], queries.shape[0])
        # Items that are not contiguous are loaded number by number, through registers.
        self.tile = tile if items.stride(1) == 1 else tile._replace(step=min(tile.step, 32))

    def exclude(self, gone: Tensor) -> None:
        """Take items out for all queries: a bias of NaN makes their scores NaN, which is neither above nor equal."""
        bias = self.items.new_zeros(self.items.shape[0], dtype=torch.float32) if self.bias is None else self.bias
        self.bias = bias.masked_fill(gone, torch.nan)

    def score(self, ids: Tensor) -> Tensor:
        """Return the scores ``(Q, L)`` float32 of the items ``ids`` ``(Q, L)``; NaN where the id is no item."""
        scores = torch.empty(ids.shape, dtype=torch.float32, device=ids.device)
        if scores.numel() and self.items.shape[0] == 0:
            return scores.fill_(torch.nan)
        if scores.numel():
            slots = triton.cdiv(self.tile.queries * ids.shape[1], self.tile.items)
            grid = (triton.cdiv(ids.shape[0], self.tile.queries), slots)
            with on_device_of(ids):
                _score_listed[grid](
                    *(self.queries, self.items, self._bias_or_any(), ids.contiguous(), scores),
                    *(*ids.shape, self.items.shape[0], *self.items.stride()),
                    **self._constants(),
                )
        return scores

    def count(self, best: Tensor) -> tuple[Tensor, Tensor]:
        """Count, for each query, the items equal to ``best`` ``(Q,)`` and those above it: two ``(Q,)`` int64."""
        queries, number, width = self.queries.shape[0], self.items.shape[0], self.tile.items
        counts = torch.zeros(2, queries, dtype=torch.int64, device=best.device)
        blocks, whole = triton.cdiv(queries, self.tile.queries), number // width
        with on_device_of(best):
            # The last items, less than a tile, are a launch of their own: only there columns have to be masked.
            for first, tiles, last in ((0, whole, whole * width), (whole * width, 1, number)):
                if queries == 0 or first == last:
                    continue
                share = triton.cdiv(tiles, max(1, min(tiles, PROGRAMS // blocks)))
                _count_tiles[(blocks * triton.cdiv(tiles, share),)](
                    *(self.queries, self.items, self._bias_or_any(), best, counts),
                    *(queries, first, last, *self.items.stride(), blocks, share * width),
                    PARTIAL=last - first < width,
                    **self._constants(),
                )
        tied, higher = counts.unbind()
        return tied, higher

    def _bias_or_any(self) -> Tensor:
        return self.queries if self.bias is None else self.bias

    def _constants(self) -> dict[str, object]:
        return {
            "COLUMNS": self.items.shape[1],
            "BIASED": self.bias is not None,
            "QUERIES": self.tile.queries,
            "ITEMS": self.tile.items,
            "STEP": self.tile.step,
            "num_warps": self.tile.warps,
            "num_stages": self.tile.stages,
            "enable_fp_fusion": True,
        }


def _once(ids: Tensor, number: int) -> Tensor:
    """Return each row of ids sorted, with -1 for repeats and for what is no item."""
    ids = ids.sort(1).values
    used = (ids >= 0) & (ids < number)
    used[:, 1:] &= ids[:, 1:] != ids[:, :-1]
    return torch.where(used, ids, -1)


def _occurs(ids: Tensor, lists: Tensor) -> Tensor:
    """Return the mask of the ``ids`` ``(Q, H)`` that occur in their row's list ``(Q, M)``."""
    if lists.shape[1] == 0:
        return torch.zeros_like(ids, dtype=torch.bool)
    lists = lists.sort(1).values
    place = torch.searchsorted(lists, ids).clamp_(max=lists.shape[1] - 1)
    return lists.gather(1, place) == ids


def _at(gone: Tensor, ids: Tensor) -> Tensor:
    return gone[ids.clamp(min=0)] if gone.shape[0] else torch.zeros_like(ids, dtype=torch.bool)


@triton.jit
def _count_tiles(
    queries,
    items,
    bias,
    best,
    counts,
    num_queries,
    first_item,
    last_item,
    item_stride,
    column_stride,
    blocks,
    share,
    PARTIAL: tl.constexpr,
    COLUMNS: tl.constexpr,
    BIASED: tl.constexpr,
    QUERIES: tl.constexpr,
    ITEMS: tl.constexpr,
    STEP: tl.constexpr,
):
    # Programs of all blocks of queries go through the same items at the same time, which then come from the L2 cache.
    program = tl.program_id(0)
    query = (program % blocks) * QUERIES + tl.arange(0, QUERIES)
    inside = query < num_queries
    query_row = tl.where(inside, query, 0)
    threshold = tl.load(best + query_row)[:, None]
    first = first_item + (program // blocks) * share
    last = tl.minimum(first + share, last_item)
    tied = tl.zeros((QUERIES,), dtype=tl.int32)
    higher = tl.zeros((QUERIES,), dtype=tl.int32)
    for start in range(first, last, ITEMS):
        item = start + tl.arange(0, ITEMS)
        row = tl.where(item < last, item, first) if PARTIAL else item
        scores = _score_tile(queries, query_row, items, row, item_stride, column_stride, COLUMNS, QUERIES, ITEMS, STEP)
        if BIASED:
            scores += tl.load(bias + row)[None, :]
        if PARTIAL:
            scores = tl.where((item < last)[None, :], scores, float("nan"))
        # Both counts in one sum: above in the lower 16 bits, equal in the upper ones.
        both = tl.sum(tl.where(scores > threshold, 1, tl.where(scores == threshold, 65536, 0)), 1)
        higher += both & 65535
        tied += both >> 16
    tl.atomic_add(counts + query, tied.to(tl.int64), mask=inside, sem="relaxed")
    tl.atomic_add(counts + num_queries + query, higher.to(tl.int64), mask=inside, sem="relaxed")


@triton.jit
def _score_listed(
    queries,
    items,
    bias,
    ids,
    scores,
    num_queries,
    listed,
    num_items,
    item_stride,
    column_stride,
    COLUMNS: tl.constexpr,
    BIASED: tl.constexpr,
    QUERIES: tl.constexpr,
    ITEMS: tl.constexpr,
    STEP: tl.constexpr,
):
    # A tile like those that are counted, but each of its items is one that some query of the block has listed, and only
    # that query's score is kept. A product of another shape could differ in its last bit.
    top = tl.program_id(0) * QUERIES
    slot = tl.program_id(1) * ITEMS + tl.arange(0, ITEMS)
    query = top + tl.arange(0, QUERIES)
    asking = top + slot % QUERIES
    cell = asking.to(tl.int64) * listed + slot // QUERIES
    inside = (asking < num_queries) & (slot // QUERIES < listed)
    item = tl.load(ids + cell, mask=inside, other=-1)
    is_item = (item >= 0) & (item < num_items)
    row = tl.where(is_item, item, 0)
    query_row = tl.where(query < num_queries, query, 0)
    products = _score_tile(queries, query_row, items, row, item_stride, column_stride, COLUMNS, QUERIES, ITEMS, STEP)
    if BIASED:
        products += tl.load(bias + row)[None, :]
    score = tl.sum(tl.where(query[:, None] == asking[None, :], products, 0.0), 0)
    tl.store(scores + cell, tl.where(is_item, score, float("nan")), mask=inside)


@triton.jit
def _score_tile(
    queries,
    query_row,
    items,
    item_row,
    item_stride,
    column_stride,
    COLUMNS: tl.constexpr,
    QUERIES: tl.constexpr,
    ITEMS: tl.constexpr,
    STEP: tl.constexpr,
):
    # Offsets in 64 bits: a table may have more than 2**31 numbers.
    query_row = queries + query_row.to(tl.int64)[:, None] * COLUMNS
    item_row = items + item_row.to(tl.int64)[None, :] * item_stride
    scores = tl.zeros((QUERIES, ITEMS), dtype=tl.float32)
    for left in range(0, COLUMNS, STEP):
        column = left + tl.arange(0, STEP)
        query = query_row + column[None, :]
        item = item_row + column[:, None].to(tl.int64) * column_stride
        if COLUMNS % STEP == 0:
            query_part = tl.load(query)
            item_part = tl.load(item)
        else:
            query_part = tl.load(query, mask=column[None, :] < COLUMNS, other=0.0)
            item_part = tl.load(item, mask=column[:, None] < COLUMNS, other=0.0)
        scores = tl.dot(query_part, item_part.to(query_part.dtype), scores, input_precision="ieee")
    return scores
