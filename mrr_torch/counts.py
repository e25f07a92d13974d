"""The counts of a state: the mass of queries at each rank, and what is told of them besides.

A query adds a mass of 1, to one rank or, among ties, spread over several. Counts are float64 vectors, and add up.
Without ties a value is read from whole numbers only, so it is exact and does not depend on order, batches or processes.
(Intervals also use squares of ranks in the overflow, which do in their last bit.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mrr_torch import chance
from mrr_torch._device import state_dtype
from mrr_torch.extras import Extras
from mrr_torch.ranks import SEVERAL as MARK
from mrr_torch.ranks import Outcome, read_known
from mrr_torch.ranks.batch import Ranked
from mrr_torch.reading import Distribution, Reading
from mrr_torch.settings import Settings
from mrr_torch.ties import Block, Even, far_reciprocals, standings, steps_per_rank
from mrr_torch.vectors import Vectors
from mrr_torch.whole import UNIT, from_whole_parts, whole_parts

# Ranks with a bin of their own (1..1024); of those in the overflow the state keeps the number, and the sums that an MRR
# without cut-off needs.
BINS = 1024
# The overflow: mass; sum of 1 / rank**2; sum of 1 / rank in two whole parts.
OVERFLOW = 4
# Counters after the overflow: one for each outcome; queries with a rank (of weighted channels alone); queries with
# several relevant items; queries whose tie was not followed to its end.
OUTCOMES, BY_COUNTER = len(Outcome), sorted(Outcome, reverse=True)
NAN = Outcome.NAN.value
FOUND, SEVERAL, UNRESOLVED, COUNTERS = OUTCOMES, OUTCOMES + 1, OUTCOMES + 2, OUTCOMES + 3


class Counts(NamedTuple):
    """The layout of a vector: bins of ranks, overflow, counters, an index that is never read, the chance level.

    Attributes:
        settings: how ranks are taken.
        bins: ranks with a bin of their own.

    Each cohort has a vector of its own behind that of all queries. Where queries have weights there are three channels
    of such vectors: of counts, of weights, of their squares.
    """

    settings: Settings
    bins: int

    @property
    def groups(self) -> int:
        """Number of vectors: of all queries, and of each cohort."""
        return 1 + len(self.settings.cohorts)

    @property
    def channels(self) -> int:
        """Number of channels."""
        return 3 if self.settings.weighted else 1

    @property
    def size(self) -> int:
        """Length of one vector."""
        return self._chance + chance.size(self.bins)

    @property
    def _steps(self) -> int:
        return self.bins * steps_per_rank(self.settings.ties)

    @property
    def _counters(self) -> int:
        return self._steps + OVERFLOW

    @property
    def _chance(self) -> int:
        return self._counters + COUNTERS + 1

    def empty(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the vectors of no query, and the ranges of their numbers of candidates ``(-smallest, largest)``."""
        dtype = state_dtype(device)
        channels = [self.channels] if self.channels > 1 else []
        groups = [self.groups] if self.groups > 1 else []
        # -inf: none was seen.
        ranges = torch.full((*groups, 2), -torch.inf, dtype=dtype, device=device)
        return torch.zeros((*channels, *groups, self.size), dtype=dtype, device=device), ranges

    def add(self, summed: Tensor, ranges: Tensor, ranked: Ranked, extras: Extras) -> tuple[Tensor, Tensor]:
        """Return vectors and ranges with ranks ``(queries,)`` added, without synchronising with their device."""
        ranked = ranked._replace(known=read_known(ranked.ranks, ranked.known, self.bins))
        # Not in place: others may hold the state, a collection or a checkpoint.
        summed = summed.clone()
        rows = self._by_channel(summed)
        weights: list[Tensor | None] = [None]
        if extras.weights is not None:
            heavy = extras.weights.to(summed.dtype)
            weights += [heavy, heavy * heavy]
        vectors = [Vectors(row, None, each) for row, each in zip(rows[:, :1].unbind(), weights, strict=True)]
        cohort = extras.cohort
        if cohort is not None:
            vectors += [Vectors(row, cohort, each) for row, each in zip(rows[:, 1:].unbind(), weights, strict=True)]
        self._add(vectors, ranked)
        return summed, chance.widened(ranges, ranked, cohort)

    def read(self, summed: Tensor, ranges: Tensor) -> Reading:
        """Read vectors and ranges, float64 on the CPU."""
        by_group, limits = self._by_channel(summed).unbind(1), ranges.view(-1, 2).tolist()
        whole, *cohorts = (
            Reading(
                self.settings,
                tuple(map(self._distribution, channels.unbind())),
                channels[:, self._chance :],
                (-fewest, most),
            )
            for channels, (fewest, most) in zip(by_group, limits, strict=True)
        )
        return whole._replace(cohorts=tuple(cohorts))

    def _by_channel(self, summed: Tensor) -> Tensor:
        return summed.view(self.channels, self.groups, self.size)

    def _distribution(self, state: Tensor) -> Distribution:
        steps, per_rank = self._steps, steps_per_rank(self.settings.ties)
        ranks = torch.arange(per_rank, per_rank + steps, dtype=torch.float64, device="cpu")
        # Differences of fractions leave residues of either sign where nothing is.
        mass = state[:steps].clamp(min=0)
        beyond, squares, coarse, fine, *counters = state[steps : self._counters + COUNTERS].tolist()
        # Each query with a rank has a mass of 1, whole or in parts; weights need not add up to whole numbers.
        found = counters[FOUND] or float(round(float(mass.sum()) + beyond))
        return Distribution(
            ranks=ranks if per_rank == 1 else ranks / per_rank,
            mass=mass,
            beyond=beyond,
            tail=from_whole_parts(coarse, fine),
            tail_squares=squares,
            found=found,
            outcomes=dict(zip(BY_COUNTER, counters, strict=False)),
            several=counters[SEVERAL],
            unresolved=counters[UNRESOLVED],
        )

    def _add(self, vectors: list[Vectors], ranked: Ranked) -> None:
        """Add a batch of ranks ``(queries,)`` in place."""
        ranks, known, steps, counters = ranked.ranks, ranked.known, self._steps, self._counters
        stand = standings(ranked, self.settings.ties, self.settings.num_negatives, edge=self.bins)
        # Each query adds its weight at one index: its step if it stands at just one, or its outcome. What is spread
        # over ranks goes to the index that nothing reads, and is added below.
        near = known.last <= self.bins
        place = stand.step if near else stand.step.clamp(max=steps)
        if stand.spread is not None:
            place = place.masked_fill(stand.spread, counters + COUNTERS)
        if not known.ranked:
            place = torch.where(ranks.relevant > 0, place, counters - ranks.relevant)
        for each in vectors:
            each.add(place)
        if not near:
            self._add_far(vectors, stand.step, place == steps)
        several = None
        if not known.single:
            several = ranks.several if known.wanted > 1 else ranks.candidates >= MARK
            if not known.ranked:
                several = several & (ranks.relevant >= NAN)
            for each in vectors:
                each.add_at(counters + SEVERAL, several)
        for each in vectors:
            if each.weights is not None:
                each.add_at(counters + FOUND, ranks.relevant > 0)
        if stand.even is not None:
            self._add_even(vectors, stand.even, near)
        for block in stand.blocks:
            self._add_block(vectors, block)
        chance.add(vectors, self._chance, ranked, several, self.settings.num_negatives, self.bins)

    def _add_far(self, vectors: list[Vectors], step: Tensor, far: Tensor) -> None:
        """Add what the overflow keeps, beside their mass, of the queries that stand at one rank there."""
        rank = step.to(vectors[0].vectors.dtype) / steps_per_rank(self.settings.ties) + 1
        reciprocal = far / rank
        sums = torch.stack([reciprocal * reciprocal, *whole_parts(reciprocal)])
        for each in vectors:
            each.add_far(self._steps + 1, sums)

    def _add_even(self, vectors: list[Vectors], even: Even, near: bool) -> None:
        start, stop = (x if near else x.clamp(max=self.bins) for x in (even.start, even.stop))
        for each in vectors:
            each.add_evenly(self.bins, start, stop, even.share, even.rows)
        if not near:
            low, high = (x.clamp(min=self.bins).to(even.share.dtype) for x in (even.start, even.stop))
            mass = (high - low) * even.share
            squares = mass / ((low + 0.5) * (high + 0.5))
            self._add_overflow(vectors, even.rows, mass, squares, far_reciprocals(low, high) * even.share)

    def _add_block(self, vectors: list[Vectors], block: Block) -> None:
        if block.first < self._steps:
            for each in vectors:
                each.add_rows(block.first, block.probabilities, block.rows)
        else:
            parts = [(block.probabilities / block.ranks**power).sum(1) for power in (0, 2, 1)]
            self._add_overflow(vectors, block.rows, *parts)
        if block.rest is not None:
            for each in vectors:
                each.add_at(self._steps, block.rest, block.rows)
                each.add_at(self._counters + UNRESOLVED, block.rest > 0, block.rows)

    def _add_overflow(
        self, vectors: list[Vectors], rows: Tensor | None, mass: Tensor, squares: Tensor, reciprocals: Tensor
    ) -> None:
        """Add, per query, what is spread over the overflow: fractions, so nothing is gained by whole parts."""
        sums = torch.stack([mass, squares, reciprocals * UNIT], 1)
        for each in vectors:
            each.add_rows(self._steps, sums, rows)
