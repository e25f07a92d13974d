"""What a scorer of random numbers would get on the same queries, and how many candidates they had.

A target among C candidates in random order has each of the ranks 1 .. C with the chance 1 / C. These chances add up in
the state as the masses of the queries do, as differences from rank to rank: two additions a query.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.distribution import reciprocals_between
from mrr_torch.ranks.base import IGNORED, NAN, Ranks

# After the differences: the sum of 1 / rank beyond the ranks told apart, and for how many queries all this is known.
EXTRA = 2


class Chance(NamedTuple):
    """The chance part of a state, read: float64 on the CPU.

    Attributes:
        ranks: ``(bins,)``: 1, 2, ...
        mass: ``(bins,)``; queries that chance would put there.
        tail: sum of 1 / rank over the mass beyond.
        queries: how many are known; retrieved lists, and queries with several relevant items, are not.
    """

    ranks: Tensor
    mass: Tensor
    tail: float
    queries: float


def chance_size(bins: int) -> int:
    """Return the length of the chance part of a state."""
    return bins + 1 + EXTRA


def chance_of(ranks: Ranks, *, negatives: int | None, single: bool, bins: int, dtype: torch.dtype) -> Tensor:
    """Return the chance part of the state of a batch, without waiting for its device.

    Args:
        ranks: of any shape.
        negatives: of sampled mode; no more candidates than these and the target are looked at.
        single: no query has other relevant items than the best; if False nothing is known.
        bins: ranks to tell apart.
        dtype: of the state.
    """
    state = torch.zeros(chance_size(bins), dtype=dtype, device=ranks.higher.device)
    if not single:
        return state
    relevant, candidates = _checks.flat(ranks.relevant), _checks.flat(ranks.candidates)
    known = ((relevant == 1) | (relevant == NAN)).to(dtype)
    if candidates.stride() == (0,) and candidates.numel():  # all queries have the same number
        candidates, known = candidates[:1], known.sum(0, keepdim=True)
    known = known * (candidates > 0)
    size = candidates.clamp(min=1, max=None if negatives is None else negatives + 1)
    share = known / size
    state.index_add_(0, size.clamp(max=bins), -share)
    state[0] += share.sum()
    state[bins + 1] = (reciprocals_between(size.clamp(max=bins), size).to(dtype) * share).sum()
    state[bins + 2] = known.sum()
    return state


def read_chance(state: Tensor, bins: int) -> Chance:
    """Read the chance part of a state."""
    state = state.detach().to("cpu", torch.float64)
    ranks = torch.arange(1, bins + 1, dtype=torch.float64)
    return Chance(ranks, state[:bins].cumsum(0), float(state[bins + 1]), float(state[bins + 2]))


def candidates_range(ranks: Ranks, dtype: torch.dtype) -> Tensor:
    """Return the state ``(-smallest, largest)`` number of candidates, which reduces by the maximum; -inf is unknown."""
    relevant, candidates = _checks.flat(ranks.relevant), _checks.flat(ranks.candidates)
    if candidates.numel() == 0:
        return torch.full((2,), -torch.inf, dtype=dtype, device=candidates.device)
    seen = (relevant > IGNORED) & (candidates > 0)
    numbers = candidates.to(dtype)
    return torch.stack([torch.where(seen, -numbers, -torch.inf).max(), torch.where(seen, numbers, -torch.inf).max()])
