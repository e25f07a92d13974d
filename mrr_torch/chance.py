"""What a scorer of random numbers would get on the same queries, and how many candidates they had.

A target among C candidates in random order has each of the ranks 1 .. C with the chance 1 / C. So the state keeps how
many queries had C candidates: whole numbers, which add up exactly in any order.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.distribution import from_whole_parts, reciprocals_between, whole_parts
from mrr_torch.ranks.base import IGNORED, NAN, RanksOfSeveral
from mrr_torch.ranks.forms import Ranked

# Of queries with more candidates than ranks are told apart: their number; the sum of 1 / C as two whole numbers, in
# units of 2**-36 and 2**-62; the sum of 1 / rank over what chance puts beyond the ranks told apart.
EXTRA = 4


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


def add_chance(state: Tensor, ranked: Ranked, *, negatives: int | None, bins: int) -> None:
    """Add a batch to the chance part of a state, in place and without waiting for its device.

    Nothing is known of queries that may have other relevant items than the best (`RanksOfSeveral`).

    Args:
        state: ``(chance_size(bins),)``.
        ranked: ranks of any shape, on the device of the state.
        negatives: of sampled mode; no more candidates than these and the target are looked at.
        bins: ranks to tell apart.
    """
    if isinstance(ranked.ranks, RanksOfSeveral):
        return
    relevant, candidates = _checks.flat(ranked.ranks.relevant), _checks.flat(ranked.ranks.candidates)
    most = min((x for x in (ranked.last, None if negatives is None else negatives + 1) if x is not None), default=None)
    known = None if ranked.found else ((relevant == 1) | (relevant == NAN)).to(state.dtype)
    if ranked.width is not None and most is not None:  # the same for all of them
        added = [1.0] if most <= bins else _of_one(most, bins)
        part = state[min(most, bins + 1) :][: len(added)]
        if known is None:
            part.add_(state.new_tensor(added), alpha=relevant.shape[0])
        else:  # a tensor of numbers from the host would be waited for, arguments are not
            number = known.sum()
            for each, place in zip(added, part.unbind(), strict=True):
                place.add_(number, alpha=each)
        return
    known = torch.ones_like(relevant, dtype=state.dtype) if known is None else known
    size = candidates if negatives is None else candidates.clamp(max=negatives + 1)
    # Retrieved lists have 0 candidates, which stands for "unknown" and is not read.
    state.index_add_(0, size.clamp(max=bins + 1), known)
    if (most is None or most > bins) and _checks.some(size > bins):
        state[bins + 2 :].add_((_beyond(size, bins, state.dtype) * known).sum(1))


def _beyond(size: Tensor, bins: int, dtype: torch.dtype) -> Tensor:
    """Return what each query of more than ``bins`` candidates adds: ``(EXTRA - 1, queries)``, 0 for the others."""
    each, part = size.clamp(min=1), torch.full_like(size, bins)
    tail = reciprocals_between(part, torch.maximum(each, part)).to(dtype) / each
    return torch.stack([*whole_parts(1 / each.to(dtype)), tail]) * (size > bins)


@lru_cache
def _of_one(size: int, bins: int) -> list[float]:
    """Return what one query of ``size`` candidates, more than ``bins``, adds: itself first."""
    added: list[float] = _beyond(torch.tensor([size], device="cpu"), bins, torch.float64)[:, 0].tolist()
    return [1.0, *added]


def read_chance(state: Tensor, bins: int) -> Chance:
    """Read the chance part of a state."""
    state = state.detach().to("cpu", torch.float64)
    ranks = torch.arange(1, bins + 1, dtype=torch.float64, device="cpu")
    known, (more, coarse, fine, tail) = state[1 : bins + 1], state[bins + 1 :].tolist()
    # A query with C candidates adds 1 / C to each rank up to C; those with more than `bins` add to all.
    mass = (known / ranks).flip(0).cumsum(0).flip(0) + from_whole_parts(coarse, fine)
    return Chance(ranks, mass, tail, float(known.sum()) + more)


def candidates_range(ranked: Ranked, like: Tensor) -> Tensor:
    """Return the state ``(-smallest, largest)`` number of candidates, of the type of ``like``; reduces by the maximum.

    0 candidates are unknown, and -inf says that there was no query.
    """
    relevant, candidates = _checks.flat(ranked.ranks.relevant), _checks.flat(ranked.ranks.candidates)
    if candidates.numel() == 0:
        return torch.full_like(like, -torch.inf)
    if ranked.found and ranked.width is not None:
        return like.new_tensor((-ranked.width, ranked.width))
    seen, numbers = relevant > IGNORED, candidates.to(like.dtype)
    if ranked.width is not None:
        return torch.where(seen.any(), torch.cat([-numbers[:1], numbers[:1]]), -torch.inf)
    return torch.where(seen, torch.stack([-numbers, numbers]), -torch.inf).amax(1)
