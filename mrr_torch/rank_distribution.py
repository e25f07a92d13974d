"""The distribution of ranks itself, as a metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.intervals import Moments, wilson_interval
from mrr_torch.rank_metric import RankMetric
from mrr_torch.ranks import Outcome
from mrr_torch.reading import Reading
from mrr_torch.report import mode, plot_shares


class RankDistribution(RankMetric):
    """The distribution of ranks itself: how many queries have their first relevant item at each rank.

    An average hides whether a model is a little wrong everywhere or very wrong for some. It shares the compute group of
    the other metrics with the same settings.

    The arguments are those of `RankMetric`; ``top_k`` is one positive int, ``confidence`` is for ``describe`` alone.

    >>> metric = RankDistribution(top_k=2)
    >>> metric.update(torch.tensor([[0.1, 0.9, 0.5], [0.8, 0.1, 0.3], [3.0, 2.0, 1.0]]), torch.tensor([2, 0, 2]))
    >>> metric.compute()
    tensor([1., 1., 1.])
    """

    key = "rank_distribution"
    higher_is_better = None
    plot_upper_bound = None

    def gain(self, ranks: Tensor) -> Tensor:
        """Return 1, for the share of queries within the cut-off that ``describe`` tells."""
        return torch.ones_like(ranks)

    def interval(self, moments: Moments, confidence: float) -> tuple[float, float]:
        """Return Wilson's interval of a share."""
        return wilson_interval(moments, confidence)

    def _result_of(self, reading: Reading) -> Tensor | dict[str, Tensor]:
        masses = {self.key + suffix: self._result(self._mass(part)) for suffix, part in reading.by_cohort()}
        return masses if self.settings.cohorts else masses[self.key]

    def compute(self) -> Tensor | dict[str, Tensor]:
        """Return ``(top_k + 1,)``: the mass of queries at ranks 1 .. top_k, and beyond; misses are in none of these.

        Without ties these are whole numbers; with weights sums of weights. Realistic ranks half-way between two count
        at the higher number. With ``cohorts`` a dict, one entry for all queries and one for each cohort.
        """
        return super().compute()

    def missed(self, *, cohort: str | None = None) -> Tensor:
        """Return the number of queries whose relevant item was not retrieved or has no score; synchronised.

        Args:
            cohort: name of a cohort; all queries if None.
        """
        return self._result(torch.tensor(self._missed(self._part(cohort)), dtype=torch.float64, device="cpu"))

    def quantile(self, q: float | Sequence[float], *, cohort: str | None = None) -> Tensor:
        """Return quantiles of the rank over all queries; 0.5 is the median.

        Args:
            q: one or more numbers within 0 .. 1.
            cohort: name of a cohort; all queries if None.

        Returns:
            A scalar, or one value for each q: the lowest rank that at least this share of the queries reaches; inf for
            ranks beyond the larger of ``top_k`` and 1,024, and for misses. NaN without queries. Synchronised.

        Raises:
            ValueError: a number outside 0 .. 1.
        """
        shares = torch.tensor(q, dtype=torch.float64, device="cpu")
        if not bool(((shares >= 0) & (shares <= 1)).all()):
            raise ValueError(_checks.message("q", "numbers within 0..1", q))
        reading = self._part(cohort)
        seen, queries = reading.weighted, reading.total
        if not queries:
            return self._result(torch.full_like(shares, torch.nan))
        # A little less than asked for: sums of thirds must not miss a whole number by the last bit.
        wanted = (shares - 1e-9).clamp(min=1e-9) * queries
        reached = torch.searchsorted(self._with_certain(reading).cumsum(0), wanted)
        return self._result(torch.cat([seen.ranks, seen.ranks.new_tensor([torch.inf])])[reached])

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Draw the share of queries at each rank, beyond, and missed; for several models side by side.

        Args:
            val: a dict of the models' `RankDistribution` metrics by name; or a value of ``compute`` or ``forward``, or
                a sequence or dict of them, of whose queries those with a rank are drawn; this metric alone if None.
            ax: axes to draw into.

        Returns:
            figure and axes.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.
            ValueError: metrics with other settings, which can't be compared.
        """
        shares: dict[str, tuple[Tensor, float | None]] = {}
        if isinstance(val, Tensor):  # collections and wrappers of torchmetrics hand values on
            val = {type(self).__name__: val}
        elif val is not None and not isinstance(val, dict):
            val = {str(step): mass for step, mass in enumerate(val)}
        if val and all(isinstance(mass, Tensor) for mass in val.values()):
            for name, mass in val.items():
                shares[name] = mass.cpu() / (float(mass.sum()) or 1.0), None
            return plot_shares(shares, f"queries with a rank; ties: {self.settings.ties}", ax)
        metrics = {type(self).__name__: self} if val is None else val
        for name, metric in metrics.items():
            if metric.settings != self.settings:
                expected = f"metrics with {self.settings}"
                raise ValueError(_checks.message("val", expected, f"{name!r} with {metric.settings}"))
        for name, metric in metrics.items():
            reading = metric._reading()
            number = reading.total or 1.0
            shares[name] = metric._mass(reading) / number, metric._missed(reading) / number
        queries = _checks.queries(reading.queries)
        title = f"{queries}; {mode(self.settings, reading.candidates)}; ties: {self.settings.ties}"
        return plot_shares(shares, title, ax)

    def _part(self, cohort: str | None) -> Reading:
        """Return the reading of all queries, or of a cohort."""
        if cohort is not None:
            _checks.one_of("cohort", cohort, self.settings.cohorts)
        return dict(self._reading().by_cohort())["" if cohort is None else f"/{cohort}"]

    def _mass(self, reading: Reading) -> Tensor:
        top_k, seen = self._cuts[0] or 0, reading.weighted
        step = seen.ranks.ceil().long().clamp(max=top_k + 1) - 1
        mass = seen.mass.new_zeros(top_k + 1).index_add_(0, step, self._with_certain(reading))
        mass[-1] += seen.beyond
        return mass

    def _with_certain(self, reading: Reading) -> Tensor:
        """Return the mass at each rank, queries that count 1 without a relevant item at rank 1."""
        mass = reading.weighted.mass.clone()
        mass[0] += reading.certain
        return mass

    def _missed(self, reading: Reading) -> float:
        empty = (Outcome.EMPTY,) if self.settings.empty_target_action == "neg" else ()
        return sum(reading.weighted.outcomes[outcome] for outcome in (Outcome.MISSED, Outcome.NAN, *empty))

    def _result(self, values: Tensor) -> Tensor:
        return values.to(self.device, torch.get_default_dtype())

    def _check_cuts(self, top_k: Any) -> list[int | None]:
        return [_checks.positive_int("top_k", top_k)]
