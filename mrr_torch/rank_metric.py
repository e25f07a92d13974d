"""`RankMetric`: one state, the distribution of ranks, and the mean of a gain over it. Only the gain differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch._torchmetrics import SummedStateMetric
from mrr_torch.counts import BINS
from mrr_torch.extras import Extras
from mrr_torch.intervals import Moments, normal_interval
from mrr_torch.kernels import readable
from mrr_torch.ranks import Ranks
from mrr_torch.ranks.batch import Batch, Ranked, rank_batch
from mrr_torch.reading import Reading, refuse_empty
from mrr_torch.report import Value, line
from mrr_torch.sampling.estimate import full_catalogue_gains
from mrr_torch.settings import (
    EmptyTargetAction,
    Settings,
    SplitQueries,
    check_catalogue_size,
    check_confidence,
    check_cuts,
    refuse_other_names,
)
from mrr_torch.store import Unseen, on_device, store_of
from mrr_torch.ties import Ties


class RankMetric(SummedStateMetric):
    """The mean of a gain over the ranks of all queries, accumulated on the device in constant memory.

    Metrics with the same settings but different gains and cut-offs share their state: a `MetricCollection` of them
    ranks each batch once. A metric of one's own is a subclass with a ``key`` and a ``gain``.

    Args:
        top_k: the cut-off: a query whose rank is beyond it counts 0. A positive int gives a scalar; a sequence gives a
            dict, one entry for each; None: no cut-off (`MeanReciprocalRank` only).
        ties: where the relevant item stands among items of the same score. ``"expected"``: the mean over all orders of
            the tied items (McSherry and Najork, 2008), so that the order of columns never matters; ``"optimistic"``
            before and ``"pessimistic"`` after all of them; ``"realistic"``: the gain at the mean of these two ranks.
        empty_target_action: what a query without any relevant item counts: ``"neg"`` 0, ``"pos"`` 1, ``"skip"``
            nothing, ``"error"`` is refused.
        ignore_index: queries with this target, and items with this label, are left out.
        num_negatives: None: every column competes (full catalogue). m: sampled mode, the target among m negatives;
            values run far higher and need not keep the order of models (Krichene and Rendle, KDD 2020). From exactly m
            competitors the observed rank is taken; from more (full scores, or `Ranks` of a catalogue) the exact
            expectation over all draws of m of them: no sampling noise, no seed.
        miss_index: queries with this target count 0 and stay in the mean: their item is not in the catalogue.
        confidence: e.g. 0.95; adds ``..._low`` and ``..._high`` to the result, which is a dict then. The interval is
            for the mean over the population that the queries were drawn from: normal (for the hit rate Wilson's). It is
            too narrow for few queries (below about 100), few hits, or queries that are not independent.
        catalogue_size: with ``num_negatives``, candidates in the full catalogue; adds ``..._full_estimate``, an
            estimate of the full-catalogue value (`full_catalogue_gain`), biased towards its prior.
        num_queries: Q; the queries are a fixed set with the ids 0..Q-1, and each counts once, however often and on
            whichever process ``update`` sees it (``query_ids``): padded samplers, resumed runs. A query that is seen
            with different counts counts as the worst of them together, and a warning tells how many. It costs 32 bytes
            a query.
        unseen: with ``num_queries``, what a query that was never seen counts: "skip" nothing (a warning), "neg" 0.
        split_queries: what to do with a query of a flat list (``indexes``) whose items come in several updates, or on
            several processes: ``"refuse"``: ``compute`` raises (8 bytes a query; on an accelerator, an item);
            ``"gather"``: items are kept and ranked together, as `RetrievalMRR` does (9 bytes an item and its score);
            ``"separate"``: each update has queries of its own.
        cohorts: names of cohorts of queries, or their number: the result has a value for each beside the overall one
            (``"mrr@10"``, ``"mrr@10/new"``, ...). ``update`` takes ``cohort``. The state is 1 + cohorts times as large.
        weighted: the mean is weighted; ``update`` takes ``weights``.
        kwargs: of `torchmetrics.Metric`.

    Raises:
        TypeError, ValueError: an argument of the wrong type or value.

    >>> class TopHeavy(RankMetric):
    ...     key = "top_heavy"
    ...     def gain(self, ranks):
    ...         return 1 / ranks**2
    >>> TopHeavy(top_k=10)(torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([2]))
    tensor(0.2500)
    """

    is_differentiable = False
    higher_is_better: bool | None = True
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound: float | None = 1.0
    key: ClassVar[str]
    separator = "@"  # between the key and the cut-off

    def __init__(
        self,
        top_k: int | Sequence[int | None] | None = None,
        *,
        ties: Ties = "expected",
        empty_target_action: EmptyTargetAction = "neg",
        ignore_index: int | None = None,
        num_negatives: int | None = None,
        miss_index: int | None = None,
        confidence: float | None = None,
        catalogue_size: int | None = None,
        num_queries: int | None = None,
        cohorts: int | Sequence[str] | None = None,
        weighted: bool = False,
        unseen: Unseen = "skip",
        split_queries: SplitQueries = "refuse",
        **kwargs: Any,
    ) -> None:
        refuse_other_names(kwargs)
        super().__init__(**kwargs)
        self.top_k = top_k
        self.confidence = check_confidence(confidence)
        self.catalogue_size = check_catalogue_size(catalogue_size, num_negatives)
        self.settings = Settings.check(
            ties, empty_target_action, ignore_index, num_negatives, miss_index, cohorts, weighted, split_queries
        )
        self.unseen = unseen
        self.num_queries = None if num_queries is None else _checks.positive_int("num_queries", num_queries)
        self._cuts = self._check_cuts(top_k)
        # Cut-offs beyond the usual number of bins get a longer state (of another shape, so never shared by mistake).
        bins = max([BINS, *(k for k in self._cuts if k is not None), (num_negatives or 0) + 1])
        self._store = store_of(self.settings, bins, self.num_queries, unseen)
        self._lists, self._names = self._store.lists, self._store.names
        self._full_gains = full_catalogue_gains(self.gain, self.catalogue_size, num_negatives, self._cuts)
        for name, (state, reduction) in self._store.empty(torch.get_default_device()).items():
            self.add_state(name, state, dist_reduce_fx=reduction)

    def gain(self, ranks: Tensor) -> Tensor:
        """Return what a query counts whose relevant item stands at each of ``ranks`` (float64, 1 to the cut-off)."""
        raise NotImplementedError

    def update(
        self,
        preds: Tensor | Ranks,
        target: Tensor | None = None,
        *,
        indexes: Tensor | None = None,
        candidates: Tensor | None = None,
        exclude: Tensor | None = None,
        mask: Tensor | None = None,
        relevant: Tensor | None = None,
        query_ids: Tensor | None = None,
        cohort: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> None:
        """Add a batch of queries. Bad input is refused and leaves the metric as it was; no device is synchronised.

        Args:
            preds: scores ``(..., N)`` of any real dtype, higher is better; ``(T,)`` with ``indexes``; or a `Ranks`.
            target: integer column of the relevant item ``(...)``; or relevance ``(..., N)``, bool or integer, above 0
                is relevant. In sampled mode it may be left out where there are exactly 1 + ``num_negatives`` columns:
                the target is column 0.
            indexes: ``(T,)``; integer id of each item's query, for ragged lists: ids for the whole evaluation, see
                ``split_queries``; with ``num_queries`` 0..Q-1.
            candidates: ``(..., N)``, or ``(N,)`` for all queries; integer id of each column, if not its number. Columns
                with the target's id never compete, repeats compete once, negative ids are padding.
            exclude: what never competes, but for the target: ids ``(..., H)`` padded with negative ids, ids ``(H,)``
                for all queries, or a bool mask of the shape of ``preds``. Ids are columns, or those in ``candidates``.
            mask: bool, of the shape of ``preds`` or ``(N,)``; True where a column is real, for padded lists.
            relevant: ``(..., M)``; integer ids of several relevant items, padded with negative ids, instead of
                ``target``: the best-scored counts, the others do not compete. Ids are columns, or those in
                ``candidates``.
            query_ids: ``(...)``; integer ids of the queries, with ``num_queries`` and only then (not with ``indexes``).
            cohort: ``(...)``; integer cohort of each query, 0..cohorts-1, with ``cohorts`` and only then.
            weights: ``(...)``; weight of each query, 0..1e100, any real dtype, with ``weighted`` and only then. Like
                ``cohort`` with ``indexes`` one for each query, in the order of the ids.

        Raises:
            TypeError: an argument of the wrong type or dtype.
            ValueError: a wrong shape or device; on a CPU also a wrong value. On an accelerator these are counted and
                raised by ``compute``.
        """
        batch, before = Batch(preds, target, indexes, candidates, exclude, mask, relevant), self._states()
        after = self._store.add(before, *self._rank(batch, Extras(query_ids, cohort, weights)))
        for name, old, new in zip(self._names, before, after, strict=True):
            if new is not old:  # lists seldom change
                self.__dict__[name] = new

    def _ranked(self, preds: Any, target: Any = None, **given: Any) -> tuple[Any, Extras]:
        extras = Extras(*(given.pop(name, None) for name in Extras._fields))
        return self._rank(Batch(preds, target, **given), extras)

    def _rank(self, batch: Batch, extras: Extras) -> tuple[Ranked, Extras]:
        """Check and rank a batch; move what is known to the device of the state."""
        ranked = rank_batch(
            batch,
            ignore_index=self.settings.ignore_index,
            miss_index=self.settings.miss_index,
            num_negatives=self.settings.num_negatives,
            gather=self.settings.split_queries == "gather",
        )
        if batch.indexes is not None:
            _checks.refuse_given({"query_ids": extras.query_ids}, "None with indexes, which are the ids")
            if not readable(ranked.ranks.relevant):
                extras = extras.padded(ranked.ranks.relevant.shape[0])
        extras, ranked = self._store.check(extras, ranked)
        if self.settings.empty_target_action == "error":
            refuse_empty(ranked.ranks)
        device = getattr(self, self._names[0]).device
        if ranked.ranks.higher.device != device:
            if not isinstance(batch.preds, (Ranks, Ranked)):  # a few numbers are moved, scores are not
                raise ValueError(_checks.message("preds", f"a tensor on {device}, as the metric", batch.preds.device))
            return on_device(device, ranked, extras)
        return ranked, extras

    def describe(self) -> str:
        """Return one line with the values, their intervals, the chance level, and how they were computed.

        An MRR can only be compared with one computed the same way, so paste the line with the value. After ``compute``
        on all processes it is local, until the next update; before, all processes have to call it, as with ``compute``.
        Intervals are 95 % unless ``confidence`` says otherwise. The chance level is the expected value of a random
        ranking on the same queries; it is left out where it is not known (retrieved lists, several relevant items).

        >>> from mrr_torch import MeanReciprocalRank
        >>> metric = MeanReciprocalRank(10)
        >>> metric.update(torch.eye(200), torch.arange(200))
        >>> metric.describe()
        'mrr@10 1.0000 (95% 1.0000 to 1.0000, chance 0.0146); 200 queries; all of 200 candidates; ties: expected'
        """
        confidence = 0.95 if self.confidence is None else self.confidence
        lines = []
        for suffix, reading in self._reading().by_cohort():
            values = []
            for k in self._cuts:
                moments = self._moments(reading, k)
                ends = self.interval(moments, confidence)
                values.append(Value(self._name(k) + suffix, moments, *ends, reading.by_chance(self.gain, k)))
            lines.append(line(values, reading, confidence))
        return "\n".join(lines)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot values as every torchmetrics metric does, and return figure and axes.

        Args:
            val: results of ``compute`` or ``forward``, one or a sequence; the present value if None.
            ax: axes to draw into.
        """
        return self._plot(val, ax)

    def interval(self, moments: Moments, confidence: float) -> tuple[float, float]:
        """Return the confidence interval of a mean of gains."""
        return normal_interval(moments, confidence)

    def compute(self) -> Tensor | dict[str, Tensor]:
        """Return the mean over all queries seen; 0 without queries.

        Returns:
            A scalar in torch's default dtype on the metric's device. A dict of such scalars if ``top_k`` is a sequence
            (``"mrr@5"``, ``"mrr@10"``, ...) or if intervals or estimates are asked for.

        Raises:
            ValueError: bad values that ``update`` could not read without synchronising with the device.
        """
        return self._result_of(self._read())

    def _result_of(self, reading: Reading) -> Tensor | dict[str, Tensor]:
        values: dict[str, float] = {}
        for suffix, part in reading.by_cohort():
            for k in self._cuts:
                named = {self._name(k) + suffix: (self._moments(part, k), self.interval)}
                if k in self._full_gains:
                    # Whatever is estimated, the values of single queries are neither shares nor within 0..1.
                    estimated = part.moments_of(self._full_gains[k]), normal_interval
                    named[f"{self._name(k)}_full_estimate{suffix}"] = estimated
                for name, (moments, interval) in named.items():
                    values[name] = moments.mean
                    if self.confidence is not None:
                        values[f"{name}_low"], values[f"{name}_high"] = interval(moments, self.confidence)
        results = {
            name: torch.tensor(value, dtype=torch.get_default_dtype(), device=self.device)
            for name, value in values.items()
        }
        return results if isinstance(self.top_k, Sequence) or len(results) > 1 else next(iter(results.values()))

    def __repr__(self) -> str:
        """Return the class and its settings."""
        names = ("top_k", "confidence", "catalogue_size", "num_queries", "unseen")
        given = {name: getattr(self, name) for name in names if getattr(self, name) not in (None, "skip")}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in (given | self.settings.changed()).items())})"

    def _read(self) -> Reading:
        self._settle()
        return self._store.read(self._states(), complete=not self.batch_alone)

    def _reading(self) -> Reading:
        with self._synchronised():
            return self._read()

    def _moments(self, reading: Reading, k: int | None) -> Moments:
        return reading.moments(self.gain, k, tail=k is None)

    def _check_cuts(self, top_k: Any) -> list[int | None]:
        return check_cuts(top_k, needs_cut_off=True)

    def _name(self, k: int | None) -> str:
        return self.key if k is None else f"{self.key}{self.separator}{k}"
