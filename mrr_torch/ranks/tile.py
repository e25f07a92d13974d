"""What a rank is: one function over a tile of rows of scores."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch._device import lowest
from mrr_torch.kernels import backend
from mrr_torch.ranks import Outcome, Ranks, with_several
from mrr_torch.ranks.ids import at_columns, distinct, first_of_each, occurs


class Rows(NamedTuple):
    """Checked arguments of the dense forms, cut to some rows. Where rows are alike there may be 1 instead of all.

    Attributes:
        scores: ``(rows, columns)``; not bool.
        columns: ``(rows, M)`` int64; the columns of the relevant items, padded with negative numbers; or None.
        column: the one column of the relevant item of all rows, if it is one, and known.
        relevant_ids: ``(rows, M)`` int64; their ids among ``candidates``, padded likewise; or None.
        labels: ``(rows, columns)``; relevance, above 0 is relevant; None where columns or ids are given.
        ignore_index: label of columns that are left out, if ``labels`` can hold it.
        candidates: ``(rows or 1, columns)`` int64; the id of each column; None if it is the column's number.
        exclude: ``(rows or 1, H)`` int64; ids that never compete, or None.
        excluded: ``(rows, columns)`` bool; columns that never compete, or None.
        mask: ``(rows or 1, columns)`` bool; False for padding columns; None if there are none.
    """

    scores: Tensor
    columns: Tensor | None = None
    column: int | None = None
    relevant_ids: Tensor | None = None
    labels: Tensor | None = None
    ignore_index: int | None = None
    candidates: Tensor | None = None
    exclude: Tensor | None = None
    excluded: Tensor | None = None
    mask: Tensor | None = None

    @property
    def single(self) -> bool:
        """True if each row has one relevant item, at a given column."""
        return self.columns is not None and self.columns.shape[1] == 1

    @property
    def masked(self) -> bool:
        """True if columns are told apart by masks of the scores' shape."""
        given = (self.labels, self.candidates, self.excluded, self.mask, self.relevant_ids)
        return any(value is not None for value in given)

    @property
    def labelled(self) -> bool:
        """True if the one mask there is is given: labels that are bool."""
        others = (self.candidates, self.excluded, self.mask)
        return self.labels is not None and self.labels.dtype == torch.bool and all(value is None for value in others)

    def cut(self, part: slice) -> Rows:
        """Return the rows of ``part``."""
        rows = self.scores.shape[0]

        def of(value: Tensor | None) -> Tensor | None:
            return value if value is None or value.shape[0] != rows else value[part]

        return Rows(
            self.scores[part],
            of(self.columns),
            self.column,
            of(self.relevant_ids),
            of(self.labels),
            self.ignore_index,
            of(self.candidates),
            of(self.exclude),
            of(self.excluded),
            of(self.mask),
        )


class Best(NamedTuple):
    """The best-scored relevant item of each row.

    Attributes:
        score: ``(rows, 1)``; NaN, or the lowest value of the dtype, where there is none.
        level: ``(rows,)``; relevant items with this score, 0 where there is none; None if not counted.
        number: ``(rows,)``; relevant items; None where each row has one.
    """

    score: Tensor
    level: Tensor | None
    number: Tensor | None


def rank_tile(rows: Rows) -> Ranks:
    """Rank the best relevant item of each row among all items that compete with it.

    A competitor strictly above its score is ``higher``, one with the same score ``tied``; NaN is neither. Relevant
    items never compete, and are never excluded. Masks are made only where an argument asks for them.
    """
    scores, kernel = rows.scores, backend(rows.scores)
    relevant = competes = invalid = None
    if rows.masked:
        relevant, competes, invalid = _masks(rows)
    best = _best_listed(rows) if relevant is None or rows.single else _best_marked(scores, relevant)
    higher, equal = kernel.count(scores, best.score, competes)
    if competes is not None:
        candidates = kernel.count_true(competes)
    else:
        candidates = torch.full_like(higher, scores.shape[1])
        if rows.exclude is not None:
            taken = _count_excluded(rows, best.score)
            higher, equal, candidates = higher - taken[0], equal - taken[1], candidates - taken[2]
    level, none = best.level, None
    if rows.single:  # a target shares its score with itself, unless that is NaN
        level = torch.ones_like(equal)
        none = None if kernel.all_positive(equal) else equal == 0  # nothing is above or equal to NaN
        tied = equal - 1 if none is None else (equal - 1).clamp_(min=0)
    else:
        level = kernel.count_level(scores, best.score, relevant, equal) if level is None else level
        if not (kernel.all_positive(level) and kernel.all_positive(best.number)):
            none = (level == 0) | (best.number == 0)
        tied = equal - level
        if none is not None:
            higher, tied = higher.masked_fill(none, 0), tied.masked_fill(none, 0)
    outcome = _checks.mark(level, none, Outcome.NAN)
    if best.number is not None:
        outcome = _checks.mark(outcome, None if none is None else best.number == 0, Outcome.EMPTY)
        candidates = with_several(candidates, best.number > 1)
    return Ranks(higher, tied, _checks.mark(outcome, invalid, Outcome.BAD_RELEVANCE), candidates)


def _best_listed(rows: Rows) -> Best:
    """Find the best of the relevant items at ``rows.columns``; no mask of the scores' shape is made."""
    scores, columns = rows.scores, rows.columns
    assert columns is not None
    if rows.single:
        score = scores.gather(1, columns) if rows.column is None else scores.narrow(1, rows.column, 1)
        return Best(score, None, None)
    listed, used = distinct(columns, scores.shape[1])
    theirs = scores.gather(1, listed)
    score = theirs.masked_fill(~used | (theirs != theirs), lowest(scores.dtype)).amax(1, keepdim=True)
    return Best(score, ((theirs == score) & used).sum(1), used.sum(1))


def _best_marked(scores: Tensor, relevant: Tensor) -> Best:
    """Find the best of the relevant items of a mask ``(rows, columns)``."""
    score, number, level = backend(scores).best_relevant(scores, relevant)
    return Best(score, level, number)


def _masks(rows: Rows) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the masks of the relevant and of the competing or relevant columns, and of rows with invalid labels.

    The second is None where all columns compete but those excluded by id; the third where all labels are valid.
    """
    shape = rows.scores.shape
    there, invalid = rows.mask, None  # columns that hold an item
    if rows.labels is not None:
        if rows.ignore_index is not None:
            labelled = rows.labels != rows.ignore_index
            there = labelled if there is None else labelled & there
        if rows.candidates is not None:  # negative ids are padding
            there = rows.candidates >= 0 if there is None else there & (rows.candidates >= 0)
        relevant = rows.labels if rows.labels.dtype == torch.bool else rows.labels > 0
        relevant = relevant if there is None else relevant & there
        invalid = _negative(rows.labels, there)
    elif rows.relevant_ids is not None:
        ids = rows.candidates.expand(shape)  # type: ignore[union-attr]
        relevant = (ids >= 0) & occurs(ids, rows.relevant_ids)
        relevant = relevant if there is None else relevant & there
    else:
        relevant = at_columns(rows.columns, shape[1])  # type: ignore[arg-type]
    if there is None and rows.candidates is None and rows.excluded is None:
        return relevant, None, invalid

    competes = None if there is None else there.expand(shape)
    if rows.candidates is not None:  # columns that share an id hold the same item
        named = rows.candidates.expand(shape)
        if there is not None:  # a padding column holds no item: it has no id, and is no copy of any
            named = torch.where(there | relevant, named, -1)
        if rows.single:  # of the columns with the target's id only its own is kept
            own = named.gather(1, rows.columns)  # type: ignore[arg-type]
            first = (first_of_each(named) & (named != own)) | relevant
        else:
            first = first_of_each(named, relevant)
        relevant = relevant & first  # the second copy of a relevant item is none more
        competes = first & (named >= 0) if competes is None else first & competes & (named >= 0)
    out = rows.excluded
    if rows.exclude is not None:
        lists = rows.exclude.expand(shape[0], -1)
        listed = (
            at_columns(lists, shape[1]) if rows.candidates is None else occurs(rows.candidates.expand(shape), lists)
        )
        out = listed if out is None else out | listed
    if out is not None:
        competes = ~out if competes is None else competes & ~out
    return relevant, relevant if competes is None else competes | relevant, invalid


def _negative(labels: Tensor, there: Tensor | None) -> Tensor | None:
    """Return the mask of the rows with negative relevance; raise where it can be read."""
    if not labels.dtype.is_signed:
        return None
    negative = labels < 0 if there is None else (labels < 0) & there

    def first() -> int:
        return int(labels[negative][0])

    expected = "relevance >= 0 (or ignore_index); for grades with a threshold pass grades >= level"
    return _checks.refuse(negative.any(1), "target", expected, first)


def _count_excluded(rows: Rows, best: Tensor) -> Tensor:
    """Count the excluded columns above ``best``, equal to it, and all of them: ``(3, rows)`` int64.

    Their scores are gathered by id, so no mask of the scores' shape is made. Each counts once, however often it is
    listed; relevant columns are not excluded.
    """
    scores, exclude = rows.scores, rows.exclude
    assert exclude is not None
    listed, used = distinct(exclude, scores.shape[1])
    parts = [listed.new_zeros(3, 0)]
    for part in backend(scores).row_tiles(scores.shape[0], listed.shape[1]):
        tile = rows.cut(part)
        height = tile.scores.shape[0]
        gone, use = (x.expand(height, -1) if x.shape[0] == 1 else x[part] for x in (listed, used))
        relevant = occurs(gone, tile.columns) if tile.labels is None else tile.labels.gather(1, gone) > 0  # type: ignore[arg-type]
        use = use & ~relevant
        theirs, threshold = tile.scores.gather(1, gone), best[part]
        taken = ((theirs > threshold) & use, (theirs == threshold) & use, use)
        parts.append(torch.stack([mask.sum(1) for mask in taken]))
    return torch.cat(parts, 1)
