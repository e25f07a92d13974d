"""A state, read: means of gains over the queries, their spread, and the chance level."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from mrr_torch import _checks, chance
from mrr_torch.intervals import Moments
from mrr_torch.kernels import readable
from mrr_torch.ranks import Outcome, Ranks
from mrr_torch.settings import Settings
from mrr_torch.ties import steps_per_rank

Gain = Callable[[Tensor], Tensor]

NO_RELEVANT = _checks.message(
    "target", "a relevant item in every query (empty_target_action='error')", "none in {queries}"
)


class Distribution(NamedTuple):
    """The distribution of ranks, float64 on the CPU; of counts, of weights, or of squared weights.

    Attributes:
        ranks: ``(steps,)``; 1, 2, ... or 1, 1.5, ... for realistic ties.
        mass: ``(steps,)``; queries at each of them.
        beyond: mass in the overflow.
        tail: sum of 1 / rank over the overflow.
        tail_squares: sum of 1 / rank**2 over the overflow.
        found: queries with a rank.
        outcomes: queries with each outcome.
        several: queries with several relevant items.
        unresolved: queries with a tie that goes on in the overflow, of which only the mass is known.
    """

    ranks: Tensor
    mass: Tensor
    beyond: float
    tail: float
    tail_squares: float
    found: float
    outcomes: dict[Outcome, float]
    several: float
    unresolved: float


class Reading(NamedTuple):
    """What a metric knows of its queries, on the CPU.

    Attributes:
        settings: how they were ranked.
        channels: the distribution of their ranks: of counts; with weights also of weights and of squared weights.
        random: ``(channels, ...)``; the chance parts of the vectors.
        candidates: the smallest and the largest number of candidates.
        cohorts: the same of each cohort.
        ranks: ``(num_queries,)``; of each query of a fixed set, in the order of the ids; skipped where not seen.
    """

    settings: Settings
    channels: tuple[Distribution, ...]
    random: Tensor
    candidates: tuple[float, float]
    cohorts: tuple[Reading, ...] = ()
    ranks: Ranks | None = None

    @property
    def counts(self) -> Distribution:
        """The distribution of ranks, by number of queries."""
        return self.channels[0]

    @property
    def weighted(self) -> Distribution:
        """The distribution of ranks, by weight of queries; 1 each if they have none."""
        return self.channels[0] if len(self.channels) == 1 else self.channels[1]

    @property
    def queries(self) -> int:
        """How many queries a mean is over."""
        return int(self._total(self.counts))

    @property
    def total(self) -> float:
        """Their weight."""
        return self._total(self.weighted)

    @property
    def certain(self) -> float:
        """Weight of the queries that count 1 without a relevant item."""
        return self._certain(self.weighted)

    def by_cohort(self) -> list[tuple[str, Reading]]:
        """Return the reading of all queries and of each cohort, each with the suffix of its names."""
        cohorts = zip(self.settings.cohorts, self.cohorts, strict=True)
        return [("", self), *((f"/{name}", part) for name, part in cohorts)]

    def count(self, outcome: Outcome) -> int:
        """Return the number of queries with an outcome."""
        return int(self.counts.outcomes[outcome])

    def moments(self, gain: Gain, k: int | None, tail: bool = False) -> Moments:
        """Return mean and spread of a gain over all queries that count, cut off at ``k``.

        Without a cut-off the gain in the overflow is 1 / rank (``tail``), or 0.
        """
        ranks = self.counts.ranks
        if k is not None:
            steps = self._steps(k)
            return self._moments(gain(ranks[:steps]), steps)
        gains = gain(ranks)
        if self.counts.unresolved and tail:
            expected = f"scores or a top_k where several relevant items tie beyond rank {ranks.shape[0]:,}"
            got = f"Ranks with such ties, in {_checks.queries(self.counts.unresolved)}, no top_k"
            raise ValueError(_checks.message("preds", expected, got))
        return self._moments(gains, None, tail=tail)

    def moments_of(self, gains: Tensor) -> Moments:
        """Return mean and spread of gains ``(n,)`` given for the ranks 1 .. n; 0 beyond; the mean within 0..1."""
        at = self.counts.ranks[: self._steps(gains.shape[0])] - 1
        # Realistic ranks half-way between two count the mean of both.
        moments = self._moments((gains[at.floor().long()] + gains[at.ceil().long()]) / 2, at.shape[0])
        return moments._replace(mean=max(moments.mean, 0.0))

    def by_chance(self, gain: Gain, k: int | None) -> float | None:
        """Return the chance level of a gain; None unless the number of candidates of all queries is known."""
        chances = [chance.read(part) for part in self.random]
        if not self.queries or chances[0].queries != self.queries:
            return None
        known = chances[0] if len(chances) == 1 else chances[1]
        total = float((known.mass[:k] * gain(known.ranks[:k])).sum())
        whole = self.total
        return (total + (known.tail if k is None else 0.0)) / whole if whole else None

    def _steps(self, k: int) -> int:
        """Return the number of steps up to rank ``k``."""
        return (k - 1) * steps_per_rank(self.settings.ties) + 1

    def _total(self, seen: Distribution) -> float:
        skip = self.settings.empty_target_action == "skip"
        outcomes = (Outcome.MISSED, Outcome.NAN, *(() if skip else (Outcome.EMPTY,)))
        return seen.found + sum(seen.outcomes[outcome] for outcome in outcomes)

    def _certain(self, seen: Distribution) -> float:
        return seen.outcomes[Outcome.EMPTY] if self.settings.empty_target_action == "pos" else 0.0

    def _moments(self, gains: Tensor, steps: int | None, *, tail: bool = False) -> Moments:
        """Return mean, variance and effective number of queries whose gains at the first ``steps`` are ``gains``."""

        def sums(seen: Distribution) -> tuple[float, float]:
            certain, parts = self._certain(seen), seen.mass[:steps] * gains
            total = float(parts.sum()) + (seen.tail if tail else 0.0) + certain
            return total, float((parts * gains).sum()) + (seen.tail_squares if tail else 0.0) + certain

        whole = self.total
        if not whole:
            return Moments(0, 0.0, 0.0, 0.0)
        total, squares = sums(self.weighted)
        # Masses of tied queries are sums of fractions, and may exceed the number of queries by the last bit.
        mean = min(total / whole, 1.0)
        if len(self.channels) == 1:
            return Moments(int(whole), mean, max(squares / whole - mean**2, 0.0), whole)
        squared = self.channels[2]
        total, squares = sums(squared)
        sum_of_squares = self._total(squared)
        if not sum_of_squares:  # of weights so small that their squares are 0, nothing is known but the mean
            return Moments(self.queries, mean, 0.0, 0.0)
        variance = (squares - 2 * mean * total + mean**2 * sum_of_squares) / sum_of_squares
        return Moments(self.queries, mean, max(variance, 0.0), whole**2 / sum_of_squares)


def refuse_invalid(counts: Mapping[Outcome, float], settings: Settings) -> None:
    """Raise for invalid values that could not be read when they came, and warn of targets without a score."""
    if not any(counts.values()):
        return
    for outcome, count in counts.items():
        if count and outcome.invalid:
            raise ValueError(outcome.message.format(queries=_checks.queries(count)))
    empty, nan = counts[Outcome.EMPTY], counts[Outcome.NAN]
    if settings.empty_target_action == "error" and empty:
        raise ValueError(NO_RELEVANT.format(queries=_checks.queries(empty)))
    if nan:
        text = f"The score of the relevant item was NaN in {_checks.queries(nan)}; they count as misses."
        rank_zero_warn(text, UserWarning)


def refuse_empty(ranks: Ranks) -> None:
    """Raise for queries without a relevant item, where they can be read."""
    if readable(ranks.relevant):
        count = int((ranks.relevant == Outcome.EMPTY.value).sum())
        if count:
            raise ValueError(NO_RELEVANT.format(queries=_checks.queries(count)))
