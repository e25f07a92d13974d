"""The chance level: the expected value of a random ranking on the same queries, and how many candidates they had.

A target among C candidates in random order has each of the ranks 1 .. C with the probability 1 / C. So the state keeps
how many queries had C candidates: whole numbers, which add up exactly in any order.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from mrr_torch.kernels import backend
from mrr_torch.ranks import Outcome, Ranks
from mrr_torch.ranks.batch import Ranked
from mrr_torch.ties import reciprocals_between
from mrr_torch.vectors import Vectors
from mrr_torch.whole import from_whole_parts, whole_parts

# Of queries with more candidates than bins: their number; the sum of 1 / C in two whole parts; the sum of 1 / rank over
# what chance puts in the overflow.
EXTRA = 4


class Chance(NamedTuple):
    """The chance part of a state, read: float64 on the CPU.

    Attributes:
        ranks: ``(bins,)``: 1, 2, ...
        mass: ``(bins,)``; queries that a random ranking would put there.
        tail: sum of 1 / rank over the mass in the overflow.
        queries: how many are known; retrieved lists, and queries with several relevant items, are not.
    """

    ranks: Tensor
    mass: Tensor
    tail: float
    queries: float


def size(bins: int) -> int:
    """Return the length of the chance part of a state."""
    return bins + 1 + EXTRA


def add(
    vectors: list[Vectors], first: int, ranked: Ranked, several: Tensor | None, negatives: int | None, bins: int
) -> None:
    """Add a batch to the chance part of the vectors, in place and without synchronising.

    Args:
        vectors: the whole vectors.
        first: where the chance part begins.
        ranked: ranks ``(queries,)``, on the device of the vectors.
        several: ``(queries,)`` bool; queries with several relevant items; None if there are none.
        negatives: of sampled mode; no more candidates than these and the target are ranked.
        bins: ranks with a bin of their own.
    """
    ranks = ranked.ranks
    limits = [limit for limit in (ranked.last, None if negatives is None else negatives + 1) if limit is not None]
    most = min(limits) if limits else None
    known = None if ranked.found and several is None else _known(ranked, several)
    if ranked.width is not None and most is not None:  # all have the same number of candidates
        added = [1.0] if most <= bins else _of_one(most, bins)
        for each in vectors:
            if known is None and each.weights is None:
                total = each.queries
            else:
                total = each.total(torch.ones_like(ranks.relevant) if known is None else known)
            # A tensor of numbers from the host would be waited for, arguments are not.
            for index, times in enumerate(added, first + min(most, bins + 1)):
                each.vectors[:, index].add_(total, alpha=times)
        return
    known = torch.ones_like(ranks.relevant) if known is None else known
    number = ranks.num_candidates if negatives is None else ranks.num_candidates.clamp(max=negatives + 1)
    if backend(number).none_beyond(number, 0):  # unknown, as of retrieved lists
        return
    mass = known.to(vectors[0].vectors.dtype)
    for each in vectors:
        each.add(first + number.clamp(max=bins + 1), mass)
    if (most is None or most > bins) and backend(number).some(number > bins):
        for index, sums in enumerate(_overflow(number, bins, mass.dtype) * mass, first + bins + 2):
            for each in vectors:
                each.add_at(index, sums)


def _known(ranked: Ranked, several: Tensor | None) -> Tensor:
    """Return the mask of the queries whose chance level is known: those with one relevant item, which was scored."""
    if ranked.found and several is not None:
        return ~several
    relevant = ranked.ranks.relevant
    scored = (relevant > 0) | (relevant == Outcome.NAN.value)
    return scored if several is None else scored & ~several


def _overflow(number: Tensor, bins: int, dtype: torch.dtype) -> Tensor:
    """Return what each query of more than ``bins`` candidates adds: ``(EXTRA - 1, queries)``, 0 for the others."""
    each, part = number.clamp(min=1), torch.full_like(number, bins)
    tail = reciprocals_between(part, torch.maximum(each, part)).to(dtype) / each
    return torch.stack([*whole_parts(1 / each.to(dtype)), tail]) * (number > bins)


@lru_cache
def _of_one(number: int, bins: int) -> list[float]:
    """Return what one query of ``number`` candidates, more than ``bins``, adds: itself first."""
    added: list[float] = _overflow(torch.tensor([number], device="cpu"), bins, torch.float64)[:, 0].tolist()
    return [1.0, *added]


def read(state: Tensor) -> Chance:
    """Read the chance part of a vector, float64 on the CPU."""
    bins = state.shape[0] - 1 - EXTRA
    ranks = torch.arange(1, bins + 1, dtype=torch.float64, device="cpu")
    known, (more, coarse, fine, tail) = state[1 : bins + 1], state[bins + 1 :].tolist()
    # A query with C candidates adds 1 / C to each rank up to C; those with more than `bins` add to all.
    mass = (known / ranks).flip(0).cumsum(0).flip(0) + from_whole_parts(coarse, fine)
    return Chance(ranks, mass, tail, float(known.sum()) + more)


def widen(range_: Tensor, ranked: Ranked) -> None:
    """Widen ``(-smallest, largest)``, a range of numbers of candidates, by those of a batch, in place."""
    if ranked.found and ranked.width is not None:
        for end, number in zip(range_.unbind(), (-ranked.width, ranked.width), strict=True):
            end.clamp_(min=number)
    elif ranked.ranks.relevant.numel():
        torch.maximum(range_, _numbers(ranked.ranks, range_.dtype).amax(1), out=range_)


def widen_each(ranges: Tensor, ranked: Ranked, group: Tensor, queries: Tensor) -> None:
    """Widen the range ``(groups, 2)`` of each group by its ``queries`` ``(groups,)``, in place."""
    if ranked.found and ranked.width is not None:
        for end, number in zip(ranges.unbind(1), (-ranked.width, ranked.width), strict=True):
            end.clamp_(min=torch.where(queries > 0, number, -torch.inf))
        return
    ranges.scatter_reduce_(0, group[:, None].expand(-1, 2), _numbers(ranked.ranks, ranges.dtype).T, "amax")


def _numbers(ranks: Ranks, dtype: torch.dtype) -> Tensor:
    """Return the negative and the number of candidates of each query ``(2, queries)``; -inf where it is skipped."""
    numbers, seen = ranks.num_candidates.to(dtype), ranks.relevant > Outcome.IGNORED.value
    return torch.where(seen, torch.stack([-numbers, numbers]), -torch.inf)
