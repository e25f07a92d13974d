"""Ranks in constant memory: the items pass by in tiles that are scored, counted and forgotten.

First come the scores of the relevant items, then one pass over all items that counts what scores higher or equal.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mrr_torch._device import compiling
from mrr_torch.catalogue.arguments import Arguments, Counted, Rows, score_type
from mrr_torch.catalogue.scorers import DotProducts, ScoreFunction, cut_products
from mrr_torch.kernels import backend


def count_in_tiles(given: Arguments, rows: Rows) -> Counted:
    """Count the competitors of each query's best relevant item in tiles of items."""
    if isinstance(given.source, ScoreFunction):
        scores, counts = _count(given.source, *rows)
    else:
        queries, items, bias = given.source
        count = _as_one_operation if compiling() else _count_products
        scores, counts = count(queries, items, *rows, bias, given.tile)
    return Counted(counts[1], counts[0], best_relevant(scores, rows.relevant)[1], counts[2])


def best_relevant(scores: Tensor, relevant: Tensor) -> tuple[Tensor, Tensor]:
    """Find the best score of each query's relevant items, and how many of them have it.

    Args:
        scores: ``(Q, M)``; of the relevant items.
        relevant: ``(Q, M)``; their ids, negative where there is none.

    Returns:
        The best score ``(Q, 1)``, NaN where no item has another score, and the number ``(Q,)``, there 0.
    """
    scores = scores.masked_fill(relevant < 0, torch.nan)
    best = scores.nan_to_num(-torch.inf, torch.inf, -torch.inf).amax(1, keepdim=True)
    tied = (scores == best).sum(1)
    return best.masked_fill((tied == 0)[:, None], torch.nan), tied


def score_relevant(scorer: DotProducts | ScoreFunction, relevant: Tensor) -> tuple[Tensor, Tensor]:
    """Score the relevant items of each query ``(Q, M)``, 0 where they are not among the items; and make the buffer."""
    cut = scorer.cut
    # Of scores and of comparisons.
    buffer = torch.empty(2 * cut.rows * cut.width, dtype=scorer.dtype, device=relevant.device)
    return scorer.score_ids(relevant, buffer), buffer


def count_competitors(
    scorer: DotProducts | ScoreFunction, buffer: Tensor, best: Tensor, excluded: list[Tensor], shared: Tensor | None
) -> Tensor:
    """Count the competing items that score above ``best``, those equal to it, and all of them.

    Scores of excluded items are overwritten with NaN, which is neither above a score nor equal to it. Ids stay ids:
    there is no mask of queries x items.

    Args:
        scorer: the items.
        buffer: of two tiles.
        best: ``(Q, 1)``; the score of each query's best relevant item.
        excluded: tensors ``(Q, K)`` of the ids of items that do not compete for a query; ids that are no item mean
            nothing.
        shared: ``(N,)`` bool; items that compete for no query, or None.

    Returns:
        ``(3, Q)`` int64: tied, higher, competing.
    """
    total, (_, step, width) = scorer.num_items, scorer.cut
    counts = torch.zeros(3, best.shape[0], dtype=torch.int64, device=best.device)
    if total == 0:  # an empty part of the items
        return counts
    counts[2] = total if shared is None else total - shared.sum()
    for rows, block in scorer.blocks():
        height, found, threshold = rows.stop - rows.start, counts[:2, rows], best[rows]
        pair = buffer[: 2 * height * width].view(2, height, width)
        ids = torch.cat([part[rows] for part in excluded], 1)
        kernels = backend(ids)
        ids = kernels.sort_rows(ids)
        used = (ids >= 0) & (ids < total)
        used[:, 1:] &= ids[:, 1:] != ids[:, :-1]  # repeats count once
        alone = used if shared is None else used & ~shared[torch.where(used, ids, 0)]
        counts[2, rows] -= alone.sum(1)
        positions = kernels.positions_by_tile(ids, used, total, step, width)
        for first in reversed(range(0, total, step)):  # a function's last slice is still there
            last = min(first + step, total)
            scorer.score(block, first, last, pair[0])
            tile = pair[:, :, : last - first]
            values, above = tile.unbind()
            buffer.index_fill_(0, positions(first), torch.nan)
            if shared is not None:  # NaN plus a score is NaN; adding is several times faster than filling by a mask
                values += torch.zeros_like(values[0]).masked_fill_(shared[first:last], torch.nan)
            # Comparisons that write the type of the scores are vectorised, and so is their sum, exact up to 2**24.
            if compiling():  # traces no `out` that is a slice
                above.copy_(values > threshold)
            else:
                torch.gt(values, threshold, out=above)
            values.eq_(threshold)
            found += tile.sum(-1).long()
    return counts


def _count(
    scorer: DotProducts | ScoreFunction, relevant: Tensor, excluded: list[Tensor], shared: Tensor | None
) -> tuple[Tensor, Tensor]:
    scores, buffer = score_relevant(scorer, relevant)
    return scores, count_competitors(scorer, buffer, best_relevant(scores, relevant)[0], excluded, shared)


def _count_products(
    queries: Tensor,
    items: Tensor,
    relevant: Tensor,
    excluded: list[Tensor],
    shared: Tensor | None,
    bias: Tensor | None,
    tile: int | None,
) -> tuple[Tensor, Tensor]:
    listed = sum(part.shape[1] for part in excluded)
    cut = cut_products(queries.shape[0], items.shape[0], items.shape[1], listed, tile, queries)
    scorer = DotProducts(queries, items, bias, score_type(queries, items), cut)
    return _count(scorer, relevant, excluded, shared)


# In a compiled graph the loop over tiles is one operation: unrolled, it would be compiled once for each tile.
_as_one_operation = torch.library.custom_op(
    "mrr_torch::count_in_tiles",
    _count_products,
    mutates_args=(),
    schema="(Tensor queries, Tensor items, Tensor relevant, Tensor[] excluded, Tensor? shared, Tensor? bias, int? tile)"
    " -> (Tensor, Tensor)",
)


@_as_one_operation.register_fake
def _like_counts(
    queries: Tensor,
    items: Tensor,
    relevant: Tensor,
    excluded: list[Tensor],
    shared: Tensor | None,
    bias: Tensor | None,
    tile: int | None,
) -> tuple[Tensor, Tensor]:
    return (
        queries.new_empty(relevant.shape, dtype=score_type(queries, items)),
        relevant.new_empty(3, queries.shape[0]),
    )
