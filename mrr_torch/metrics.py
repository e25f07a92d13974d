"""The metrics: each a gain over the distribution of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.functional import reciprocal_rank
from mrr_torch.intervals import Moments, wilson_interval
from mrr_torch.rank_metric import RankMetric
from mrr_torch.reading import Reading
from mrr_torch.settings import check_cuts


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
        ranks = self._reading().ranks
        assert ranks is not None
        settings = {name: getattr(self.settings, name) for name in ("ties", "empty_target_action", "num_negatives")}
        values = {self._name(k): reciprocal_rank(ranks, top_k=k, **settings).to(self.device) for k in self._cuts}
        return values if isinstance(self.top_k, Sequence) else values[self._name(self._cuts[0])]

    def _check_cuts(self, top_k: Any) -> list[int | None]:
        # What the state keeps of ranks in the overflow is for a gain of 1 / rank; a subclass may have another.
        return check_cuts(top_k, needs_cut_off=type(self).gain is not MeanReciprocalRank.gain)


class HitRate(RankMetric):
    """Hit rate (recall@k of one relevant item): the share of queries whose first relevant item is at a rank <= k.

    The arguments are those of `RankMetric`, but ``top_k`` has to be given: a hit rate without a cut-off is always 1.

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

    The state knows the first relevant item only, so ``compute`` raises for queries with several: for these, and for
    graded relevance, use `torchmetrics.retrieval.RetrievalNormalizedDCG`. (Järvelin and Kekäläinen, 2002.)

    The arguments are those of `RankMetric`, but ``top_k`` has to be given.

    >>> metric = NormalizedDCG(top_k=10)
    >>> metric.update(torch.tensor([[0.1, 0.9, 0.5], [0.8, 0.1, 0.3]]), torch.tensor([2, 0]))
    >>> metric.compute()
    tensor(0.8155)
    """

    key = "ndcg"

    def gain(self, ranks: Tensor) -> Tensor:
        """Return 1 / log2(1 + rank)."""
        return 1 / (1 + ranks).log2()

    def _moments(self, reading: Reading, k: int | None) -> Moments:
        several = reading.counts.several
        if several:
            expected = "queries with one relevant item (torchmetrics' RetrievalNormalizedDCG takes several)"
            raise ValueError(_checks.message("target", expected, f"several in {_checks.queries(several)}"))
        return super()._moments(reading, k)
