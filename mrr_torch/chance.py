"""The chance level: the expected value of a random ranking on the same queries, and how many candidates they had.

A target among C candidates in random order has each of the ranks 1 .. C with the probability 1 / C. So the state keeps
how many queries had C candidates: whole numbers, which add up exactly in any order.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from mrr_torch.kernels import backend
from mrr_torch.ranks import Outcome
from mrr_torch.ranks.batch import Ranked
from mrr_torch.ties import far_reciprocals
from mrr_torch.vectors import Vectors
from mrr_torch.whole import from_whole_parts, whole_parts

# Of queries with more candidates than bins: their number; then, in two whole parts each, the sum of 1 / C, and the sum
# of 1 / rank over what chance puts in the overflow.
EXTRA = 5


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

    Where a query with several relevant items makes the level of all unknown, nothing has to be added.

    Args:
        vectors: the whole vectors.
        first: where the chance part begins.
        ranked: ranks ``(queries,)``, on the device of the vectors.
        several: ``(queries,)`` bool; queries with several relevant items; None if there are none.
        negatives: of sampled mode; no more candidates than these and the target are ranked.
        bins: ranks with a bin of their own.
    """
    ranks, known = ranked.ranks, ranked.known
    most = min(known.most, math.inf if negatives is None else negatives + 1)
    if most == 0:  # unknown, as of retrieved lists
        return
    if several is not None and known.ranked and vectors[-1].group is None:
        return  # unknown of one query, and so of all
    number = ranks.candidates if known.single else ranks.num_candidates
    if most < known.most:
        number = number.clamp(max=most)
    if several is not None or not known.ranked:
        # Known of the queries with one relevant item, which was scored; those of 0 candidates are never read.
        scored = (ranks.relevant > 0) | (ranks.relevant == Outcome.NAN.value)
        number = number * (scored if several is None else scored & ~several)
    elif known.exact and known.fewest == most and vectors[0].simple and len(vectors) == 1:
        # All queries have as many candidates: added as one.
        state, times = vectors[0].vectors, number.shape[0]
        state[0, first + min(int(most), bins + 1)].add_(times)
        if most > bins:
            beyond = state.new_tensor(_overflow_of(most, bins))
            state[0, first + bins + 2 : first + bins + 1 + EXTRA].add_(beyond, alpha=times)
        return
    far = most > bins
    for each in vectors:
        each.add(first + (number.clamp(max=bins + 1) if far else number))
    if far and backend(number).some(number > bins):
        beyond = _overflow(number, bins, vectors[0].vectors.dtype)
        for each in vectors:
            each.add_far(first + bins + 2, beyond)


def _overflow(number: Tensor, bins: int, dtype: torch.dtype) -> Tensor:
    """Return what each query of more than ``bins`` candidates adds: ``(EXTRA - 1, queries)``, 0 for the others."""
    each = number.clamp(min=bins).to(dtype)
    tail = far_reciprocals(each.new_full((), bins), each) / each
    return torch.stack([*whole_parts(each.reciprocal()), *whole_parts(tail)]) * (number > bins)


@functools.lru_cache
def _overflow_of(number: float, bins: int) -> list[float]:
    """Return what one query of ``number`` candidates adds."""
    return _overflow(torch.tensor([number], device="cpu"), bins, torch.float64)[:, 0].tolist()


def read(state: Tensor) -> Chance:
    """Read the chance part of a vector, float64 on the CPU."""
    bins = state.shape[0] - 1 - EXTRA
    ranks = torch.arange(1, bins + 1, dtype=torch.float64, device="cpu")
    known, (more, *parts) = state[1 : bins + 1], state[bins + 1 :].tolist()
    # A query with C candidates adds 1 / C to each rank up to C; those with more than `bins` add to all.
    mass = (known / ranks).flip(0).cumsum(0).flip(0) + from_whole_parts(*parts[:2])
    return Chance(ranks, mass, from_whole_parts(*parts[2:]), float(known.sum()) + more)


def widened(ranges: Tensor, ranked: Ranked, group: Tensor | None) -> Tensor:
    """Return ``(-smallest, largest)``, ranges of numbers of candidates, widened by those of a batch.

    Args:
        ranges: ``(1 + groups, 2)``, of all queries and of each group; ``(2,)`` if there are no groups.
        ranked: ranks ``(queries,)``.
        group: ``(queries,)``; None if there are no groups.
    """
    ranks, known = ranked.ranks, ranked.known
    if not ranks.relevant.numel():
        return ranges
    if group is None and known.exact and known.worst > Outcome.IGNORED.value:  # none is skipped
        fewest, most = ranges.tolist()
        wider = max(fewest, -known.fewest), max(most, known.most)
        return ranges if wider == (fewest, most) else ranges.new_tensor(wider)
    number = ranks.num_candidates
    both = torch.stack([-number, number]).to(ranges.dtype)
    ends = torch.where(ranks.relevant > Outcome.IGNORED.value, both, -torch.inf)
    if group is None:
        return torch.maximum(ranges, ends.amax(1))
    whole, each = torch.maximum(ranges[:1], ends.amax(1)), ranges[1:]
    return torch.cat([whole, each.scatter_reduce(0, group[:, None].expand(-1, 2), ends.T, "amax")])
