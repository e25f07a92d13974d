"""`ranking_metrics`: MRR, hit rate and NDCG at each cut-off, one scalar a name; each batch is ranked once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch._torchmetrics import SharedStateCollection, renamed
from mrr_torch.extras import Extras
from mrr_torch.metrics import HitRate, MeanReciprocalRank, NormalizedDCG
from mrr_torch.rank_metric import RankMetric
from mrr_torch.settings import check_cuts
from mrr_torch.store import read_alone


def ranking_metrics(
    top_k: int | Sequence[int] = (5, 10), *, prefix: str | None = None, separator: str = "@", **settings: Any
) -> RankingMetrics:
    """Return a `MetricCollection` of MRR, hit rate and NDCG at each cut-off: ``mrr@5``, ``hit_rate@5``, ``ndcg@5``...

    Each is a scalar with a name of its own, which is what `self.log_dict`, `MetricTracker` and loggers take. All share
    one state: a batch is ranked once, in ``forward`` too, and ``compute`` synchronises once.

    Args:
        top_k: one or more cut-offs.
        prefix: put before each name, such as ``"val/"``.
        separator: between the metric and its cut-off; MLflow does not take "@" in names, but ``"_at_"``.
        settings: of each metric, as of `RankMetric`.

    Raises:
        TypeError, ValueError: an argument of the wrong type or value.

    >>> metrics = ranking_metrics([1, 2], prefix="val/")
    >>> metrics.update(torch.tensor([[0.1, 0.9, 0.5], [0.8, 0.1, 0.3]]), torch.tensor([2, 0]))
    >>> {name: round(float(value), 3) for name, value in metrics.compute().items()}
    {'val/hit_rate@1': 0.5, 'val/hit_rate@2': 1.0, 'val/mrr@1': 0.5, 'val/mrr@2': 0.75, 'val/ndcg@1': 0.5,
     'val/ndcg@2': 0.815}
    """
    cuts = check_cuts(top_k, needs_cut_off=True)
    if not isinstance(separator, str) or "." in separator:
        raise ValueError(_checks.message("separator", "a text without a dot", repr(separator)))
    metrics: dict[str, RankMetric] = {}
    for k in cuts:
        for kind in (MeanReciprocalRank, HitRate, NormalizedDCG):
            metric = kind(k, **settings)
            metric.separator = separator
            metrics[metric._name(k)] = metric
    return RankingMetrics(metrics, prefix=prefix)


class RankingMetrics(SharedStateCollection):
    """A collection of `RankMetric` with the same settings, which ranks each batch once.

    Args:
        metrics: by name.
        kwargs: of `torchmetrics.MetricCollection`.
    """

    def __init__(self, metrics: dict[str, RankMetric], **kwargs: Any) -> None:
        # Metrics of one layout share a state; a cut-off beyond the usual number of bins has a longer one.
        groups: dict[object, list[str]] = {}
        for name, metric in metrics.items():
            groups.setdefault(metric._store, []).append(name)
        super().__init__(dict(metrics), compute_groups=list(groups.values()), **kwargs)
        self.in_place = any(metric.num_queries is not None for metric in metrics.values())
        for metric in metrics.values():
            metric._siblings = tuple(metrics.values())

    def update(self, preds: Any, target: Tensor | None = None, **given: Any) -> None:  # type: ignore[override]
        """Add a batch of queries: the arguments are those of `RankMetric.update`."""
        ranked, extras = self._ranked(preds, target, **given)
        super().update(ranked, **extras._asdict())

    @torch.jit.unused
    def forward(self, preds: Any, target: Tensor | None = None, **given: Any) -> dict[str, Any]:
        """Add a batch of queries, and return the values of this batch alone."""
        members: list[RankMetric] = list(self.values(copy_state=False))  # type: ignore[arg-type]
        ranked, extras = self._ranked(preds, target, **given)
        if any(metric.dist_sync_on_step for metric in members):  # torchmetrics synchronises the values of the batch
            result: dict[str, Any] = super().forward(ranked, **extras._asdict())
            return result
        values: dict[str, Any] = {}
        batch = {store: read_alone(store, ranked, extras) for store in {metric._store for metric in members}}
        for name, metric in self.items(keep_base=True, copy_state=False):
            value = metric._result_of(batch[metric._store])  # type: ignore[operator, index]
            metric._forward_cache = value
            values |= value if isinstance(value, dict) else {str(name): value}
        super().update(ranked, **extras._asdict())
        return renamed(self, values)

    def _ranked(self, preds: Any, target: Tensor | None, **given: Any) -> tuple[Any, Extras]:
        first: RankMetric = next(iter(self.children()))  # type: ignore[assignment]
        return first._ranked(preds, target, **given)
