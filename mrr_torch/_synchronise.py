"""When a metric synchronises with the other processes, and what it keeps of that."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.utilities.distributed import gather_all_tensors

from mrr_torch._all_reduce import all_reduce, reducible
from mrr_torch._gather import gather_lists, joined

State = Tensor | list[Tensor]


class SynchronisedMetric(Metric):
    """A metric that synchronises by few collectives, once until its state changes.

    ``compute`` and the read-outs hold the states of all processes together within `sync_context`, which ends in
    `_sync_dist`: the first time it reduces the states over the processes and keeps the result; after that it is local.
    What is kept is dropped exactly where torchmetrics drops the value of ``compute`` that it keeps, on each process, so
    that no process skips a collective that another one enters.
    """

    _kept: dict[str, State] | None = None  # the states of all processes together
    # Metrics of a collection that all processes update and compute together, also one by one, as Lightning does.
    _siblings: tuple[SynchronisedMetric, ...] = ()
    _names: tuple[str, ...]  # of the states, in the order in which the store takes them
    # Names of states that are lists of tensors ``(n,)``, and a dtype that holds their values. They are gathered where
    # any process has items, and cost nothing where none has.
    _lists: Mapping[str, torch.dtype] = MappingProxyType({})

    @property
    def _computed(self) -> Any:
        """The value of ``compute``, where torchmetrics keeps it until the state changes."""
        return self.__dict__["_computed"]

    @_computed.setter
    def _computed(self, value: Any) -> None:
        self.__dict__["_computed"] = value
        if value is None:
            self.__dict__["_kept"] = None

    @contextmanager
    def _synchronised(self) -> Iterator[None]:
        """Hold the states of all processes together, as within ``compute``; local if nothing changed since then."""
        if self._is_synced:
            yield
            return
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync):
            yield

    @contextmanager
    def sync_context(
        self,
        dist_sync_fn: Callable[..., Any] | None = None,
        process_group: Any | None = None,
        should_sync: bool = True,
        should_unsync: bool = True,
        distributed_available: Callable[..., Any] | None = None,
    ) -> Iterator[None]:
        """Synchronise; return to the state of this process at the end, also where the body fails."""
        self.sync(dist_sync_fn, process_group, should_sync, distributed_available)
        try:
            yield
        finally:
            self.unsync(should_unsync and self._is_synced)

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Exchange the state of this process for that of all together; a failed call leaves the metric as it was."""
        with self._all_or_nothing():
            super().sync(*args, **kwargs)

    def _sync_dist(
        self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any | None = None
    ) -> None:
        """Reduce the states over the processes, unless that was done since they changed."""
        as_compute = process_group is None and dist_sync_fn is (self.dist_sync_fn or gather_all_tensors)
        if as_compute and self._kept is not None:
            self.__dict__.update(_own_lists(self._kept))
            return
        alike = self._same_as_peers()
        self._settle()
        if dist_sync_fn is gather_all_tensors:
            peers = self._reduce_over_processes(alike, process_group or self.process_group)
        else:
            peers = []
            for name, dtype in self._lists.items():  # torchmetrics gives empty lists a dtype of its own
                parts, none = getattr(self, name), torch.empty(0, dtype=dtype, device=self.device)
                self.__dict__[name] = [joined(parts).to(dtype) if parts else none]
            super()._sync_dist(dist_sync_fn, process_group)
        if as_compute and self.compute_with_cache:
            for metric in (self, *peers):
                metric._kept = _own_lists(self._all_states())

    def _settle(self) -> None:
        """Put the states in the form in which they are reduced."""

    def _same_as_peers(self) -> bool:
        return all(same(getattr(self, name), getattr(peer, name)) for peer in self._peers() for name in self._defaults)

    def _reduce_over_processes(self, alike: bool, group: Any) -> list[SynchronisedMetric]:
        """Reduce the states; return the metrics whose states are, on every process, the same as those of this one.

        Args:
            alike: so it is on this process.
            group: the processes.
        """
        own, others, lists = {}, {}, {}
        for name, reduction in self._reductions.items():
            state = getattr(self, name)
            if reducible(state, reduction):
                own[name] = state
            elif name in self._lists:
                lists[name] = state
            else:
                others[name] = reduction
        reduced, alike, filled = all_reduce(own, self._reductions, alike, any(lists.values()), group)
        if lists:
            device = next(iter(reduced.values())).device
            gathered = gather_lists(lists, device, group) if filled else {name: [] for name in lists}
            self.__dict__.update(gathered)
        if others:  # of a subclass: lists, means, functions
            reductions, self._reductions = self._reductions, others
            try:
                super()._sync_dist(gather_all_tensors, group)
            finally:
                self._reductions = reductions
        self.__dict__.update(reduced)
        return self._peers() if alike else []

    def _states(self) -> list[Any]:
        """Return the states, in the order in which the store takes them."""
        return [getattr(self, name) for name in self._names]

    def _all_states(self) -> dict[str, State]:
        return {name: getattr(self, name) for name in self._defaults}

    def _peers(self) -> list[SynchronisedMetric]:
        """Return the other metrics with the same states and settings of the `MetricCollection` that is computing.

        torchmetrics does not tell its metrics that they share their states, and the compute groups of a process without
        data are not those of the others: all processes have to take the same metrics for peers, whatever they saw. So
        the collection is looked for among the callers, and `all_reduce` finds out whether the states are the same.
        """
        members = self._siblings or _members_of_computing_collection()
        if not any(metric is self for metric in members):
            return []
        settings = self._shared_settings()
        return [metric for metric in members if metric is not self and metric._shared_settings() == settings]

    def _shared_settings(self) -> tuple[object, ...]:
        shapes = [(name, getattr(default, "shape", None)) for name, default in self._defaults.items()]
        return shapes, self.dist_sync_fn, self.process_group, self.sync_on_compute, self.compute_with_cache

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Leave the metric as it was if the body fails, also if it is interrupted."""
        before = self._snapshot()
        try:
            yield
        except BaseException:
            self._restore(*before)
            raise

    def _wrap_update(self, update: Callable[..., None]) -> Callable[..., None]:
        """Let a failed update change nothing: torchmetrics counts it, and drops what is kept, before it runs."""
        wrapped = super()._wrap_update(update)

        @functools.wraps(update)
        def all_or_nothing(*args: Any, **kwargs: Any) -> None:
            before = self._snapshot()
            try:
                wrapped(*args, **kwargs)
            except BaseException:
                self._restore(*before)
                raise

        return all_or_nothing

    def _snapshot(self) -> tuple[dict[str, Any], list[tuple[list[Any], list[Any]]]]:
        """Return all attributes, and each list state with its items: lists are changed in place, tensors replaced."""
        attributes = dict(self.__dict__)
        lists = [state for state in map(attributes.get, self._defaults) if isinstance(state, list)]
        return attributes, [(state, list(state)) for state in lists]

    def _restore(self, attributes: dict[str, Any], lists: list[tuple[list[Any], list[Any]]]) -> None:
        self.__dict__.update(attributes)
        for state, items in lists:
            state[:] = items


def _own_lists(states: dict[str, State]) -> dict[str, State]:
    """Return the states with lists of their own, which torchmetrics clears in place when a metric is reset."""
    return {name: state if isinstance(state, Tensor) else list(state) for name, state in states.items()}


def _members_of_computing_collection() -> tuple[SynchronisedMetric, ...]:
    """Return the metrics of the `MetricCollection` that is computing, which is looked for among the callers."""
    frame = sys._getframe()
    while frame.f_code.co_name != "compute" or not isinstance(frame.f_locals.get("self"), MetricCollection):
        if frame.f_back is None:
            return ()
        frame = frame.f_back
    return tuple(metric for metric in frame.f_locals["self"].children() if isinstance(metric, SynchronisedMetric))


def same(left: State, right: State) -> bool:
    """Return True if two states hold the same values."""
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        same_shape = left.shape == right.shape
        return left is right or (same_shape and torch.equal(left, right.to(left.device, left.dtype)))
    return left is right or (len(left) == len(right) and all(map(same, left, right)))
