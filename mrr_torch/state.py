"""The state of every metric: the mass of queries at each rank, and what is told of them besides.

A query adds a mass of 1, to one rank or, among ties, spread over several. The state is one float64 vector, and states
add up. Without ties a value is read from whole numbers only, so it is exact and does not depend on order, batches or
processes. (Intervals also use squares of ranks in the overflow, which do in their last bit.)

An update only ranks. The counts of its queries wait, and are added up many batches at a time, or when they are read.
But a host adds at once a batch that comes when none waits: the first one, and the first after a reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mrr_torch import _checks, chance
from mrr_torch._device import compiling, readable, state_dtype, to_device
from mrr_torch._gather import parts_of
from mrr_torch.extras import Extras, check_extras, packed, unpacked
from mrr_torch.ranks import SEVERAL as MARK
from mrr_torch.ranks import Outcome, Ranks, read_known
from mrr_torch.ranks.batch import Ranked
from mrr_torch.reading import Distribution, Reading, refuse_invalid
from mrr_torch.settings import Settings
from mrr_torch.ties import Block, Even, far_reciprocals, standings, steps_per_rank
from mrr_torch.vectors import Vectors
from mrr_torch.whole import UNIT, from_whole_parts, whole_parts

# Ranks with a bin of their own (1..1024); of those in the overflow the state keeps the number, and the sums that an MRR
# without cut-off needs.
BINS = 1024
# The overflow: mass; sum of 1 / rank**2; sum of 1 / rank in two whole parts.
OVERFLOW = 4
# What may wait to be added up: numbers, 4 to 6 of a query, where they can be read (2 MiB) and elsewhere (8 MiB), and
# batches, before they are put together.
READABLE_WAITING, WAITING, PARTS = 2**18, 2**20, 64
# Counters after the overflow: one for each outcome; queries with a rank (of weighted channels alone); queries with
# several relevant items; queries whose tie was not followed to its end.
OUTCOMES, BY_COUNTER = len(Outcome), sorted(Outcome, reverse=True)
NAN = Outcome.NAN.value
FOUND, SEVERAL, UNRESOLVED, COUNTERS = OUTCOMES, OUTCOMES + 1, OUTCOMES + 2, OUTCOMES + 3


class RankHistogram(NamedTuple):
    """The layout of the summed state: bins of ranks, overflow, counters, a bin that is never read, the chance level.

    Attributes:
        settings: how ranks are taken.
        bins: ranks with a bin of their own.

    Each cohort has a vector of its own behind that of all queries. Where queries have weights there are three channels
    of such vectors: of counts, of weights, of their squares.
    """

    settings: Settings
    bins: int

    @property
    def cohorts(self) -> int:
        """Number of cohorts."""
        return len(self.settings.cohorts)

    @property
    def weighted(self) -> bool:
        """True if queries have weights."""
        return self.settings.weighted

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

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the states."""
        return self.settings.state_name, self.settings.candidates_name, *self.lists

    @property
    def lists(self) -> dict[str, torch.dtype]:
        """Names of the states that are lists of tensors, and the dtype that holds their values."""
        return {f"waiting_for_{self.settings.state_name}": torch.int64}

    def empty(self, device: torch.device) -> dict[str, tuple[Any, str]]:
        """Return the states of no query, by name, and how each is reduced over processes."""
        dtype = state_dtype(device)
        channels, groups = [3] * self.weighted, [1 + self.cohorts] * bool(self.cohorts)
        summed = torch.zeros((*channels, *groups, self.size), dtype=dtype, device=device)
        # The range of the number of candidates, (-smallest, largest), reduces by the maximum; -inf: none was seen.
        numbers = torch.full((*groups, 2), -torch.inf, dtype=dtype, device=device)
        return dict(zip(self.names, ((summed, "sum"), (numbers, "max"), ([], "cat")), strict=True))

    def check(self, extras: Extras, ranked: Ranked) -> tuple[Extras, Ranked]:
        """Check what is given for each query; queries with invalid values that cannot be read are marked."""
        if extras.query_ids is not None:
            expected = "None without num_queries"
            raise ValueError(_checks.message("query_ids", expected, type(extras.query_ids).__name__))
        return check_extras(extras, ranked, self.settings)

    def add(self, states: Sequence[Any], ranked: Ranked, extras: Extras) -> tuple[Any, ...]:
        """Return the states with a batch added, without synchronising with their device."""
        summed, numbers, waiting = states
        if not (compiling() or ranked.ranks.higher.numel()):
            return tuple(states)
        # To add a batch up takes some forty small operations, more than to rank a small one: so it waits for others.
        # Where nothing waits a host adds it, since it may be read before the next one comes; an empty part in the list
        # makes the next one wait. For a list that grows `torch.compile` would compile anew.
        host = readable(summed)
        if len(waiting) if host else not compiling():
            parts = [*waiting, packed(ranked.ranks, extras, summed.dtype)]
            # Beyond, on an accelerator: what is known of this batch bounds its ties; of many that waited nothing is.
            if host or _size(parts) <= WAITING:
                return self.bounded((summed, numbers, parts))
        ranks = Ranks(*map(_checks.flat, ranked.ranks))
        extras = Extras(*(None if value is None else _checks.flat(value) for value in extras))
        added = self._added(summed, numbers, ranked._replace(ranks=ranks), extras)
        return *added, [ranks.higher.new_empty(0)] if host else waiting

    def bounded(self, states: Sequence[Any]) -> tuple[Any, ...]:
        """Return the states with no more waiting than memory and time allow, without synchronising."""
        summed, numbers, waiting = states
        most = READABLE_WAITING if readable(summed) else WAITING
        if len(waiting) < PARTS and _size(waiting) <= most:
            return tuple(states)
        if not _size(waiting):
            return summed, numbers, waiting[:1]
        together = _together(parts_of(waiting))
        if together.numel() <= most:
            return summed, numbers, [together]
        return *self._added(summed, numbers, *self._unpacked(together, summed.dtype)), []

    def settled(self, states: Sequence[Any]) -> tuple[Any, ...]:
        """Return the states on their device with nothing that waits to be added up, for which it is waited."""
        if not len(states[2]):
            return tuple(states)
        if not parts_of(states[2]):
            return *states[:2], []
        like = states[0]
        return *(to_device(state.to(like.dtype), like.device) for state in self._on_host(states)), []

    def _on_host(self, states: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Return the state and the ranges, float64 on the CPU, with what waits added."""
        cpu, parts = torch.device("cpu"), parts_of(states[2])
        summed, numbers = (to_device(state, cpu).double() for state in states[:2])
        if not parts:
            return summed, numbers
        waiting = to_device(_together(parts), cpu)
        return self._added(summed, numbers, *self._unpacked(waiting, states[0].dtype))

    def _unpacked(self, waiting: Tensor, dtype: torch.dtype) -> tuple[Ranked, Extras]:
        ranks, extras = unpacked(waiting, dtype, bool(self.cohorts), self.weighted)
        return Ranked(ranks), extras

    def _added(self, summed: Tensor, numbers: Tensor, ranked: Ranked, extras: Extras) -> tuple[Tensor, Tensor]:
        """Return the state and the ranges with ranks ``(queries,)`` added."""
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
        return summed, chance.widened(numbers, ranked, cohort)

    def read(self, states: Sequence[Any], *, complete: bool = True) -> Reading:
        """Read the states, waiting for their device; raise for invalid values that could not be read before."""
        summed, numbers = self._on_host(states)
        by_group, ranges = self._by_channel(summed).unbind(1), numbers.view(-1, 2).tolist()
        readings = [
            Reading(
                self.settings,
                tuple(map(self._distribution, channels.unbind())),
                channels[:, self._chance :],
                (-fewest, most),
            )
            for channels, (fewest, most) in zip(by_group, ranges, strict=True)
        ]
        refuse_invalid(readings[0].counts.outcomes, self.settings)
        return readings[0]._replace(cohorts=tuple(readings[1:]))

    def _by_channel(self, summed: Tensor) -> Tensor:
        return summed.view(3 if self.weighted else 1, 1 + self.cohorts, self.size)

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


def _together(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _size(parts: list[Tensor]) -> int:
    return sum(part.numel() for part in parts)
