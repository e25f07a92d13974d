"""What torchmetrics leaves open or does wrong for metrics whose states add up.

Every private name of torchmetrics that the package touches stands in this file.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection
from torchmetrics.utilities.distributed import gather_all_tensors

from mrr_torch import _checks
from mrr_torch._all_reduce import all_reduce, reducible
from mrr_torch._device import state_dtype

State = Tensor | list[Tensor]


class SummedStateMetric(Metric):
    """A metric whose states add up: a failed call changes nothing, moves never cast, synchronising is cheap.

    ``compute`` and the read-outs hold the states of all processes together within `_synchronised`, which ends in
    `_sync_dist`: the first time it reduces the states and keeps the result, from then on it is local, until the state
    changes. What is kept is dropped exactly where torchmetrics drops the value of ``compute`` that it keeps, so that
    no process skips a collective that another one enters.

    Attributes:
        batch_alone: within ``forward``, where the state is that of one batch.
    """

    batch_alone = False
    _kept: dict[str, State] | None  # the states of all processes together

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Keep properties from `torch.jit.script`, which compiles those that are not listed."""
        super().__init_subclass__(**kwargs)
        attributes = [item for base in cls.__mro__ for item in vars(base).items()]
        cls.__jit_unused_properties__ = [name for name, value in attributes if isinstance(value, property)]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_computed" and value is None:
            self.__dict__["_kept"] = None
        super().__setattr__(name, value)

    # -- updates -------------------------------------------------------------------------------------------------------

    @torch.jit.unused
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return the value of this batch alone; a failed call leaves the metric as it was."""
        with self._all_or_nothing():
            self.batch_alone = True
            try:
                return super().forward(*args, **kwargs)
            finally:
                self.batch_alone = False

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the queries of another metric of the same class and settings, or of its states by name, to this one.

        Raises:
            TypeError: neither a metric of this class nor a dict.
            ValueError: states of other settings, or of another shape.
        """
        # torchmetrics keeps the value of before the merge, and the count of updates.
        states: Any = incoming_state.metric_state if isinstance(incoming_state, type(self)) else incoming_state
        if not isinstance(states, dict):
            expected = f"a {type(self).__name__} or a dict of its states"
            raise TypeError(_checks.message("incoming_state", expected, type(incoming_state).__name__))
        for name in self._defaults:
            if name not in states:
                raise ValueError(_checks.message("incoming_state", f"the state {name}", sorted(states)))
            self._check_state(name, name, states[name])
        updates = incoming_state.update_count if isinstance(incoming_state, Metric) else int(self._differs(states))
        with self._all_or_nothing():
            self._computed = None
            self._update_count += updates
            self._reduce_states(states)

    def _wrap_update(self, update: Callable[..., None]) -> Callable[..., None]:
        """Let a failed update change nothing: torchmetrics counts it, and drops what is kept, before it runs."""
        wrapped = super()._wrap_update(update)

        @functools.wraps(update)
        def all_or_nothing(*args: Any, **kwargs: Any) -> None:
            with self._all_or_nothing():
                wrapped(*args, **kwargs)

        return all_or_nothing

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Leave the metric as it was if the body fails, also if it is interrupted."""
        before = dict(self.__dict__)  # states are replaced, so references suffice; lists are changed in place
        lists = [(state, list(state)) for state in map(before.get, self._defaults) if isinstance(state, list)]
        try:
            yield
        except BaseException:
            self.__dict__.update(before)
            for state, items in lists:
                state[:] = items
            raise

    # -- synchronising -------------------------------------------------------------------------------------------------

    @contextmanager
    def _synchronised(self) -> Iterator[None]:
        """Hold the states of all processes together, as within ``compute``; local if nothing changed since then."""
        if self._is_synced:
            yield
            return
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync):
            yield

    @contextmanager
    def sync_context(self, *args: Any, should_unsync: bool = True, **kwargs: Any) -> Iterator[None]:
        """Synchronise; return to the state of this process at the end, also where the body fails."""
        self.sync(*args, **kwargs)
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
            self.__dict__.update(self._kept)
            return
        if dist_sync_fn is gather_all_tensors:
            peers = self._reduce_over_processes(process_group or self.process_group)
        else:
            peers = []
            super()._sync_dist(dist_sync_fn, process_group)
        if as_compute and self.compute_with_cache:
            for metric in (self, *peers):
                metric._kept = self.metric_state

    def _reduce_over_processes(self, group: Any) -> list[SummedStateMetric]:
        """Reduce the states; return the metrics whose states are, on every process, the same as those of this one."""
        peers = self._peers()
        own, others = {}, {}
        for name, reduction in self._reductions.items():
            state = getattr(self, name)
            if reducible(state, reduction):
                own[name] = state
            else:
                others[name] = reduction
        alike = all(_same(getattr(self, name), getattr(peer, name)) for peer in peers for name in self._defaults)
        reduced, alike = all_reduce(own, self._reductions, alike, group)
        if others:  # of a subclass: lists, means, functions
            reductions, self._reductions = self._reductions, others
            try:
                super()._sync_dist(gather_all_tensors, group)
            finally:
                self._reductions = reductions
        self.__dict__.update(reduced)
        return peers if alike else []

    def _peers(self) -> list[SummedStateMetric]:
        """Return the other metrics with the same states and settings of the `MetricCollection` that is computing.

        torchmetrics does not tell its metrics that they share their states, and the compute groups of a process without
        data are not those of the others: all processes have to take the same metrics for peers, whatever they saw. So
        the collection is looked for among the callers, and `all_reduce` finds out whether the states are the same.
        """
        frame = sys._getframe()
        while frame.f_code.co_name != "compute" or not isinstance(frame.f_locals.get("self"), MetricCollection):
            if frame.f_back is None:
                return []
            frame = frame.f_back
        members = [metric for metric in frame.f_locals["self"].children() if isinstance(metric, SummedStateMetric)]
        if not any(metric is self for metric in members):
            return []
        settings = self._shared_settings()
        return [metric for metric in members if metric is not self and metric._shared_settings() == settings]

    def _shared_settings(self) -> tuple[object, ...]:
        shapes = [(name, getattr(default, "shape", None)) for name, default in self._defaults.items()]
        return shapes, self.dist_sync_fn, self.process_group, self.sync_on_compute, self.compute_with_cache

    # -- moving and loading --------------------------------------------------------------------------------------------

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> nn.Module:
        """Move the state where ``fn`` moves tensors, but never cast it: bfloat16 could not count to 257."""

        def moved(tensor: Tensor) -> Tensor:
            device = fn(tensor.new_empty(0, dtype=torch.float32)).device
            if tensor.is_floating_point() and state_dtype(device) != torch.float64:
                return tensor.to(device, state_dtype(device))
            result = fn(tensor)
            return result if result.dtype == tensor.dtype else tensor.to(result.device)

        this = super()._apply(moved, exclude_state)
        if self._kept is not None:
            self._kept = {name: _each(moved, state) for name, state in self._kept.items()}
        return this

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        keys = {name: prefix + name for name in self._defaults if prefix + name in state_dict}
        given = {name: state_dict.pop(key) for name, key in keys.items()}
        errors = []
        for name, state in given.items():
            try:
                self._check_state(keys[name], name, state)
            except (TypeError, ValueError) as error:
                errors.append(str(error))
        error_msgs.extend(errors)  # the modules beside this one are loaded; then torch raises for all errors
        if given and not errors:
            for name, state in given.items():
                setattr(self, name, self._copied(state, getattr(self, name)))
            # torchmetrics would go on giving the value of before, and warn that there was no update.
            self._computed = None
            self._update_count = max(self._update_count, 1) if self._differs(self.metric_state) else 0
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _check_state(self, key: str, name: str, state: Any) -> None:
        """Check a state that is to be loaded or merged."""
        current = getattr(self, name)
        if isinstance(current, Tensor):
            if not isinstance(state, Tensor):
                raise TypeError(_checks.message(key, "a tensor", type(state).__name__))
            _checks.same_shape(key, state, _checks.shape(current))
        elif not isinstance(state, list):
            raise TypeError(_checks.message(key, "a list of tensors", type(state).__name__))

    def _copied(self, state: State, current: State) -> State:
        """Return a copy of a checkpoint's state, which is not to be added to, where the present state is."""
        if isinstance(state, Tensor) and isinstance(current, Tensor):
            return state.to(current.device, current.dtype, copy=True)
        return [item.to(self.device, copy=True) for item in state]

    def _differs(self, states: dict[str, State]) -> bool:
        """Return True if ``states`` are others than those of a metric that was never updated."""
        return not all(_same(default, states[name]) for name, default in self._defaults.items())


def _same(left: State, right: State) -> bool:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        same_shape = left.shape == right.shape
        return left is right or (same_shape and torch.equal(left, right.to(left.device, left.dtype)))
    return left is right or (len(left) == len(right) and all(map(_same, left, right)))


def _each(move: Callable[[Tensor], Tensor], state: State) -> State:
    return move(state) if isinstance(state, Tensor) else [move(item) for item in state]
