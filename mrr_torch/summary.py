"""The summed state of a metric, and what is read from it: means of gains over the queries, and over chance."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.chance import Chance, add_chance, candidates_range, chance_size, read_chance
from mrr_torch.distribution import Distribution, add_ranks, read, state_dtype, state_size
from mrr_torch.intervals import Moments
from mrr_torch.protocol import Protocol, outcome_count, refuse_faults
from mrr_torch.ranks.base import EMPTY, FOUND, MISSED, NAN, UNRESOLVED
from mrr_torch.ranks.forms import Ranked

Gain = Callable[[Tensor], Tensor]


class Reading(NamedTuple):
    """What a metric knows of its queries, on the CPU.

    Attributes:
        protocol: how they were ranked.
        distribution: of their ranks.
        chance: the same for a scorer of random numbers.
        candidates: the smallest and the largest number of candidates.
    """

    protocol: Protocol
    distribution: Distribution
    chance: Chance
    candidates: tuple[float, float]

    @property
    def outcomes(self) -> list[float]:
        """Return how many queries were found, and how many ended otherwise."""
        return self.distribution.outcomes

    @property
    def queries(self) -> int:
        """Return how many queries a mean is over."""
        skip = self.protocol.empty_target_action == "skip"
        return sum(outcome_count(self.outcomes, code) for code in (FOUND, MISSED, NAN, *(() if skip else (EMPTY,))))

    def moments(self, gain: Gain, k: int | None) -> Moments:
        """Return mean and mean square of a gain, cut off at ``k``, over all queries that count."""
        seen = self.distribution
        if k is not None:
            return self._add_up(gain(seen.ranks) * (seen.ranks <= k))
        unresolved = outcome_count(self.outcomes, UNRESOLVED)
        if unresolved:
            wanted = f"scores or a top_k where several relevant items tie beyond rank {seen.ranks.shape[0]}"
            raise ValueError(_checks.message("preds", wanted, f"Ranks with such ties, in {unresolved} queries, no top_k"))
        return self._add_up(gain(seen.ranks), seen.tail, seen.tail_squares)

    def moments_of(self, gains: Tensor) -> Moments:
        """Return mean and mean square of gains ``(n,)`` given for the ranks 1 .. n; 0 beyond; the mean within 0..1."""
        place, last = self.distribution.ranks - 1, gains.shape[0] - 1
        # Realistic ranks half-way between two count the mean of both.
        low, high = (gains[x.long().clamp(max=last)] for x in (place.floor(), place.ceil()))
        moments = self._add_up((low + high) / 2 * (place <= last))
        return moments._replace(mean=max(moments.mean, 0.0))

    def by_chance(self, gain: Gain, k: int | None) -> float | None:
        """Return the mean gain of a scorer of random numbers; None unless all queries that count are known."""
        if not self.queries or self.chance.queries != self.queries:
            return None
        ranks = self.chance.ranks
        total = float((self.chance.mass * (gain(ranks) if k is None else gain(ranks) * (ranks <= k))).sum())
        return (total + (self.chance.tail if k is None else 0.0)) / self.queries

    def _add_up(self, gains: Tensor, tail: float = 0.0, tail_squares: float = 0.0) -> Moments:
        if not self.queries:
            return Moments(0, 0.0, 0.0)
        mass = self.distribution.mass
        certain = outcome_count(self.outcomes, EMPTY) if self.protocol.empty_target_action == "pos" else 0
        total = float((mass * gains).sum()) + tail + certain
        squares = float((mass * gains**2).sum()) + tail_squares + certain
        # Masses of tied queries are sums of fractions, and may exceed the number of queries by the last bit.
        return Moments(self.queries, min(total / self.queries, 1.0), squares / self.queries)


class Summary(NamedTuple):
    """The layout of the summed state: the distribution of ranks, then what chance would give.

    Attributes:
        protocol: how ranks are taken.
        bins: ranks that are told apart.
    """

    protocol: Protocol
    bins: int

    def empty(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the sums of no query, and the range of the number of candidates, which reduces by the maximum."""
        dtype, size = state_dtype(device), state_size(self.bins, self.protocol.ties) + chance_size(self.bins)
        unknown = torch.full((2,), -torch.inf, dtype=dtype, device=device)
        return torch.zeros(size, dtype=dtype, device=device), unknown

    def add(self, summed: Tensor, candidates: Tensor, ranked: Ranked) -> tuple[Tensor, Tensor]:
        """Return both with a batch added, without waiting for their device."""
        size, negatives = state_size(self.bins, self.protocol.ties), self.protocol.num_negatives
        summed = summed.clone()
        add_ranks(
            summed,
            ranked.ranks,
            ties=self.protocol.ties,
            bins=self.bins,
            negatives=negatives,
            last=ranked.last,
            single=ranked.single,
            found=ranked.found,
        )
        add_chance(summed[size:], ranked, negatives=negatives, bins=self.bins)
        return summed, torch.maximum(candidates, candidates_range(ranked, candidates))

    def read(self, summed: Tensor, candidates: Tensor) -> Reading:
        """Read the state; raise for faults that could not be seen before, and warn of NaN targets."""
        size = state_size(self.bins, self.protocol.ties)
        seen = read(summed[:size], self.bins, self.protocol.ties)
        refuse_faults(seen.outcomes, self.protocol.empty_target_action)
        fewest, most = candidates.tolist()
        return Reading(self.protocol, seen, read_chance(summed[size:], self.bins), (-fewest, most))
