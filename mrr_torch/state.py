"""The state of every metric: the mass of queries at each rank, and what is told of them besides.

A query adds a mass of 1, to one rank or, among ties, spread over several. The state is one float64 vector, and states
add up. Without ties a value is read from whole numbers only, so it is exact and does not depend on order, batches or
processes. (Intervals also use squares of ranks in the overflow, which do in their last bit.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mrr_torch import _checks, chance
from mrr_torch._device import state_dtype, to_device
from mrr_torch.extras import Extras, check_extras
from mrr_torch.kernels import backend
from mrr_torch.ranks import Outcome, Ranks
from mrr_torch.ranks.batch import Ranked
from mrr_torch.reading import Distribution, Reading, refuse_invalid
from mrr_torch.settings import Settings
from mrr_torch.ties import Even, far_reciprocals, standings, steps_per_rank
from mrr_torch.whole import UNIT, from_whole_parts, whole_parts

# Ranks with a bin of their own (1..1024); of those in the overflow the state keeps the number, and the sums that an MRR
# without cut-off needs.
BINS = 1024
# The overflow: mass; sum of 1 / rank**2; sum of 1 / rank in two whole parts.
OVERFLOW = 4
# Counters after the overflow: one for each outcome; queries with a rank (of weighted channels alone); queries with
# several relevant items; queries whose tie was not followed to its end.
OUTCOMES = len(Outcome)
FOUND, SEVERAL, UNRESOLVED, COUNTERS = OUTCOMES, OUTCOMES + 1, OUTCOMES + 2, OUTCOMES + 3


class RankHistogram(NamedTuple):
    """The layout of the summed state: bins of ranks, overflow, counters, a bin that is never read, the chance level.

    Attributes:
        settings: how ranks are taken.
        bins: ranks with a bin of their own.

    Each cohort has a vector of its own behind that of all queries. Where queries have weights there are three channels:
    of counts, of weights, of their squares.
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
        return self.settings.state_name, self.settings.candidates_name

    @property
    def lists(self) -> dict[str, torch.dtype]:
        """No state is a list."""
        return {}

    def empty(self, device: torch.device) -> dict[str, tuple[Tensor, str]]:
        """Return the states of no query, by name, and how each is reduced over processes."""
        dtype = state_dtype(device)
        shape = (*([1 + self.cohorts] if self.cohorts else []), *([3] if self.weighted else []), self.size)
        summed = torch.zeros(shape, dtype=dtype, device=device)
        # The range of the number of candidates, (-smallest, largest), reduces by the maximum; -inf: none was seen.
        numbers = torch.full((*shape[: bool(self.cohorts)], 2), -torch.inf, dtype=dtype, device=device)
        return {self.settings.state_name: (summed, "sum"), self.settings.candidates_name: (numbers, "max")}

    def check(self, extras: Extras, ranked: Ranked) -> tuple[Extras, Ranked]:
        """Check what is given for each query; queries with invalid values that cannot be read are marked."""
        if extras.query_ids is not None:
            expected = "None without num_queries"
            raise ValueError(_checks.message("query_ids", expected, type(extras.query_ids).__name__))
        return check_extras(extras, ranked, self.settings)

    def add(self, states: dict[str, Tensor], ranked: Ranked, extras: Extras) -> dict[str, Tensor]:
        """Return the states with a batch added, without synchronising with their device."""
        # Not in place: others may hold the state, a collection or a checkpoint.
        summed, numbers = (state.clone() for state in states.values())
        rows = summed.view(1 + self.cohorts, 3 if self.weighted else 1, self.size)
        for index in range(1 + self.cohorts):
            part, weights = ranked, extras.weights
            if index:
                part, weights = _of_cohort(ranked, weights, extras.cohort == index - 1)  # type: ignore[arg-type]
            self._add(rows[index, 0], part, None)
            if weights is not None:
                flat = _checks.flat(weights).to(rows.dtype)
                self._add(rows[index, 1], part, flat)
                self._add(rows[index, 2], part, flat * flat)
            at = numbers.view(-1, 2)[index]
            torch.maximum(at, chance.candidates_range(part, numbers), out=at)
        return dict(zip(states, (summed, numbers), strict=True))

    def read(self, states: dict[str, Tensor], *, complete: bool = True) -> Reading:
        """Read the states, waiting for their device; raise for invalid values that could not be read before."""
        summed, numbers = (to_device(state.detach(), torch.device("cpu")).double() for state in states.values())
        rows = summed.view(1 + self.cohorts, 3 if self.weighted else 1, self.size)
        readings = [
            Reading(
                self.settings,
                tuple(self._distribution(channel) for channel in row),
                tuple(chance.read(channel[self._chance :], self.bins) for channel in row),
                (-float(fewest), float(most)),
            )
            for row, (fewest, most) in zip(rows, numbers.view(-1, 2), strict=True)
        ]
        refuse_invalid(readings[0].counts.outcomes, self.settings)
        return readings[0]._replace(cohorts=tuple(readings[1:]))

    def read_alone(self, ranked: Ranked, extras: Extras) -> Reading:
        """Read the states of one batch alone."""
        states = {name: state for name, (state, _) in self.empty(ranked.ranks.higher.device).items()}
        return self.read(self.add(states, ranked, extras))

    def _distribution(self, state: Tensor) -> Distribution:
        steps = self._steps
        # Differences of fractions leave residues of either sign where nothing is.
        mass = state[:steps].clamp(min=0)
        beyond, squares, coarse, fine = state[steps : steps + OVERFLOW].tolist()
        counters = state[self._counters : self._counters + COUNTERS].tolist()
        # Each query with a rank has a mass of 1, whole or in parts; weights need not add up to whole numbers.
        found = counters[FOUND] or float(round(float(mass.sum()) + beyond))
        return Distribution(
            ranks=1 + torch.arange(steps, dtype=torch.float64, device="cpu") / steps_per_rank(self.settings.ties),
            mass=mass,
            beyond=beyond,
            tail=from_whole_parts(coarse, fine),
            tail_squares=squares,
            found=found,
            outcomes={outcome: counters[-outcome] for outcome in Outcome},
            several=counters[SEVERAL],
            unresolved=counters[UNRESOLVED],
        )

    def _add(self, state: Tensor, ranked: Ranked, weights: Tensor | None) -> None:
        """Add a batch to one vector, in place; ``weights`` ``(queries,)`` of its dtype, or None for 1 each."""
        steps, counters = self._steps, self._counters
        nowhere, kernel = counters + COUNTERS, backend(state)
        ranks = Ranks(*map(_checks.flat, ranked.ranks))
        stand = standings(ranked, self.settings.ties, self.settings.num_negatives, edge=self.bins)
        ones = state.new_ones(1).expand(ranks.higher.shape) if weights is None else weights
        # Each query adds its weight at one index: its step if it stands at just one, or its outcome. What is spread
        # over ranks goes to the index that nothing reads, and is added below.
        near = kernel.none_beyond(stand.step, steps - 1) if ranked.last is None or ranked.last > self.bins else True
        place = stand.step if near else stand.step.clamp(max=steps)
        if stand.at_step is not None:
            place = place.masked_fill(~stand.at_step, nowhere)
        if not ranked.found:
            outcome = counters - ranks.relevant.clamp(int(min(Outcome)), 0)
            place = torch.where(ranks.relevant > 0, place, outcome)
        if weights is None:
            kernel.accumulate(state, place)
        else:
            state.index_add_(0, place, weights)
        if not near:
            rank = stand.step.to(state.dtype) / steps_per_rank(self.settings.ties) + 1
            reciprocal = (place == steps) / rank
            sums = torch.stack([reciprocal * reciprocal, *whole_parts(reciprocal)])
            state[steps + 1 : steps + OVERFLOW].add_((sums if weights is None else sums * weights).sum(1))
        if not ranked.single:
            counted = (ranks.several & (ranks.relevant >= Outcome.NAN.value)) * ones
            state[counters + SEVERAL].add_(counted.sum())
        if weights is not None:
            state[counters + FOUND].add_(((ranks.relevant > 0) * ones).sum())
        if stand.even is not None:
            self._add_even(state, stand.even, weights, ranked.last)
        for block in stand.blocks:
            of_rows = None if weights is None else weights[block.rows]
            probabilities = block.probabilities.to(state.dtype)
            if of_rows is not None:
                probabilities = probabilities * of_rows[:, None]
            if block.first < steps:
                state[block.first : block.first + probabilities.shape[1]].add_(probabilities.sum(0))
            else:
                parts = [(probabilities / block.ranks**power).sum(1) for power in (0, 2, 1)]
                self._add_overflow(state, *parts)
            if block.rest is not None:
                rest = block.rest if of_rows is None else block.rest * of_rows
                state[steps].add_(rest.sum())
                state[counters + UNRESOLVED].add_((block.rest > 0).sum())
        chance.add(state[self._chance :], ranked, self.settings.num_negatives, self.bins, weights)

    def _add_even(self, state: Tensor, even: Even, weights: Tensor | None, last: int | None) -> None:
        share = even.share if weights is None else even.share * weights[even.rows]
        near = True
        if last is None or last > self.bins:
            near = backend(state).none_beyond(even.stop, self.bins)
        # Two entries for a query: differences of the mass from rank to rank.
        change = state.new_zeros(self.bins + 1)
        for at, sign in ((even.start, 1), (even.stop, -1)):
            change.index_add_(0, at if near else at.clamp(max=self.bins), share, alpha=sign)
        state[: self.bins].add_(change.cumsum(0)[:-1])
        if not near:
            low, high = (at.clamp(min=self.bins).to(state.dtype) for at in (even.start, even.stop))
            mass = (high - low) * share
            squares = mass / ((low + 0.5) * (high + 0.5))
            self._add_overflow(state, mass, squares, far_reciprocals(low, high) * share)

    def _add_overflow(self, state: Tensor, mass: Tensor, squares: Tensor, reciprocals: Tensor) -> None:
        """Add, per query, what is spread over the overflow: fractions, so nothing is gained by whole parts."""
        at = self._steps
        state[at : at + OVERFLOW - 1].add_(torch.stack([mass, squares, reciprocals * UNIT]).sum(1))


def _of_cohort(ranked: Ranked, weights: Tensor | None, where: Tensor) -> tuple[Ranked, Tensor | None]:
    """Return the queries at ``where``, and their weights: the others left out, or made padding rows."""
    kernel, where = backend(where), _checks.flat(where)
    rows = kernel.rows_at(where)
    fields = [_checks.flat(field)[rows] for field in ranked.ranks]
    padding = ~where[rows]
    relevant = fields[2].masked_fill(padding, Outcome.PADDING.value)
    weights = None if weights is None else _checks.flat(weights)[rows]
    complete = kernel.none_beyond(padding.long(), 0)
    ranks = Ranks(fields[0], fields[1], relevant, fields[3])
    return ranked._replace(ranks=ranks, found=ranked.found and complete), weights
