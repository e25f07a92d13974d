"""Ranks from one flat list of scored items, each with the id of its query: ragged lists, as torchmetrics has them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.ranks.base import ABSENT, BAD_RELEVANCE, EMPTY, NAN, Ranks, RanksOfSeveral, mark, unranked
from mrr_torch.ranks.dense import rank_relevant
from mrr_torch.ranks.labels import check_labels, lowest, negative_labels
from mrr_torch.ranks.tiles import comparable, row_tiles

# Items on a CPU that are ranked together, so that what is known of each stays in its caches.
BLOCK = 2**18


@torch.no_grad()
def rank_grouped(
    scores: Tensor,
    relevance: Tensor,
    indexes: Tensor,
    *,
    exclude: Tensor | None = None,
    mask: Tensor | None = None,
    ignore_index: int | None = None,
) -> Ranks:
    """Rank the best-scored relevant item of each query in a flat list.

    All items of a query have to come in one call, in any order: queries of different calls are different queries.

    Args:
        scores: ``(T,)``; any real dtype, higher is better.
        relevance: ``(T,)``; bool or integer, above 0 is relevant.
        indexes: ``(T,)``; integer id of each item's query, in any order.
        exclude: ``(T,)`` bool; True for items that never compete. Relevant items are never excluded.
        mask: ``(T,)`` bool; True where an item is real. The others are as if they were not there, and a query without
            any is none.
        ignore_index: items with this label are as if they were not there.

    Returns:
        `Ranks` of the queries in the order of their ids. On a CPU of shape ``(queries,)``; elsewhere, and under
        `torch.compile`, of shape ``(T,)``: the number of queries is not known there without waiting, and the rest is
        marked as no query.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: a wrong shape or device; on a CPU also negative relevance, which elsewhere is marked in the result
            and raised when a metric is computed.

    >>> rank_grouped(torch.tensor([0.2, 0.9, 0.5]), torch.tensor([1, 0, 1]), torch.tensor([7, 7, 3])).higher
    tensor([0, 1])
    """
    scores = _checks.scores_tensor("preds", scores, may_be_empty=True)
    if scores.ndim != 1:
        raise ValueError(_checks.message("preds", "shape (T,) with indexes", f"shape {_checks.shape(scores)}"))
    check_labels(relevance, scores)
    indexes = _checks.integer_tensor("indexes", indexes, scores)
    _checks.same_shape("indexes", indexes, _checks.shape(scores))
    real = None if mask is None else _checks.bool_tensor("mask", mask, scores)
    excluded = None if exclude is None else _checks.bool_tensor("exclude", exclude, scores)
    scores = comparable(scores)
    if ignore_index is not None:
        labelled = relevance != ignore_index
        real = labelled if real is None else labelled & real

    if real is not None and _checks.on_host(real):  # what is not there makes no query either, as in torchmetrics
        scores, relevance, indexes = scores[real], relevance[real], indexes[real]
        excluded, real = None if excluded is None else excluded[real], None
    if not _checks.on_host(indexes):
        indexes, order = indexes.sort()  # ids are sorted, never scores
        real, excluded = (None if mask is None else mask[order] for mask in (real, excluded))
        return _rank_segments(scores[order], relevance[order], indexes, scores.shape[0], excluded, real)
    if indexes.shape[0] == 0:
        return RanksOfSeveral(*torch.zeros(4, 0, dtype=torch.int64))
    starts = _starts(indexes)
    ids = indexes[starts]
    if bool((ids[1:] <= ids[:-1]).any()):
        indexes, order = indexes.sort()
        scores, relevance, excluded = scores[order], relevance[order], None if excluded is None else excluded[order]
        starts = _starts(indexes)
    lengths = starts.diff(append=starts.new_tensor([indexes.shape[0]]))
    if bool((lengths == lengths[0]).all()):  # lists of one length are a matrix

        def matrix(items: Tensor) -> Tensor:
            return items.view(lengths.shape[0], -1)

        return rank_relevant(
            matrix(scores),
            matrix(relevance),
            exclude=None if excluded is None else matrix(excluded),
        )
    if relevance.dtype != torch.bool:
        negative_labels(relevance, None)
    parts = []
    for runs, items in _blocks(starts, starts + lengths):
        out = None if excluded is None else excluded[items]
        parts.append(_rank_runs(scores[items], relevance[items], out, starts[runs] - items.start, lengths[runs]))
    return RanksOfSeveral(*(torch.cat(fields) for fields in zip(*parts, strict=True)))


def _blocks(starts: Tensor, ends: Tensor) -> Iterator[tuple[slice, slice]]:
    """Give runs, and the items they hold: as many runs as fit into a block, at least one."""
    first = 0
    while first < starts.shape[0]:
        last = max(first + 1, int(torch.searchsorted(ends, starts[first] + BLOCK, right=True)))
        yield slice(first, last), slice(int(starts[first]), int(ends[last - 1]))
        first = last


def _starts(indexes: Tensor) -> Tensor:
    """Return where a run of equal ids starts."""
    ids = indexes.numpy()
    return torch.from_numpy(np.append(0, np.flatnonzero(ids[1:] != ids[:-1]) + 1))


def _rank_runs(
    scores: Tensor, relevance: Tensor, excluded: Tensor | None, starts: Tensor, lengths: Tensor
) -> RanksOfSeveral:
    """Count per run on a CPU, with NumPy, which reduces runs several times faster than torch's scatters.

    Args:
        scores: ``(items,)``.
        relevance: ``(items,)``.
        excluded: ``(items,)`` bool, or None.
        starts: ``(runs,)``; where each run starts, the first at 0.
        lengths: ``(runs,)``; at least 1.
    """
    half = scores.dtype in (torch.float16, torch.bfloat16)
    score = (scores.float() if half else scores).resolve_neg().numpy()
    wanted, first = (relevance > 0).numpy(), starts.numpy()

    def counts(where: np.ndarray) -> Tensor:
        return torch.from_numpy(np.add.reduceat(where, first, dtype=np.int32)).long()

    # `fmax` passes over NaN, which can't be the best.
    nothing = score.dtype.type(lowest(scores.dtype))
    best = np.fmax.reduceat(np.where(wanted, score, nothing), first)
    threshold = np.repeat(best, lengths.numpy())
    higher, equal, candidates = score > threshold, score == threshold, lengths
    if excluded is not None:
        competes = ~excluded.numpy() | wanted
        higher, equal, candidates = higher & competes, equal & competes, counts(competes)
    same = counts(equal)
    # A score that stands alone is that of the relevant item itself (or the run has none).
    relevant = counts(equal & wanted) if int(same.max()) > 1 else same
    outcome, ranked = relevant, None
    if not best.min() > nothing:  # above the lowest value there is an item with a score; elsewhere it is looked for
        ranked = counts(wanted & (score == score)) > 0
        outcome = mark(mark(outcome, ~ranked, NAN), counts(wanted) == 0, EMPTY)
    return RanksOfSeveral(unranked(counts(higher), ranked), unranked(same - relevant, ranked), outcome, candidates)


def _rank_segments(
    scores: Tensor, relevance: Tensor, indexes: Tensor, queries: int, excluded: Tensor | None, real: Tensor | None
) -> Ranks:
    """Count per run of equal ids; rows beyond the last run are marked as no query."""
    segments = torch.zeros_like(indexes)
    torch.cumsum(indexes[1:] != indexes[:-1], 0, out=segments[1:])
    best = torch.full((queries,), lowest(scores.dtype), dtype=scores.dtype, device=scores.device)
    counts = torch.zeros(8, queries, dtype=torch.int32, device=scores.device)
    higher, equal, in_tie, candidates, some, scored, bad, items = counts
    parts = list(row_tiles(scores.shape[0], 1, scores.device))

    def add(total: Tensor, part: slice, where: Tensor) -> None:
        total.index_add_(0, segments[part], where.int())

    for part in parts:
        score, there = scores[part], None if real is None else real[part]
        found = relevance[part] > 0 if there is None else (relevance[part] > 0) & there
        add(bad, part, negative_labels(relevance[part], there))
        add(items, part, torch.ones_like(found) if there is None else there)
        add(some, part, found)
        found = found & (score == score)  # a NaN can't be the best
        add(scored, part, found)
        best.scatter_reduce_(0, segments[part], torch.where(found, score, lowest(scores.dtype)), "amax")
    for part in parts:
        score, threshold = scores[part], best[segments[part]]
        found = relevance[part] > 0
        keep = torch.ones_like(found) if excluded is None else ~excluded[part] | found
        if real is not None:
            keep &= real[part]
        add(candidates, part, keep)
        add(higher, part, (score > threshold) & keep)
        same = (score == threshold) & keep
        add(equal, part, same)
        add(in_tie, part, same & found)
    relevant = mark(mark(in_tie.long(), scored == 0, NAN), some == 0, EMPTY)
    relevant = mark(mark(relevant, items == 0, ABSENT), bad > 0, BAD_RELEVANCE)
    higher, tied = (unranked(each.long(), scored > 0) for each in (higher, equal - in_tie))
    return RanksOfSeveral(higher, tied, relevant, candidates.long())
