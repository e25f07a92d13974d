"""`RankMetric`: one state, the distribution of ranks, and the mean of a gain over it. Only the gain differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.chance import Chance, add_chance, candidates_range, chance_size, read_chance
from mrr_torch.describe import Reading, line
from mrr_torch.distribution import BINS, Distribution, Ties, add_ranks, read, state_dtype, state_size
from mrr_torch.expectation import full_catalogue_gain
from mrr_torch.intervals import Moments, normal_interval
from mrr_torch.lifecycle import SummedStateMetric
from mrr_torch.protocol import (
    EmptyTargetAction,
    Protocol,
    check_confidence,
    check_top_k,
    outcome_count,
    refuse_empty,
    refuse_faults,
)
from mrr_torch.ranks.base import EMPTY, FOUND, MISSED, NAN, UNRESOLVED, Ranks
from mrr_torch.ranks.forms import rank


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
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.top_k = top_k
        self.confidence = check_confidence(confidence)
        self.catalogue_size = _check_catalogue_size(catalogue_size, num_negatives)
        self.protocol = Protocol.check(ties, empty_target_action, ignore_index, num_negatives)
        self._cuts = self._check_cuts(top_k)
        # Cut-offs beyond the usual number of ranks get a longer state (of another shape, so never shared by mistake).
        self._bins = max([BINS, *(k for k in self._cuts if k is not None), (num_negatives or 0) + 1])
        self._full_gains = {}
        if self.catalogue_size is not None and self.protocol.num_negatives is not None:
            size, negatives = self.catalogue_size, self.protocol.num_negatives
            self._full_gains = {k: full_catalogue_gain(self.gain, size, negatives, k) for k in self._cuts}
        device = torch.get_default_device()
        size = state_size(self._bins, ties) + chance_size(self._bins)
        default = torch.zeros(size, dtype=state_dtype(device), device=device)
        self.add_state(self.protocol.state_name, default, dist_reduce_fx="sum")
        unknown = torch.full((2,), -torch.inf, dtype=default.dtype, device=device)
        self.add_state(self.protocol.candidates_name, unknown, dist_reduce_fx="max")

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
        ranks, state = ranked.ranks, self._state
        if ranks.higher.device != state.device:
            if not isinstance(preds, Ranks):  # a few numbers are moved, scores are not
                raise ValueError(_checks.fault("preds", f"a tensor on {state.device}, as the metric", preds.device))
            ranks = type(ranks)(*(field.to(state.device, non_blocking=True) for field in ranks))
        # A copy is added to: the state itself may be a tensor of the caller's checkpoint.
        added, size = state.clone(), state_size(self._bins, self.protocol.ties)
        negatives = self.protocol.num_negatives
        add_ranks(
            added[:size],
            ranks,
            ties=self.protocol.ties,
            bins=self._bins,
            negatives=negatives,
            last=ranked.last,
            single=ranked.single,
        )
        add_chance(added[size:], ranks, negatives=negatives, bins=self._bins, last=ranked.last)
        candidates = getattr(self, self.protocol.candidates_name)
        setattr(self, self.protocol.state_name, added)
        setattr(self, self.protocol.candidates_name, torch.maximum(candidates, candidates_range(ranks, added.dtype)))

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
            seen, chance = self._read(), self._read_chance()
            fewest, most = getattr(self, self.protocol.candidates_name).tolist()
            readings = []
            for k in self._cuts:
                moments = self._moments(seen, k)
                readings.append(
                    Reading(
                        self._name(k), moments, *self.interval(moments, confidence), self._by_chance(chance, seen, k)
                    )
                )
            return line(readings, self.protocol, seen.outcomes, (-fewest, most), confidence)

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
        seen = self._read()
        values: dict[str, float] = {}
        for k in self._cuts:
            values |= self._read_outs(self._name(k), self._moments(seen, k))
            if k in self._full_gains:
                values |= self._read_outs(f"{self._name(k)}_full_estimate", self._full_moments(seen, k))
        results = {
            name: torch.tensor(value, dtype=torch.get_default_dtype(), device=self.device)
            for name, value in values.items()
        }
        several = isinstance(self.top_k, Sequence) or len(results) > 1
        return results if several else results[self._name(self._cuts[0])]

    @property
    def _state(self) -> Tensor:
        state: Tensor = getattr(self, self.protocol.state_name)
        return state

    def _read(self) -> Distribution:
        """Read the distribution of the ranks; raise for faults that ``update`` could not see."""
        seen = read(self._state[: state_size(self._bins, self.protocol.ties)], self._bins, self.protocol.ties)
        refuse_faults(seen.outcomes, self.protocol.empty_target_action)
        return seen

    def _read_chance(self) -> Chance:
        return read_chance(self._state[state_size(self._bins, self.protocol.ties) :], self._bins)

    def _by_chance(self, chance: Chance, seen: Distribution, k: int | None) -> float | None:
        """Return the mean gain of a scorer of random numbers; None unless all queries that count are known."""
        queries = self._counted(seen)
        if not queries or chance.queries != queries:
            return None
        gains = self.gain(chance.ranks)
        total = float((chance.mass * (gains if k is None else gains * (chance.ranks <= k))).sum())
        return (total + (chance.tail if k is None else 0.0)) / queries

    @contextmanager
    def _synchronised(self) -> Iterator[None]:
        """Hold the states of all processes together, as ``compute`` does."""
        if self._is_synced:
            yield
            return
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync):
            yield

    def _check_cuts(self, top_k: Any) -> list[int | None]:
        several = isinstance(top_k, Sequence) and not isinstance(top_k, str)
        cuts = [check_top_k(k) for k in (top_k if several else [top_k])]
        if self.needs_cut_off and None in cuts:
            raise ValueError(_checks.fault("top_k", "a positive int or a sequence of them", top_k))
        if not cuts or len(set(cuts)) != len(cuts):
            raise ValueError(_checks.fault("top_k", "one or more different cut-offs", list(top_k)))
        return cuts

    def _name(self, k: int | None) -> str:
        return self.key if k is None else f"{self.key}@{k}"

    def _read_outs(self, name: str, moments: Moments) -> dict[str, float]:
        values = {name: moments.mean}
        if self.confidence is not None:
            values[f"{name}_low"], values[f"{name}_high"] = self.interval(moments, self.confidence)
        return values

    def _moments(self, seen: Distribution, k: int | None) -> Moments:
        gains = self.gain(seen.ranks)
        if k is not None:
            return self._add_up(seen, gains * (seen.ranks <= k))
        if outcome_count(seen.outcomes, UNRESOLVED):
            raise ValueError(
                _checks.fault(
                    "preds",
                    f"scores or a top_k where several relevant items tie beyond rank {self._bins}",
                    f"Ranks with such ties, in {outcome_count(seen.outcomes, UNRESOLVED)} queries, and no top_k",
                )
            )
        return self._add_up(seen, gains, seen.tail, seen.tail_squares)

    def _full_moments(self, seen: Distribution, k: int | None) -> Moments:
        gains, place = self._full_gains[k], seen.ranks - 1
        # Realistic ranks half-way between two count the mean of both.
        last = gains.shape[0] - 1
        low, high = (gains[x.long().clamp(max=last)] for x in (place.floor(), place.ceil()))
        moments = self._add_up(seen, (low + high) / 2 * (place <= last))
        return moments._replace(mean=min(max(moments.mean, 0.0), 1.0))

    def _counted(self, seen: Distribution) -> int:
        """Return how many queries the mean is over."""
        codes = (FOUND, MISSED, NAN) if self.protocol.empty_target_action == "skip" else (FOUND, MISSED, NAN, EMPTY)
        return sum(outcome_count(seen.outcomes, code) for code in codes)

    def _add_up(self, seen: Distribution, gains: Tensor, tail: float = 0.0, tail_squares: float = 0.0) -> Moments:
        """Return the mean and the mean square of gains (and of a tail of them) over all queries that count."""
        queries = self._counted(seen)
        if not queries:
            return Moments(0, 0.0, 0.0)
        certain = outcome_count(seen.outcomes, EMPTY) if self.protocol.empty_target_action == "pos" else 0
        total = float((seen.mass * gains).sum()) + tail + certain
        squares = float((seen.mass * gains**2).sum()) + tail_squares + certain
        # Masses of tied queries are sums of fractions, and may exceed the number of queries by the last bit.
        return Moments(queries, min(total / queries, 1.0), squares / queries)


def _check_catalogue_size(catalogue_size: Any, num_negatives: int | None) -> int | None:
    if catalogue_size is None:
        return None
    size = _checks.positive_int("catalogue_size", catalogue_size)
    if num_negatives is None:
        raise ValueError(_checks.fault("catalogue_size", "None without num_negatives", size))
    if size < 1 + num_negatives:
        raise ValueError(_checks.fault("catalogue_size", f"at least 1 + num_negatives, {1 + num_negatives}", size))
    return size
