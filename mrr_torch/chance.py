"""The chance level: the expected value of a random ranking on the same queries, and how many candidates they had.

A target among C candidates in random order has each of the ranks 1 .. C with the probability 1 / C. So the state keeps
how many queries had C candidates: whole numbers, which add up exactly in any order.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.kernels import backend
from mrr_torch.ranks import Outcome, Ranks
from mrr_torch.ranks.batch import Ranked
from mrr_torch.ties import reciprocals_between
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


def add(state: Tensor, ranked: Ranked, negatives: int | None, bins: int, weights: Tensor | None) -> None:
    """Add a batch to the chance part of a state, in place and without synchronising.

    Args:
        state: ``(size(bins),)``.
        ranked: ranks of any shape, on the device of the state.
        negatives: of sampled mode; no more candidates than these and the target are ranked.
        bins: ranks with a bin of their own.
        weights: ``(queries,)``, or None for 1 each.
    """
    ranks = Ranks(*map(_checks.flat, ranked.ranks))
    limits = [limit for limit in (ranked.last, None if negatives is None else negatives + 1) if limit is not None]
    most = min(limits) if limits else None
    known = None if ranked.found and ranked.single else _known(ranks).to(state.dtype)
    if weights is not None:
        known = weights if known is None else known * weights
    if ranked.width is not None and most is not None:  # all have the same number of candidates
        added = [1.0] if most <= bins else _of_one(most, bins)
        at = state[min(most, bins + 1) :][: len(added)]
        if known is None:
            at.add_(state.new_tensor(added), alpha=ranks.relevant.shape[0])
        else:  # a tensor of numbers from the host would be waited for, arguments are not
            number = known.sum()
            for each, one in zip(added, at.unbind(), strict=True):
                one.add_(number, alpha=each)
        return
    known = torch.ones_like(ranks.relevant, dtype=state.dtype) if known is None else known
    number = ranks.num_candidates if negatives is None else ranks.num_candidates.clamp(max=negatives + 1)
    # Retrieved lists have 0 candidates, which stands for "unknown" and is not read.
    state.index_add_(0, number.clamp(max=bins + 1), known)
    if (most is None or most > bins) and backend(number).some(number > bins):
        state[bins + 2 :].add_((_overflow(number, bins, state.dtype) * known).sum(1))


def _known(ranks: Ranks) -> Tensor:
    """Return the mask of the queries whose chance level is known: those with one relevant item, which was scored."""
    return ((ranks.relevant > 0) | (ranks.relevant == Outcome.NAN.value)) & ~ranks.several


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


def read(state: Tensor, bins: int) -> Chance:
    """Read the chance part of a state, float64 on the CPU."""
    ranks = torch.arange(1, bins + 1, dtype=torch.float64, device="cpu")
    known, (more, coarse, fine, tail) = state[1 : bins + 1], state[bins + 1 :].tolist()
    # A query with C candidates adds 1 / C to each rank up to C; those with more than `bins` add to all.
    mass = (known / ranks).flip(0).cumsum(0).flip(0) + from_whole_parts(coarse, fine)
    return Chance(ranks, mass, tail, float(known.sum()) + more)


def candidates_range(ranked: Ranked, like: Tensor) -> Tensor:
    """Return ``(-smallest, largest)`` number of candidates, of the type of ``like``; -inf where there is no query."""
    if ranked.ranks.relevant.numel() == 0:
        return like.new_full((2,), -torch.inf)
    if ranked.found and ranked.width is not None:
        return like.new_tensor((-ranked.width, ranked.width))
    seen = _checks.flat(ranked.ranks.relevant) > Outcome.IGNORED.value
    numbers = _checks.flat(ranked.ranks.num_candidates).to(like.dtype)
    return torch.where(seen, torch.stack([-numbers, numbers]), -torch.inf).amax(1)
