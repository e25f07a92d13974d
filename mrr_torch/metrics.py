"""The metrics: each a gain over the distribution of ranks, and the distribution itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.describe import mode
from mrr_torch.functional import reciprocal_rank
from mrr_torch.intervals import Moments, wilson_interval
from mrr_torch.plots import plot_shares
from mrr_torch.protocol import outcome_count
from mrr_torch.rank_metric import RankMetric
from mrr_torch.ranks.base import EMPTY, MISSED, NAN, Ranks
from mrr_torch.summary import Reading


class MeanReciprocalRank(RankMetric):
    r"""Mean reciprocal rank: :math:`\frac{1}{|Q|} \sum_q 1 / r_q`, r the rank of the first relevant item of query q.

    A query whose relevant items are not in the list, or beyond ``top_k``, counts 0 and stays in the mean. Report the
    cut-off: MRR and MRR@10 differ. (Voorhees, TREC-8, 1999.)

    The arguments are those of `RankMetric`; ``top_k=None``, the default, is no cut-off, exact for any rank.

    >>> metric = MeanReciprocalRank()
    >>> metric.update(torch.tensor([[0.1, 0.9, 0.5], [0.8, 0.1, 0.3]]), torch.tensor([2, 0]))
    >>> metric.compute()
    tensor(0.7500)
    """

    key = "mrr"
    needs_cut_off = False

    def gain(self, ranks: Tensor) -> Tensor:
        """Return 1 / rank."""
        return 1 / ranks

    def per_query(self) -> Tensor | dict[str, Tensor]:
        """Return the reciprocal rank of each query, for paired tests between models; with ``num_queries`` only.

        Synchronised across processes like ``compute``.

        Returns:
            ``(num_queries,)`` in torch's default dtype, in the order of the ids: NaN where a query was not seen or is
            skipped. A dict of such tensors if ``top_k`` is a sequence.

        Raises:
            ValueError: the metric was made without ``num_queries``.
        """
        if self.num_queries is None:
            raise ValueError(_checks.message("num_queries", "the number of queries, for per_query", "None"))
        with self._synchronised():
            ranks = self._read_table().ranks
        ranks = Ranks(*(field[:-1] for field in ranks))
        settings = self.protocol._asdict()
        values = {self._name(k): reciprocal_rank(ranks, top_k=k, **settings).to(self.device) for k in self._cuts}
        return values if isinstance(self.top_k, Sequence) else values[self._name(self._cuts[0])]


class HitRate(RankMetric):
    """Hit rate (recall@k of one relevant item): the share of queries whose first relevant item is at a rank <= k.

    The arguments are those of `RankMetric`; ``top_k`` has to be given.

    >>> metric = HitRate(top_k=[1, 2])
    >>> metric.update(torch.tensor([[0.1, 0.9, 0.5], [0.8, 0.1, 0.3]]), torch.tensor([2, 0]))
    >>> metric.compute()
    {'hit_rate@1': tensor(0.5000), 'hit_rate@2': tensor(1.)}
    """

    key = "hit_rate"

    def interval(self, moments: Moments, confidence: float) -> tuple[float, float]:
        """Return Wilson's interval of a share."""
        return wilson_interval(moments, confidence)

    def gain(self, ranks: Tensor) -> Tensor:
        """Return 1."""
        return torch.ones_like(ranks)


class NormalizedDCG(RankMetric):
    r"""NDCG of one relevant item: the mean of :math:`1 / \log_2(1 + r_q)`, whose ideal value is 1 at rank 1.

    With several relevant items it is that of the first; for graded relevance of many use
    `torchmetrics.retrieval.RetrievalNormalizedDCG`. (Järvelin and Kekäläinen, 2002.)

    The arguments are those of `RankMetric`; ``top_k`` has to be given.

    >>> metric = NormalizedDCG(top_k=10)
    >>> metric.update(torch.tensor([[0.1, 0.9, 0.5], [0.8, 0.1, 0.3]]), torch.tensor([2, 0]))
    >>> metric.compute()
    tensor(0.8155)
    """

    key = "ndcg"

    def gain(self, ranks: Tensor) -> Tensor:
        """Return 1 / log2(1 + rank)."""
        return 1 / (1 + ranks).log2()


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

    def compute(self) -> Tensor:
        """Return ``(top_k + 1,)``: the mass of queries at ranks 1 .. top_k, and beyond; misses are in none of these.

        Without ties these are whole numbers. Realistic ranks half-way between two count at the higher number.
        """
        return self._result(self._mass(self._read()))

    def missed(self) -> Tensor:
        """Return the number of queries whose relevant item was not retrieved or has no score; synchronised."""
        with self._synchronised():
            return self._result(torch.tensor(self._missed(self._read()), dtype=torch.float64))

    def quantile(self, q: float | Sequence[float]) -> Tensor:
        """Return quantiles of the rank over all queries; 0.5 is the median.

        Args:
            q: one or more numbers within 0 .. 1.

        Returns:
            A scalar, or one value for each q: the lowest rank that at least this share of the queries reaches; inf for
            ranks beyond the larger of ``top_k`` and 1,024, and for misses. NaN without queries. Synchronised.

        Raises:
            ValueError: a number outside 0 .. 1.
        """
        shares = torch.tensor(q, dtype=torch.float64, device="cpu")
        if not bool(((shares >= 0) & (shares <= 1)).all()):
            raise ValueError(_checks.message("q", "numbers within 0..1", q))
        with self._synchronised():
            reading = self._read()
        seen, queries = reading.distribution, reading.queries
        if not queries:
            return self._result(torch.full_like(shares, torch.nan))
        # A little less than asked for: sums of thirds must not miss a whole number by the last bit.
        reached = torch.searchsorted(
            self._with_certain(reading).cumsum(0), (shares * queries - 1e-9 * queries).clamp(min=1e-9)
        )
        return self._result(torch.cat([seen.ranks, seen.ranks.new_tensor([torch.inf])])[reached])

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Draw the share of queries at each rank, beyond, and missed; for several models side by side.

        Args:
            val: a dict of the models' `RankDistribution` metrics by name; or a value of ``compute`` or ``forward``, or
                a sequence of them, of whose queries the shares with a rank are drawn; this metric alone if None.
            ax: axes to draw into.

        Returns:
            figure and axes.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.
            ValueError: metrics of another protocol, which can't be compared.
        """
        shares: dict[str, tuple[Tensor, float | None]] = {}
        if val is not None and not isinstance(val, dict):  # collections and wrappers of torchmetrics hand values on
            names = [type(self).__name__] if isinstance(val, Tensor) else [str(step) for step in range(len(val))]
            for name, mass in zip(names, [val] if isinstance(val, Tensor) else val, strict=True):
                shares[name] = mass.cpu() / mass.sum().clamp(min=1).cpu(), None
            return plot_shares(shares, f"queries with a rank; ties: {self.protocol.ties}", ax)
        metrics = {type(self).__name__: self} if val is None else val
        for name, metric in metrics.items():
            if metric.protocol != self.protocol:
                raise ValueError(
                    _checks.message("val", f"metrics with {self.protocol}", f"{name!r} with {metric.protocol}")
                )
        for name, metric in metrics.items():
            with metric._synchronised():
                reading = metric._read()
            queries = max(reading.queries, 1)
            shares[name] = metric._mass(reading) / queries, metric._missed(reading) / queries
        title = f"{reading.queries:,} queries; {mode(self.protocol, reading.candidates)}; ties: {self.protocol.ties}"
        return plot_shares(shares, title, ax)

    def _mass(self, reading: Reading) -> Tensor:
        top_k, seen = self._cuts[0] or 0, reading.distribution
        place = seen.ranks.ceil().long().clamp(max=top_k + 1) - 1
        mass = seen.mass.new_zeros(top_k + 1).index_add_(0, place, self._with_certain(reading))
        mass[-1] += seen.beyond
        return mass

    def _with_certain(self, reading: Reading) -> Tensor:
        """Return the mass at each rank, queries that count 1 without a relevant item at rank 1."""
        mass = reading.distribution.mass.clone()
        if self.protocol.empty_target_action == "pos":
            mass[0] += outcome_count(reading.outcomes, EMPTY)
        return mass

    def _missed(self, reading: Reading) -> float:
        codes = (MISSED, NAN, EMPTY) if self.protocol.empty_target_action == "neg" else (MISSED, NAN)
        return float(sum(outcome_count(reading.outcomes, code) for code in codes))

    def _result(self, values: Tensor) -> Tensor:
        return values.to(self.device, torch.get_default_dtype())

    def _check_cuts(self, top_k: Any) -> list[int | None]:
        return [_checks.positive_int("top_k", top_k)]
