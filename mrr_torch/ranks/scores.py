"""Ranks from a row of scores per query: the arguments are checked, and the rows cut into tiles for `rank_tile`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.kernels import backend
from mrr_torch.ranks import Outcome, Ranks
from mrr_torch.ranks.tile import Rows, rank_tile


@torch.no_grad()
def rank_target(
    scores: Tensor,
    target: Tensor,
    *,
    candidates: Tensor | None = None,
    exclude: Tensor | None = None,
    mask: Tensor | None = None,
    ignore_index: int | None = None,
    miss_index: int | None = None,
) -> Ranks:
    """Rank the relevant item of each query, or the best-scored of several, given by their columns.

    A score strictly above the target's counts as ``higher``, an equal one as ``tied``; scores are compared in their
    own type and their sign means nothing. A NaN of another item is neither; a NaN target is a miss that is counted.
    Of several relevant items the best counts, and the others do not compete.

    Args:
        scores: ``(..., N)``; any real dtype, higher is better.
        target: ``(...)``; integer column of the relevant item, 0..N-1; or ``(..., M)``, several, padded with negative
            numbers.
        candidates: ``(..., N)``, or ``(N,)`` for all queries; integer id of each column. Columns that hold the
            target's id never compete, repeated ids compete once (the first column), negative ids are padding.
        exclude: what never competes: ids ``(..., H)`` padded with negative ids, ids ``(H,)`` for all queries, or a
            bool mask ``(..., N)``. Ids are columns, or ids in ``candidates`` where those are given. Repeats count
            once. The target is never excluded, even when it is listed.
        mask: ``(..., N)`` bool, or ``(N,)`` for all queries; True where a column other than the target's is real.
        ignore_index: queries with this target are skipped.
        miss_index: queries with this target count 0 and stay in the mean: the held-out item is not in the catalogue.

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
    if target.ndim >= scores.ndim:
        special = {"ignore_index": ignore_index, "miss_index": miss_index}
        _checks.refuse_given(special, "None with several targets a query")
        return _rank_columns("target", scores, target, candidates, exclude, mask)
    _checks.same_shape("target", target, queries)
    rows = _rows(scores, candidates, exclude, mask)
    if _is_scattered(scores):
        given = {"target": target, "candidates": candidates, "exclude": exclude, "mask": mask}
        return _rank_each(rank_target, scores, given, {"ignore_index": ignore_index, "miss_index": miss_index})

    ids = _checks.flat(target)
    skipped = {Outcome.IGNORED: ignore_index, Outcome.MISSED: miss_index}
    marks = {outcome: ids == index for outcome, index in skipped.items() if index is not None}
    outside = _outside(ids, width, ignore_index, miss_index)
    # What is no column is marked below; its row is ranked as if it were one.
    columns = (ids if not marks and outside is None else ids.clamp(0, width - 1)).unsqueeze(1)
    return _rank(rows._replace(columns=columns), queries, {**marks, Outcome.BAD_TARGET: outside})


@torch.no_grad()
def rank_first(
    scores: Tensor, *, candidates: Tensor | None = None, exclude: Tensor | None = None, mask: Tensor | None = None
) -> Ranks:
    """Rank the item in column 0 of each query; the arguments are those of `rank_target`."""
    scores = _checks.scores_tensor("preds", scores)
    rows = _rows(scores, candidates, exclude, mask)
    if _is_scattered(scores):
        return _rank_each(rank_first, scores, {"candidates": candidates, "exclude": exclude, "mask": mask}, {})
    columns = torch.zeros(rows.scores.shape[0], 1, dtype=torch.int64, device=scores.device)
    return _rank(rows._replace(columns=columns, column=0), _checks.shape(scores)[:-1], {})


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
    """Rank the best-scored of several relevant items per query, given by labels.

    Args:
        scores: ``(..., N)``; any real dtype, higher is better.
        relevance: ``(..., N)``; bool or integer, above 0 is relevant.
        candidates: ``(..., N)``, or ``(N,)`` for all queries; integer id of each column, as in `rank_target`.
        exclude: what never competes, as in `rank_target`; relevant items are never excluded.
        mask: ``(..., N)`` bool, or ``(N,)`` for all queries; True where the column is real. The others are as if they
            were not there.
        ignore_index: columns with this label do not compete.

    Returns:
        `Ranks` of shape ``(...)``. A query without a relevant item (because all its columns are masked, say) has
        ``relevant`` `Outcome.EMPTY`; one whose relevant items all score NaN is a miss that is counted. NaN of another
        item is never above and never tied.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: a wrong shape or device; on a CPU also ids out of range and negative relevance. On an accelerator
            those are marked in the result and raised when a metric is computed.

    >>> rank_relevant(torch.tensor([[0.9, 0.4, 0.4, 0.1]]), torch.tensor([[0, 1, 0, 1]]))[:3]
    (tensor([1]), tensor([1]), tensor([1]))
    """
    scores = _checks.scores_tensor("preds", scores)
    labels = _checks.relevance_tensor("target", relevance, scores)
    rows = _rows(scores, candidates, exclude, mask)
    if _is_scattered(scores):
        given = {"relevance": labels, "candidates": candidates, "exclude": exclude, "mask": mask}
        return _rank_each(rank_relevant, scores, given, {"ignore_index": ignore_index})
    rows = rows._replace(labels=_checks.flatten(labels), ignore_index=label_to_ignore(labels, ignore_index))
    return _rank(rows, _checks.shape(scores)[:-1], {})


@torch.no_grad()
def rank_ids(
    scores: Tensor,
    relevant: Tensor,
    *,
    candidates: Tensor | None = None,
    exclude: Tensor | None = None,
    mask: Tensor | None = None,
) -> Ranks:
    """Rank the best-scored of the relevant items, given by their ids ``(..., M)`` padded with negative ids.

    Ids are those in ``candidates``, or column numbers without it; the other arguments are those of `rank_target`. An id
    that no candidate has is not retrieved: where none of a query's is, it is a miss.
    """
    scores = _checks.scores_tensor("preds", scores)
    queries = _checks.shape(scores)[:-1]
    ids = _checks.integer_tensor("relevant", relevant, scores)
    ids = ids[..., None] if ids.ndim < scores.ndim else ids
    if candidates is None:
        return _rank_columns("relevant", scores, ids, None, exclude, mask)
    if _checks.shape(ids)[:-1] != queries:
        expected = f"shape {(*queries, 'M')}"
        raise ValueError(_checks.message("relevant", expected, f"shape {_checks.shape(ids)}"))
    rows = _rows(scores, candidates, exclude, mask)
    if _is_scattered(scores):
        given = {"relevant": ids, "candidates": candidates, "exclude": exclude, "mask": mask}
        return _rank_each(rank_ids, scores, given, {})
    listed = _checks.flatten(ids)
    ranks = _rank(rows._replace(relevant_ids=listed), queries, {})
    wanted = (listed >= 0).any(1).reshape(queries)
    higher, tied, relevant, candidates = ranks
    return Ranks(higher, tied, _checks.mark(relevant, (relevant == 0) & wanted, Outcome.MISSED), candidates)


def _rank_columns(name: str, scores: Tensor, columns: Tensor, candidates: Any, exclude: Any, mask: Any) -> Ranks:
    """Rank the best-scored of the relevant items in ``columns`` ``(..., M)``, padded with negative numbers."""
    queries, width = _checks.shape(scores)[:-1], scores.shape[-1]
    if _checks.shape(columns)[:-1] != queries:
        expected = f"shape {queries}, or {(*queries, 'M')} for several relevant items"
        raise ValueError(_checks.message(name, expected, f"shape {_checks.shape(columns)}"))
    rows = _rows(scores, candidates, exclude, mask)
    if _is_scattered(scores):
        given = {"columns": columns, "candidates": candidates, "exclude": exclude, "mask": mask}
        return _rank_each(functools.partial(_rank_columns, name), scores, given, {})
    columns = _checks.flatten(columns)
    beyond = (columns >= width).any(1)
    outside = _checks.refuse(beyond, name, _ids(width), lambda: int(columns.max()))
    if columns.shape[1] < 2:  # one column that may be padding is not the one column that each query has
        columns = torch.nn.functional.pad(columns, (0, 2 - columns.shape[1]), value=-1)
    return _rank(rows._replace(columns=columns), queries, {Outcome.BAD_TARGET: outside})


def label_to_ignore(labels: Tensor, ignore_index: int | None) -> int | None:
    """Return ``ignore_index`` if ``labels`` can hold it; comparing another number would wrap around."""
    if ignore_index is None or labels.dtype == torch.bool:
        return ignore_index
    bounds = torch.iinfo(labels.dtype)
    return ignore_index if bounds.min <= ignore_index <= bounds.max else None


def _rows(scores: Tensor, candidates: Any, exclude: Any, mask: Any) -> Rows:
    """Check types, shapes and devices of the optional arguments, and flatten all to rows."""
    shape, columns = _checks.shape(scores), _checks.shape(scores)[-1:]
    ids = excluded = None
    if isinstance(exclude, Tensor) and exclude.dtype == torch.bool:
        excluded = _checks.flatten(_checks.bool_tensor("exclude", exclude, scores))
    elif exclude is not None:
        ids = _checks.integer_tensor("exclude", exclude, scores, expected="a tensor of integer ids or a bool mask")
        if ids.ndim == 0 or (ids.ndim > 1 and _checks.shape(ids)[:-1] != shape[:-1]):
            expected = f"shape {(*shape[:-1], 'H')}, (H,) for all queries, or a bool mask of shape {shape}"
            raise ValueError(_checks.message("exclude", expected, f"shape {_checks.shape(ids)}"))
        ids = _checks.flatten(ids)  # of a single query, (N,) scores, (H,) is the same thing
    if mask is not None:
        shared = isinstance(mask, Tensor) and mask.shape == columns
        like = scores.new_empty(1).expand(columns) if shared else scores  # there may be no row to compare with
        mask = _checks.flatten(_checks.bool_tensor("mask", mask, like))
    if candidates is not None:
        candidates = _checks.integer_tensor("candidates", candidates, scores)
        if _checks.shape(candidates) not in (shape, columns):
            _checks.same_shape("candidates", candidates, shape)
        candidates = _checks.flatten(candidates)
    # Comparisons can write into the type of the scores, but not into bool.
    scores = scores.view(torch.uint8) if scores.dtype == torch.bool else scores
    flat = scores if _is_scattered(scores) else _checks.flatten(scores)
    return Rows(flat, exclude=ids, excluded=excluded, mask=mask, candidates=candidates)


def _rank(rows: Rows, queries: tuple[int, ...], marks: dict[Outcome, Tensor | None]) -> Ranks:
    """Rank all rows, in tiles where masks of the scores' shape have to be made; set the marks that are not None."""
    number, width = rows.scores.shape
    marks = {**marks, Outcome.BAD_EXCLUDE: _excluded_beyond(rows)}
    kernel, tiles = backend(rows.scores), [slice(0, number)]
    if rows.masked:
        tiles = list(kernel.row_tiles(number, width, kernel.LABELS_TILE if rows.labelled else kernel.TILE))
    if len(tiles) < 2:
        ranks = rank_tile(rows)
    else:
        parts = [rank_tile(rows.cut(tile)) for tile in tiles]
        ranks = Ranks(*(torch.cat(fields) for fields in zip(*parts, strict=True)))
    higher, tied, relevant, candidates = ranks
    for outcome, where in marks.items():
        relevant = _checks.mark(relevant, where, outcome)
    fields = (higher, tied, relevant, candidates)  # torch 2.11 cannot compile `_replace` of what is returned
    return Ranks(*(fields if len(queries) == 1 else (field.reshape(queries) for field in fields)))


def _excluded_beyond(rows: Rows) -> Tensor | None:
    """Return the mask of the rows that exclude a column that does not exist; raise where it can be read."""
    if rows.exclude is None or rows.candidates is not None or not rows.scores.shape[0]:  # or no row to be marked
        return None
    ids, width = rows.exclude, rows.scores.shape[1]

    def worst() -> str:
        most = int(ids.max())
        return f"{most} (exclude.masked_fill(exclude >= {width}, -1), if that is the padding)"

    return _checks.refuse((ids >= width).any(1), "exclude", f"{_ids(width)}, padded with negative ids", worst)


def _outside(ids: Tensor, width: int, ignore_index: int | None, miss_index: int | None) -> Tensor | None:
    """Return the mask of the targets that are no column; None if there is none. Raise where they can be read."""
    if ignore_index is None and miss_index is None and backend(ids).within(ids, width):
        return None
    outside = ids != ids.clamp(0, width - 1)
    known = {"ignore_index": ignore_index, "miss_index": miss_index}
    for index in known.values():
        if index is not None:
            outside &= ids != index
    besides = " or ".join(f"{name}={index}" for name, index in known.items() if index is not None)
    expected = _ids(width) + (f" (or {besides})" if besides else "")
    return _checks.refuse(outside, "target", expected, lambda: int(ids[outside][0]))


def _ids(width: int) -> str:
    return f"ids in 0..{width - 1}"


def _is_scattered(scores: Tensor) -> bool:
    """Return True if the leading dimensions can't be flattened without a copy of the scores (`logits[:, :-1]`)."""
    if scores.ndim < 3 or scores.numel() == 0:
        return False
    # Dimensions flatten where each stride is that of the next dimension times its size; a size of 1 has no stride.
    dims = [(size, stride) for size, stride in zip(scores.shape[:-1], scores.stride()[:-1], strict=True) if size > 1]
    return any(left[1] != right[0] * right[1] for left, right in pairwise(dims))


def _rank_each(
    rank: Callable[..., Ranks], scores: Tensor, given: dict[str, Any], settings: dict[str, int | None]
) -> Ranks:
    """Rank each index of the first dimension by itself: views, never a copy of the scores."""
    shared = {"candidates": 1, "exclude": 1, "mask": 1}  # of so many dimensions they are the same for all queries

    def of(name: str, value: Tensor | None, i: int) -> Tensor | None:
        return value if value is None or value.ndim == shared.get(name) else value[i]

    parts = [
        rank(scores[i], **{name: of(name, value, i) for name, value in given.items()}, **settings)
        for i in range(scores.shape[0])
    ]
    return Ranks(*(torch.stack(fields) for fields in zip(*parts, strict=True)))
