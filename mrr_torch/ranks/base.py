"""What a rank is: the counts that are known of each query, and what became of a query that has no rank."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from mrr_torch import _checks

# A query's outcome, kept in `Ranks.relevant` where there is no relevant item in reach to count.
FOUND = 1  # or more: the relevant items in the tie
EMPTY = 0  # the query has no relevant item at all; `empty_target_action` decides
MISSED = -1  # its relevant items are not in the list: reciprocal rank 0
NAN = -2  # the score of its relevant item is NaN: reciprocal rank 0, and a warning
IGNORED = -3  # told to be skipped (`ignore_index`)
# Bad values met where looking at them would have waited for the device: raised when the metric is computed.
BAD_TARGET = -4
BAD_RELEVANCE = -5
BAD_EXCLUDE = -6
BAD_SEVERAL = -7
BAD_IDS = -8
UNRESOLVED = -9  # not of `Ranks`: a tie of several relevant items too wide to be followed without waiting
OUTCOMES = 10  # the codes from `EMPTY` on, in order
ABSENT = -OUTCOMES  # no query at all: a row to spare, where their number could not be known without waiting

FAULTS = {
    BAD_TARGET: _checks.message("target", "ids in 0..N-1 (or ignore_index)", "ids outside, in {count} queries"),
    BAD_RELEVANCE: _checks.message("target", "relevance >= 0 (or ignore_index)", "negative values, in {count} queries"),
    BAD_SEVERAL: _checks.message(
        "preds", "one relevant item with more than 1 + num_negatives candidates", "several, in {count} queries"
    ),
    BAD_IDS: _checks.message("query_ids", "ids in 0..num_queries-1", "ids outside"),
    BAD_EXCLUDE: _checks.message("exclude", "ids in 0..N-1, padded with negative ids", "ids beyond, in {count} queries"),
}


class Ranks(NamedTuple):
    """What is known of the rank of each query's best-scored relevant item. Four int64 tensors of the queries' shape.

    The relevant item that scores best has ``higher`` competitors strictly above it; ``tied`` competitors share its
    score, and so do ``relevant`` relevant items, itself included. Without ties its rank is ``higher + 1``. Counts of
    ``higher`` and ``tied`` from different parts of a catalogue add up.

    Attributes:
        higher: ``(...)``; competitors that score strictly higher.
        tied: ``(...)``; competitors (items that are not relevant) with the same score.
        relevant: ``(...)``; relevant items in that tie, at least 1. Where there is none to count it says why:
            0 the query has no relevant item, -1 its relevant items were not retrieved, -2 its score is NaN,
            -3 it is to be skipped, -10 it is no query but a row to spare; values between these are faults in the
            input, raised by ``compute``.
        candidates: ``(...)``; evaluated items, the relevant ones included; 0 where unknown (retrieved lists).

    >>> import torch
    >>> Ranks(*torch.tensor([[1, 0], [0, 0], [1, 1], [3, 3]])).higher
    tensor([1, 0])
    """

    higher: Tensor
    tied: Tensor
    relevant: Tensor
    candidates: Tensor


class RanksOfSeveral(Ranks):
    """`Ranks` of queries that may have other relevant items than those they hold: what chance gives is not known."""


def check_ranks(name: str, ranks: Ranks) -> Ranks:
    """Check a `Ranks` that a user hands in: integer tensors of one shape on one device, counts not negative."""
    shape = _checks.shape(ranks.higher) if isinstance(ranks.higher, Tensor) else ()
    fields = []
    for field, value in zip(Ranks._fields, ranks, strict=True):
        tensor = _checks.integer_tensor(f"{name}.{field}", value, ranks.higher, expected="an integer tensor")
        _checks.same_shape(f"{name}.{field}", tensor, shape)
        if field != "relevant" and _checks.on_host(tensor) and tensor.numel() and int(tensor.min()) < 0:
            raise ValueError(_checks.message(f"{name}.{field}", "counts >= 0", int(tensor.min())))
        fields.append(tensor)
    if _checks.on_host(fields[2]) and fields[2].numel() and int(fields[2].min()) < ABSENT:
        raise ValueError(_checks.message(f"{name}.relevant", f"counts or the codes 0..{ABSENT}", int(fields[2].min())))
    return type(ranks)(*fields)


def unranked(counts: Tensor, ranked: Tensor | None) -> Tensor:
    """Set counts to 0 where a query has no rank; ``ranked`` is None where all have one."""
    return counts if ranked is None else counts.masked_fill(~ranked, 0)


def mark(relevant: Tensor, where: Tensor | None, outcome: int) -> Tensor:
    """Set ``outcome`` for the queries at ``where``; the last call wins, so faults are marked last."""
    return relevant if where is None or not _checks.some(where) else relevant.masked_fill(where, outcome)
