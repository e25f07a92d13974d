"""What a rank is: the counts that are known of each query, and the outcome of a query that has no rank.

The modules of this package turn any input into `Ranks`.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.kernels import readable

__all__ = ["Outcome", "Ranks"]


class Outcome(IntEnum):
    """Why a query has no rank; stands in `Ranks.relevant` where there is no relevant item in reach to count.

    The members named ``BAD_...`` are invalid values that could not be read when they came (on an accelerator,
    reading would synchronise): `compute` raises their ``message``. A positive ``relevant`` is a rank, no outcome.

    Attributes:
        message: what happened; of invalid values the error, which takes the number of ``queries``.
    """

    EMPTY = 0, "no relevant item"
    MISSED = -1, "the relevant items were not retrieved"
    NAN = -2, "the score of the relevant item is NaN"
    IGNORED = -3, "skipped by ignore_index"
    BAD_TARGET = -4, _checks.message("target", "ids in 0..N-1 (or ignore_index)", "ids outside, in {queries}")
    BAD_RELEVANCE = (
        -5,
        _checks.message("target", "relevance >= 0 (or ignore_index)", "negative values, in {queries}"),
    )
    BAD_EXCLUDE = (
        -6,
        _checks.message("exclude", "ids in 0..N-1, padded with negative ids", "ids beyond, in {queries}"),
    )
    BAD_SEVERAL = (
        -7,
        _checks.message(
            "preds", "one relevant item with more than 1 + num_negatives candidates", "several, in {queries}"
        ),
    )
    BAD_IDS = -8, _checks.message("query_ids", "ids in 0..num_queries-1, as with indexes", "ids outside, in {queries}")
    BAD_RANKS = -9, _checks.message("preds", "Ranks with counts >= 0", "others, in {queries}")
    PADDING = -10, "no query: a padding row, where the number of queries cannot be known without synchronising"
    BAD_COHORT = -11, _checks.message("cohort", "ids in 0..cohorts-1", "ids outside, in {queries}")
    BAD_WEIGHTS = -12, _checks.message("weights", "finite numbers >= 0, at most 1e+100", "others, in {queries}")

    message: str

    def __new__(cls, value: int, message: str) -> Outcome:
        """Make a member of its value and its message."""
        member = int.__new__(cls, value)
        member._value_ = value
        member.message = message
        return member

    @property
    def invalid(self) -> bool:
        """True if the outcome stands for invalid input."""
        return self <= Outcome.BAD_TARGET and self is not Outcome.PADDING


# Added to `Ranks.candidates` of a query that has other relevant items than those in the tie, or may have.
SEVERAL = 2**32


class Ranks(NamedTuple):
    """What is known of the rank of each query's best-scored relevant item. Four int64 tensors of the queries' shape.

    The relevant item that scores best has ``higher`` competitors strictly above it; ``tied`` competitors share its
    score, and so do ``relevant`` relevant items, itself included. Without ties its rank is ``higher + 1``. Counts of
    different parts of a catalogue add up (`merge`). Nothing else is kept: slices, stacks and copies mean the same.

    Attributes:
        higher: ``(...)``; competitors that score strictly higher.
        tied: ``(...)``; competitors (items that are not relevant) with the same score.
        relevant: ``(...)``; relevant items in that tie, at least 1; or, where there is none to count, an `Outcome`.
        candidates: ``(...)``; evaluated items, the relevant ones included; 0 where unknown (retrieved lists). Where a
            query has several relevant items, 2**32 is added: read it with `num_candidates` and `several`.

    >>> Ranks(*torch.tensor([[1, 0], [0, 0], [1, 1], [3, 3]])).higher
    tensor([1, 0])
    """

    higher: Tensor
    tied: Tensor
    relevant: Tensor
    candidates: Tensor

    @property
    def num_candidates(self) -> Tensor:
        """Evaluated items ``(...)`` int64; 0 where unknown."""
        return self.candidates & (SEVERAL - 1)

    @property
    def several(self) -> Tensor:
        """True ``(...)`` for queries with several relevant items, of which only the best counts."""
        return (self.candidates >= SEVERAL) | (self.relevant > 1)

    def merge(self, *others: Ranks) -> Ranks:
        """Add the counts of disjoint parts of a catalogue, all made against the same score of the same relevant item.

        A part without a relevant item has ``relevant`` 0 (`Outcome.EMPTY`) or `Outcome.MISSED`. An outcome that ends a
        query in one part (NaN, ignored, invalid) ends it in all.

        Raises:
            TypeError: an argument that is no `Ranks`.
            ValueError: a wrong shape or device.

        >>> whole = Ranks(*torch.tensor([[1], [0], [1], [3]])).merge(Ranks(*torch.tensor([[2], [1], [0], [4]])))
        >>> [field.tolist() for field in whole]
        [[3], [1], [1], [7]]
        """
        parts = [check_ranks("self", self), *(check_ranks("others", other) for other in others)]
        for part in parts[1:]:
            _checks.same_shape("others", part.higher, _checks.shape(self.higher))
            _checks.same_device("others", part.higher, self.higher)
        outcomes = torch.stack([part.relevant for part in parts])
        worst, found = outcomes.amin(0), outcomes.clamp(min=0).sum(0)
        nowhere = torch.where((outcomes == Outcome.MISSED.value).any(0), Outcome.MISSED.value, found)
        relevant = torch.where(worst < Outcome.MISSED.value, worst, torch.where(found > 0, found, nowhere))
        several = torch.stack([part.several for part in parts]).any(0)
        known = torch.stack([part.num_candidates for part in parts])
        candidates = torch.where((known == 0).any(0), 0, known.sum(0))
        counts = (sum(part.higher for part in parts), sum(part.tied for part in parts))
        return Ranks(*counts, relevant, with_several(candidates, several))  # type: ignore[arg-type]

    def __add__(self, other: object) -> Any:
        raise TypeError(_checks.message("Ranks + ...", "Ranks.merge, which adds counts", type(other).__name__))


class Known(NamedTuple):
    """What is known of the ranks of many queries together; by default nothing.

    Attributes:
        last: no rank is beyond it.
        single: no query has several relevant items.
        exact: all are known to have ``fewest`` to ``most`` candidates, and some to have each of these numbers.
        fewest: no query has fewer candidates.
        most: no query has more.
        worst: the least ``relevant`` of all, or less.
        wanted: the largest ``relevant`` of all, or more.
        untied: no query has a competitor in a tie.
    """

    last: float = math.inf
    single: bool = False
    exact: bool = False
    fewest: float = 0
    most: float = math.inf
    worst: float = -math.inf
    wanted: float = math.inf
    untied: bool = False

    @property
    def ranked(self) -> bool:
        """True if each query is known to have a rank."""
        return self.worst > 0


def read_known(ranks: Ranks, known: Known, bins: float = math.inf) -> Known:
    """Return what is known of ranks ``(queries,)`` after reading them, where they can be read.

    Args:
        ranks: the ranks.
        known: what was known before.
        bins: whether a rank is beyond it matters, but not by how much.
    """
    if not (readable(ranks.higher) and ranks.higher.numel()):
        return known
    last, single, exact, fewest, most, *_ = known
    (worst, wanted), (_, tied) = _limits(ranks.relevant), _limits(ranks.tied)
    if last > bins:
        last = _limits(ranks.higher)[1] + tied + 1
    if not (single and exact):
        least, largest = _limits(ranks.candidates)
        single = single or (wanted <= 1 and largest < SEVERAL)
        if not exact:
            fewest, most = (least, largest) if largest < SEVERAL else _limits(ranks.num_candidates)
    return Known(last, single, True, fewest, most, worst, wanted, tied == 0)


def _limits(numbers: Tensor) -> tuple[int, int]:
    least, largest = numbers.aminmax()
    return int(least), int(largest)


def with_several(candidates: Tensor, several: Tensor) -> Tensor:
    """Return the field ``candidates``: numbers of candidates, and whether a query has several relevant items."""
    return candidates.add(several, alpha=SEVERAL)


def check_ranks(name: str, ranks: Any) -> Ranks:
    """Check a `Ranks` that a user hands in: integer tensors of one shape on one device, counts not negative.

    Counts that cannot be read are clamped where they are negative, and their queries marked.
    """
    if not isinstance(ranks, Ranks):
        raise TypeError(_checks.message(name, "Ranks", type(ranks).__name__))
    fields = []
    for field, value in zip(Ranks._fields, ranks, strict=True):
        tensor = _checks.integer_tensor(f"{name}.{field}", value, ranks.higher, expected="an integer tensor")
        _checks.same_shape(f"{name}.{field}", tensor, _checks.shape(ranks.higher))
        fields.append(tensor)
    higher, tied, relevant, candidates = fields
    lowest = min(Outcome)
    if readable(higher):
        for field, tensor in zip(Ranks._fields, fields, strict=True):
            least = int(tensor.min()) if tensor.numel() else 0
            if field == "relevant" and least < lowest:
                expected = f"counts or the codes 0..{lowest.value} of Outcome"
                raise ValueError(_checks.message(f"{name}.{field}", expected, least))
            if field != "relevant" and least < 0:
                raise ValueError(_checks.message(f"{name}.{field}", "counts >= 0", least))
        return Ranks(*fields)
    bad = (higher < 0) | (tied < 0) | (candidates < 0) | (relevant < lowest.value)
    relevant = relevant.masked_fill(bad, Outcome.BAD_RANKS.value)
    return Ranks(higher.clamp(min=0), tied.clamp(min=0), relevant, candidates.clamp(min=0))
