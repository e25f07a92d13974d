"""Ranks from a row of scores per query: one relevant item by its column, or several by a relevance row."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.ranks.base import (
    BAD_EXCLUDE,
    BAD_RELEVANCE,
    BAD_TARGET,
    EMPTY,
    IGNORED,
    NAN,
    Ranks,
    RanksOfSeveral,
    mark,
    unranked,
)
from mrr_torch.ranks.competitors import check_options, competing, excluded_beyond, flatten, subtract_excluded
from mrr_torch.ranks.labels import best_relevant, check_labels, negative_rows
from mrr_torch.ranks.tiles import Counts, TileMask, comparable, count


@torch.no_grad()
def rank_target(
    scores: Tensor,
    target: Tensor,
    *,
    candidates: Tensor | None = None,
    exclude: Tensor | None = None,
    mask: Tensor | None = None,
    ignore_index: int | None = None,
) -> Ranks:
    """Rank one relevant item per query, given by its column.

    A score strictly above the target's counts as ``higher``, an equal one as ``tied``; scores are compared in their
    own type and their sign means nothing. A NaN of another item is neither; a NaN target is a miss that is counted.

    Args:
        scores: ``(..., N)``; any real dtype, higher is better.
        target: ``(...)``; integer column of the relevant item, 0..N-1.
        candidates: ``(..., N)``; integer id of each column. Columns that hold the target's id never compete, repeated
            ids compete once (the first column), negative ids are padding.
        exclude: what never competes: ids ``(..., H)`` padded with negative ids, ids ``(H,)`` for all queries, or a
            bool mask ``(..., N)``. Ids are columns, or ids in ``candidates`` where those are given. Repeats count
            once. The target is never excluded, even when it is listed.
        mask: ``(..., N)`` bool; True where a column other than the target's is real.
        ignore_index: queries with this target are skipped.

    Returns:
        `Ranks` of shape ``(...)``.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: a wrong shape or device; on a CPU also ids out of range. On an accelerator those are marked in the
            result and raised when a metric is computed.

    >>> rank_target(torch.tensor([[0.1, 0.7, 0.4]]), torch.tensor([2])).higher
    tensor([1])
    """
    scores = _checks.scores_tensor("preds", scores)
    queries, width = _checks.shape(scores)[:-1], scores.shape[-1]
    target = _checks.integer_tensor("target", target, scores, expected="integer ids, or bool or integer relevance")
    _checks.same_shape("target", target, queries)
    options = check_options(scores, exclude, mask, candidates)
    if _is_scattered(scores):
        return _rank_each(rank_target, scores, target, candidates, exclude, mask, ignore_index)

    flat, ids = flatten(comparable(scores)), _checks.flat(target)
    skipped = None if ignore_index is None else ids == ignore_index
    outside = _outside(ids, width, skipped, ignore_index)
    beyond = excluded_beyond(options, width)
    own = (ids if skipped is None and outside is None else ids.clamp(0, width - 1))[:, None]
    same = _checks.is_one_number(ids) and _checks.on_host(ids)  # one column for all queries, as in sampled mode
    best = flat.narrow(1, int(own[0, 0]), 1) if same else flat.gather(1, own)

    keep = competing(options, lambda rows, columns: _places(columns, flat.device) == own[rows])
    counts = count(flat, best, keep)
    if keep is None and options.excluded_ids is not None:
        counts = subtract_excluded(counts, flat, best, options.excluded_ids, lambda listed, rows: listed == own[rows])
    tied = counts.equal - 1  # less the target, which does not equal itself if it is NaN
    relevant = counts.relevant
    if not _checks.on_host(tied) or (tied.numel() and int(tied.min()) < 0):
        relevant = mark(relevant, tied < 0, NAN)
        tied = tied.clamp(min=0)
    relevant = mark(relevant, skipped, IGNORED)
    return _finish(Ranks, counts, tied, relevant, queries, {BAD_EXCLUDE: beyond, BAD_TARGET: outside})


@torch.no_grad()
def rank_relevant(
    scores: Tensor,
    relevance: Tensor,
    *,
    candidates: Tensor | None = None,
    exclude: Tensor | None = None,
    mask: Tensor | None = None,
    ignore_index: int | None = None,
) -> Ranks:
    """Rank the best-scored of several relevant items per query.

    Args:
        scores: ``(..., N)``; any real dtype, higher is better.
        relevance: ``(..., N)``; bool or integer, above 0 is relevant.
        candidates: ``(..., N)``; integer id of each column, as in `rank_target`.
        exclude: what never competes, as in `rank_target`; relevant items are never excluded.
        mask: ``(..., N)`` bool; True where the column is real. The others are as if they were not there.
        ignore_index: columns with this label do not compete.

    Returns:
        `Ranks` of shape ``(...)``. A query without a relevant item has ``relevant`` 0; one whose relevant items all
        score NaN is a miss that is counted. NaN of another item is never above and never tied.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: a wrong shape or device; on a CPU also ids out of range and negative relevance. On an accelerator
            those are marked in the result and raised when a metric is computed.

    >>> rank_relevant(torch.tensor([[0.9, 0.4, 0.4, 0.1]]), torch.tensor([[0, 1, 0, 1]]))[:3]
    (tensor([1]), tensor([1]), tensor([1]))
    """
    scores = _checks.scores_tensor("preds", scores)
    check_labels(relevance, scores)
    options = check_options(scores, exclude, mask, candidates)
    if _is_scattered(scores):
        return _rank_each(rank_relevant, scores, relevance, candidates, exclude, mask, ignore_index)

    queries, flat, labels = _checks.shape(scores)[:-1], flatten(comparable(scores)), flatten(relevance)
    beyond = excluded_beyond(options, flat.shape[1])
    # Masked and ignored columns are as if they were not there, whatever their label says.
    real = options.real if ignore_index is None else _not_ignored(labels, ignore_index, options.real)
    if options.candidates is not None:
        real = _named(options.candidates, real)

    def relevant_at(rows: slice, columns: slice) -> Tensor:
        found = labels[rows, columns].bool()  # none is negative, or the query is marked
        return found if real is None else found & real(rows, columns)

    keep = competing(options._replace(real=real), relevant_at)
    negative = negative_rows(labels, real)
    best, some, scored = best_relevant(flat, relevant_at, keep)
    counts = count(flat, best, keep, relevant_at)
    if keep is None and options.excluded_ids is not None:
        counts = subtract_excluded(
            counts, flat, best, options.excluded_ids, lambda listed, rows: labels[rows].gather(1, listed) > 0
        )
    relevant = counts.relevant
    if some is not None and scored is not None:
        relevant = mark(mark(relevant, ~scored, NAN), ~some, EMPTY)
    counts = counts._replace(higher=unranked(counts.higher, scored))
    tied = unranked(counts.equal - counts.relevant, scored)
    return _finish(RanksOfSeveral, counts, tied, relevant, queries, {BAD_EXCLUDE: beyond, BAD_RELEVANCE: negative})


def _outside(ids: Tensor, width: int, skipped: Tensor | None, ignore_index: int | None) -> Tensor | None:
    """Mark targets that are no column; None if there is none, and where that can be seen there may be none."""
    if _checks.on_host(ids) and ids.numel() and skipped is None:  # the usual case in one pass
        low, high = map(int, (ids[:1] if _checks.is_one_number(ids) else ids).aminmax())
        if low >= 0 and high < width:
            return None
    outside = (ids < 0) | (ids >= width)
    if skipped is not None:
        outside &= ~skipped
    if _checks.on_host(outside):
        if not bool(outside.any()):
            return None
        wanted = f"ids in 0..{width - 1}" + ("" if ignore_index is None else f" (or ignore_index={ignore_index})")
        raise ValueError(_checks.message("target", wanted, int(ids[outside][0])))
    return outside


def _places(columns: slice, device: torch.device) -> Tensor:
    return torch.arange(columns.start, columns.stop, device=device)


def _named(candidates: Tensor, real: TileMask | None) -> TileMask:
    """Leave out columns of padding: negative ids."""

    def kept(rows: slice, columns: slice) -> Tensor:
        named = candidates[rows, columns] >= 0
        return named if real is None else named & real(rows, columns)

    return kept


def _not_ignored(labels: Tensor, ignore_index: int, real: TileMask | None) -> TileMask:
    def kept(rows: slice, columns: slice) -> Tensor:
        labelled = labels[rows, columns] != ignore_index
        return labelled if real is None else labelled & real(rows, columns)

    return kept


def _finish(
    kind: type[Ranks],
    counts: Counts,
    tied: Tensor,
    relevant: Tensor,
    queries: tuple[int, ...],
    faults: dict[int, Tensor | None],
) -> Ranks:
    for outcome, where in faults.items():
        relevant = mark(relevant, where, outcome)
    fields = (counts.higher, tied, relevant, counts.candidates)
    return kind(*fields) if len(queries) == 1 else kind(*(field.reshape(queries) for field in fields))


def _is_scattered(scores: Tensor) -> bool:
    """Say whether the leading dimensions can't be flattened without a copy of the scores (`logits[:, :-1]`)."""
    if scores.ndim < 3 or scores.numel() == 0 or torch.compiler.is_compiling():
        return False
    try:
        scores.view(-1, scores.shape[-1])
    except RuntimeError:
        return True
    return False


def _rank_each(
    rank: Callable[..., Ranks],
    scores: Tensor,
    target: Tensor,
    candidates: Tensor | None,
    exclude: Tensor | None,
    mask: Tensor | None,
    ignore_index: int | None,
) -> Ranks:
    """Rank each index of the first dimension by itself: views, never a copy of the scores."""
    parts = [
        rank(
            scores[i],
            target[i],
            candidates=None if candidates is None else candidates[i],
            exclude=exclude if exclude is None or exclude.ndim == 1 else exclude[i],
            mask=None if mask is None else mask[i],
            ignore_index=ignore_index,
        )
        for i in range(scores.shape[0])
    ]
    return type(parts[0])(*(torch.stack(fields) for fields in zip(*parts, strict=True)))
