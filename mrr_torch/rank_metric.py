"""`RankMetric`: one state, the distribution of ranks, and the mean of a gain over it. Only the gain differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from mrr_torch import _checks
from mrr_torch._torchmetrics import SummedStateMetric
from mrr_torch.describe import Told, line
from mrr_torch.distribution import BINS, Ties
from mrr_torch.expectation import full_catalogue_gain
from mrr_torch.intervals import Moments, normal_interval
from mrr_torch.protocol import (
    EmptyTargetAction,
    Protocol,
    check_catalogue_size,
    check_confidence,
    check_top_k,
    refuse_empty,
)
from mrr_torch.query_table import Seen, check_query_ids, empty_table, enter, read_table
from mrr_torch.ranks.base import IGNORED, Ranks
from mrr_torch.ranks.forms import Ranked, rank
from mrr_torch.summary import Reading, Summary


class RankMetric(SummedStateMetric):
    """The mean of a gain over the ranks of all queries, accumulated on the device in constant memory.

    Metrics with the same settings but different gains and cut-offs share their state: a `MetricCollection` of them
    ranks each batch once.

    Args:
        top_k: the cut-off: a query whose rank is beyond it counts 0. A positive int gives a scalar; a sequence gives a
            dict, one entry for each; None, where the metric knows a value without cut-off (MRR), is none.
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
        confidence: e.g. 0.95; adds ``..._low`` and ``..._high`` to the result, which is a dict then. The interval is
            for the mean over the population that the queries were drawn from: normal, from the spread of the queries'
            values (for the hit rate Wilson's). It is too narrow for few queries (below about 100), or few hits, or
            queries that are not independent (several of one user); a spread tie makes it a little too wide.
        catalogue_size: with ``num_negatives``, candidates in the full catalogue; adds ``..._full_estimate``: an
            estimate of the full-catalogue value from the sampled ranks (`full_catalogue_gain`), with a bias towards
            its prior, never the value itself.
        num_queries: Q; the queries are a fixed set with the ids 0..Q-1, and each counts once, however often and on
            whichever process ``update`` sees it (``query_ids``): padded samplers, resumed runs. A query that is seen
            with different counts counts as the worst of them together, and a warning tells how many. It costs 32 bytes
            a query.
        kwargs: of `torchmetrics.Metric`.

    Raises:
        TypeError, ValueError: an argument of the wrong type or value.
    """

    is_differentiable = False
    higher_is_better: bool | None = True
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound: float | None = 1.0

    key: ClassVar[str]
    needs_cut_off: ClassVar[bool] = True

    def __init__(
        self,
        top_k: int | Sequence[int | None] | None = None,
        *,
        ties: Ties = "expected",
        empty_target_action: EmptyTargetAction = "neg",
        ignore_index: int | None = None,
        num_negatives: int | None = None,
        confidence: float | None = None,
        catalogue_size: int | None = None,
        num_queries: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.top_k = top_k
        self.confidence = check_confidence(confidence)
        self.catalogue_size = check_catalogue_size(catalogue_size, num_negatives)
        self.protocol = Protocol.check(ties, empty_target_action, ignore_index, num_negatives)
        self._cuts = self._check_cuts(top_k)
        # Cut-offs beyond the usual number of ranks get a longer state (of another shape, so never shared by mistake).
        bins = max([BINS, *(k for k in self._cuts if k is not None), (num_negatives or 0) + 1])
        self._summary = Summary(self.protocol, bins)
        self._full_gains = {}
        if self.catalogue_size is not None and self.protocol.num_negatives is not None:
            size, negatives = self.catalogue_size, self.protocol.num_negatives
            self._full_gains = {k: full_catalogue_gain(self.gain, size, negatives, k) for k in self._cuts}
        device = torch.get_default_device()
        self.num_queries = None if num_queries is None else _checks.positive_int("num_queries", num_queries)
        if self.num_queries is not None:
            self._table_name = f"queries_of_{self.protocol.state_name}"
            self.add_state(self._table_name, empty_table(self.num_queries, device), dist_reduce_fx="max")
            return
        summed, candidates = self._summary.empty(device)
        self.add_state(self.protocol.state_name, summed, dist_reduce_fx="sum")
        self.add_state(self.protocol.candidates_name, candidates, dist_reduce_fx="max")

    def gain(self, ranks: Tensor) -> Tensor:
        """Return what a query counts whose relevant item stands at each of ``ranks`` (float64, from 1)."""
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
        query_ids: Tensor | None = None,
    ) -> None:
        """Add a batch of queries. Bad input is refused and leaves the metric as it was; a device is never waited for.

        Args:
            preds: scores ``(..., N)`` of any real dtype, higher is better; ``(T,)`` with ``indexes``; or a `Ranks`.
            target: integer column of the relevant item ``(...)``; or relevance ``(..., N)``, bool or integer, above 0
                is relevant. In sampled mode it may be left out where there are exactly 1 + ``num_negatives`` columns:
                the target is column 0.
            indexes: ``(T,)``; integer id of each item's query, for ragged lists. A query's items come in one call.
            candidates: ``(..., N)``; integer id of each column, if not its number. Columns with the target's id never
                compete, repeats compete once, negative ids are padding.
            exclude: what never competes, but for the target: ids ``(..., H)`` padded with negative ids, ids ``(H,)``
                for all queries, or a bool mask of the shape of ``preds``. Ids are columns, or those in ``candidates``.
            mask: bool, of the shape of ``preds``; True where a column is real, for padded lists.
            query_ids: ``(...)``; integer ids of the queries, with ``num_queries`` and only then (not with ``indexes``).

        Raises:
            TypeError: an argument of the wrong type or dtype.
            ValueError: a wrong shape or device; on a CPU also a wrong value. On an accelerator these are counted and
                raised by ``compute``.
        """
        ranked = rank(
            preds,
            target,
            indexes=indexes,
            candidates=candidates,
            exclude=exclude,
            mask=mask,
            ignore_index=self.protocol.ignore_index,
            num_negatives=self.protocol.num_negatives,
        )
        refuse_empty(ranked.ranks, self.protocol.empty_target_action)
        if self.num_queries is not None and indexes is not None:
            raise ValueError(_checks.message("indexes", "None with num_queries", type(indexes).__name__))
        ids = check_query_ids(query_ids, ranked.ranks, self.num_queries)
        ranks, device = ranked.ranks, getattr(self, next(iter(self._defaults))).device
        if ranks.higher.device != device:
            if not isinstance(preds, Ranks):  # a few numbers are moved, scores are not
                raise ValueError(_checks.message("preds", f"a tensor on {device}, as the metric", preds.device))
            ranks = type(ranks)(*(field.to(device, non_blocking=True) for field in ranks))
        if ids is not None:
            table = getattr(self, self._table_name)
            if table.is_inference() and not torch.is_inference_mode_enabled():
                table = table.clone()  # made in inference mode (a reset, say), and not to be changed outside
                setattr(self, self._table_name, table)
            enter(table, ranks, ids.to(device, non_blocking=True))
            return
        # Not in place: others may hold the state, a collection or a checkpoint.
        summed, candidates = (getattr(self, name) for name in self._names)
        states = self._summary.add(summed, candidates, ranked._replace(ranks=ranks))
        for name, state in zip(self._names, states, strict=True):
            setattr(self, name, state)

    def describe(self) -> str:
        """Return one line with the values, their intervals, what chance gives, and how they were computed.

        An MRR can only be compared with one computed the same way, so paste the line with the value. It is synchronised
        across processes like ``compute``: all of them have to call it. Intervals are 95 % unless ``confidence`` says
        otherwise; chance is the value of a scorer of random numbers on the same queries, and left out where it is not
        known (retrieved lists, queries with several relevant items).

        >>> from mrr_torch import MeanReciprocalRank
        >>> metric = MeanReciprocalRank(10)
        >>> metric.update(torch.eye(200), torch.arange(200))
        >>> metric.describe()
        'mrr@10 1.0000 (95% 1.0000 to 1.0000, chance 0.0146); 200 queries; all of 200 candidates; ties: expected'
        """
        confidence = 0.95 if self.confidence is None else self.confidence
        with self._synchronised():
            reading = self._read()
            told = []
            for k in self._cuts:
                moments = reading.moments(self.gain, k)
                ends = self.interval(moments, confidence)
                told.append(Told(self._name(k), moments, *ends, reading.by_chance(self.gain, k)))
            return line(told, self.protocol, reading.outcomes, reading.candidates, confidence)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot one value, a sequence of values, or dicts of them, as every torchmetrics metric does.

        Args:
            val: results of ``compute`` or ``forward``; the present value if None.
            ax: axes to draw into.

        Returns:
            figure and axes.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.
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
            ValueError: bad values that ``update`` could not see without waiting for the device.
        """
        reading = self._read()
        values: dict[str, float] = {}
        for k in self._cuts:
            values |= self._read_outs(self._name(k), reading.moments(self.gain, k), self.interval)
            if k in self._full_gains:
                # Whatever is estimated, the values of single queries are neither shares nor within 0..1.
                estimated = reading.moments_of(self._full_gains[k])
                values |= self._read_outs(f"{self._name(k)}_full_estimate", estimated, normal_interval)
        results = {
            name: torch.tensor(value, dtype=torch.get_default_dtype(), device=self.device)
            for name, value in values.items()
        }
        several = isinstance(self.top_k, Sequence) or len(results) > 1
        return results if several else results[self._name(self._cuts[0])]

    @property
    def _names(self) -> tuple[str, str]:
        return self.protocol.state_name, self.protocol.candidates_name

    def _read(self) -> Reading:
        """Read all that is known of the queries; raise for faults that ``update`` could not see."""
        if self.num_queries is None:
            return self._summary.read(*(getattr(self, name) for name in self._names))
        # The same sums, of each query once, in the order of the ids: on any processes the same to the last bit.
        ranks = self._read_table().ranks
        entered = ranks.relevant != IGNORED
        ranked = Ranked(Ranks(*(field[entered] for field in ranks)))
        return self._summary.read(*self._summary.add(*self._summary.empty(torch.device("cpu")), ranked))

    def _read_table(self) -> Seen:
        table = read_table(getattr(self, self._table_name).cpu())
        missing, differing = int((~table.seen).sum()), int(table.differing.sum())
        if missing and not self.batch_alone:
            seen = len(table.seen) - missing
            rank_zero_warn(f"Only {seen:,} of {len(table.seen):,} queries have been seen; the others do not count.")
        if differing:
            rank_zero_warn(f"{differing:,} queries were seen with different ranks; the worse ones count.")
        return table

    def _check_cuts(self, top_k: Any) -> list[int | None]:
        several = isinstance(top_k, Sequence) and not isinstance(top_k, str)
        cuts = [check_top_k(k) for k in (top_k if several else [top_k])]
        if self.needs_cut_off and None in cuts:
            raise ValueError(_checks.message("top_k", "a positive int or a sequence of them", top_k))
        if not cuts or len(set(cuts)) != len(cuts):
            raise ValueError(_checks.message("top_k", "one or more different cut-offs", list(top_k)))
        return cuts

    def _name(self, k: int | None) -> str:
        return self.key if k is None else f"{self.key}@{k}"

    def _read_outs(
        self, name: str, moments: Moments, interval: Callable[[Moments, float], tuple[float, float]]
    ) -> dict[str, float]:
        values = {name: moments.mean}
        if self.confidence is not None:
            values[f"{name}_low"], values[f"{name}_high"] = interval(moments, self.confidence)
        return values
