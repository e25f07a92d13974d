"""Ranks from one flat list of scored items, each with the id of its query: ragged lists, as torchmetrics has them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.kernels import backend
from mrr_torch.kernels.runs import Runs
from mrr_torch.ranks import Known, Outcome, Ranks, with_several
from mrr_torch.ranks.scores import label_to_ignore, rank_relevant


class Items(NamedTuple):
    """The items of a flat list, checked; all ``(T,)``, and None where there is nothing to say.

    Attributes:
        scores: bool ones as uint8.
        labels: relevance.
        indexes: ids of the queries, int64.
        there: False for items that are as if they were not there.
        excluded: True for items that do not compete.
        candidates: ids of the items, int64.
        invalid: True for negative relevance that could not be read.
    """

    scores: Tensor
    labels: Tensor
    indexes: Tensor
    there: Tensor | None = None
    excluded: Tensor | None = None
    candidates: Tensor | None = None
    invalid: Tensor | None = None


@torch.no_grad()
def rank_grouped(
    scores: Tensor,
    relevance: Tensor,
    indexes: Tensor,
    *,
    candidates: Tensor | None = None,
    exclude: Tensor | None = None,
    mask: Tensor | None = None,
    ignore_index: int | None = None,
) -> Ranks:
    """Rank the best-scored relevant item of each query in a flat list.

    All items of a query have to come in one call, in any order.

    Args:
        scores: ``(T,)``; any real dtype, higher is better.
        relevance: ``(T,)``; bool or integer, above 0 is relevant.
        indexes: ``(T,)``; integer id of each item's query, in any order.
        candidates: ``(T,)``; integer id of each item: of a query's items with one id only one competes, the relevant
            one if there is one. Negative ids are padding.
        exclude: ``(T,)`` bool; True for items that never compete. Relevant items are never excluded.
        mask: ``(T,)`` bool; True where an item is real. The others are as if they were not there.
        ignore_index: items with this label are as if they were not there.

    Returns:
        `Ranks` of the queries in the order of their ids. A query of which no item is left (all are masked, say) has no
        relevant item, as in `rank_relevant`. On a CPU of shape ``(queries,)``; elsewhere, and under `torch.compile`, of
        shape ``(T,)``: the number of queries is not known there without synchronising, and the rest is padding rows.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: a wrong shape or device; on a CPU also negative relevance, which elsewhere is marked in the result
            and raised when a metric is computed.

    >>> rank_grouped(torch.tensor([0.2, 0.9, 0.5]), torch.tensor([1, 0, 1]), torch.tensor([7, 7, 3])).higher
    tensor([0, 1])
    """
    items = check_items(scores, relevance, indexes, candidates, exclude, mask, ignore_index)
    return rank_items(items)[0]


def check_items(
    scores: Any, relevance: Any, indexes: Any, candidates: Any, exclude: Any, mask: Any, ignore_index: int | None
) -> Items:
    """Check a flat list; the arguments are those of `rank_grouped`."""
    scores = _checks.scores_tensor("preds", scores, may_be_empty=True)
    if scores.ndim != 1:
        raise ValueError(_checks.message("preds", "shape (T,) with indexes", f"shape {_checks.shape(scores)}"))
    labels = _checks.relevance_tensor("target", relevance, scores)
    indexes = _checks.integer_tensor("indexes", indexes, scores)
    _checks.same_shape("indexes", indexes, _checks.shape(scores))
    there = None if mask is None else _checks.bool_tensor("mask", mask, scores)
    excluded = None if exclude is None else _checks.bool_tensor("exclude", exclude, scores)
    ignore_index = label_to_ignore(labels, ignore_index)
    if ignore_index is not None:
        there = labels != ignore_index if there is None else (labels != ignore_index) & there
    if candidates is not None:
        candidates = _checks.integer_tensor("candidates", candidates, scores)
        _checks.same_shape("candidates", candidates, _checks.shape(scores))
        there = candidates >= 0 if there is None else (candidates >= 0) & there
    scores = scores.view(torch.uint8) if scores.dtype == torch.bool else scores
    negative = labels < 0 if labels.dtype.is_signed else None
    if negative is not None and there is not None:
        negative &= there
    invalid = _checks.refuse(negative, "target", "relevance >= 0 (or ignore_index)", lambda: int(labels[negative][0]))
    return Items(scores, labels, indexes, there, excluded, candidates, invalid)


@torch.no_grad()
def rank_items(items: Items) -> tuple[Ranks, Known, Tensor]:
    """Return the ranks of the queries in the order of their ids, what is known of them, and the ids.

    Padding rows have the id `NO_ID`.
    """
    scores, labels, indexes, *options = items
    kernel = backend(indexes)
    runs = kernel.runs_if_sorted(indexes)
    if runs is None:
        indexes, order = indexes.sort(stable=True)  # ids are sorted, never scores
        scores, labels = scores[order], labels[order]
        options = [None if value is None else value[order] for value in options]
        runs = kernel.runs(indexes)
    there, excluded, candidates, invalid = options
    if candidates is not None:
        kept = _one_each(candidates, indexes, labels, there)
        there = kept if there is None else kept & there
    ids = kernel.ids_of_runs(indexes, runs)
    if runs.even and runs.number:  # lists of one length are a matrix

        def matrix(values: Tensor | None) -> Tensor | None:
            return None if values is None else values.view(runs.number, -1)

        ranks = rank_relevant(matrix(scores), matrix(labels), exclude=matrix(excluded), mask=matrix(there))  # type: ignore[arg-type]
        most, exact = scores.shape[0] // runs.number, excluded is None and there is None
        return ranks, Known(most, False, exact, most if exact else 0, most), ids
    return _rank_runs(scores, labels, excluded, there, invalid, runs), Known(scores.shape[0], most=scores.shape[0]), ids


def _rank_runs(
    scores: Tensor, labels: Tensor, excluded: Tensor | None, there: Tensor | None, invalid: Tensor | None, runs: Runs
) -> Ranks:
    """Rank items ``(T,)`` sorted by query; ``runs`` knows where the queries start."""
    kernel = backend(scores)
    relevant = labels if labels.dtype == torch.bool else labels > 0
    relevant = relevant if there is None else relevant & there
    competes = None if excluded is None else ~excluded | relevant
    if there is not None:
        competes = there if competes is None else there & competes
    counts = kernel.count_runs(scores, relevant, competes, runs)
    none = counts.level == 0
    outcome = _checks.mark(counts.level, none, Outcome.NAN)
    outcome = _checks.mark(outcome, counts.number == 0, Outcome.EMPTY)
    if invalid is not None:
        outcome = _checks.mark(outcome, kernel.any_in_runs(invalid, runs), Outcome.BAD_RELEVANCE)
    outcome = _checks.mark(outcome, runs.padding, Outcome.PADDING)
    higher, tied = counts.higher.masked_fill(none, 0), (counts.equal - counts.level).masked_fill(none, 0)
    return Ranks(higher, tied, outcome, with_several(counts.candidates, counts.number > 1))


def _one_each(candidates: Tensor, indexes: Tensor, labels: Tensor, there: Tensor | None) -> Tensor:
    """Mark one item for each id of a query, a relevant one if there is one; ``indexes`` are sorted."""
    relevant = labels > 0 if there is None else (labels > 0) & there
    # Of two keys, the last sort decides: by preference, by id, by query.
    order = (~relevant).to(torch.uint8).sort(stable=True).indices
    if there is not None:
        order = order[(~there[order]).to(torch.uint8).sort(stable=True).indices]
    order = order[candidates[order].sort(stable=True).indices]
    order = order[indexes[order].sort(stable=True).indices]
    ids, queries = candidates[order], indexes[order]
    first = ids == ids
    first[1:] = (ids[1:] != ids[:-1]) | (queries[1:] != queries[:-1])
    return torch.empty_like(first).scatter_(0, order, first)
