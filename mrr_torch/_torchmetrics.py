"""What torchmetrics leaves open or does wrong for metrics whose states add up.

Private names of torchmetrics stand in this file and in `_synchronise` only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection
from torchmetrics.utilities import plot

from mrr_torch import _checks
from mrr_torch._device import state_dtype
from mrr_torch._synchronise import State, SynchronisedMetric, same
from mrr_torch.store import Store, read_alone


def need_matplotlib() -> None:
    """Raise torchmetrics' own ModuleNotFoundError where matplotlib is not installed."""
    plot._error_on_missing_matplotlib()


class SummedStateMetric(SynchronisedMetric):
    """A metric whose states add up: a failed call changes nothing, loading and merging are checked, moves never cast.

    Attributes:
        batch_alone: within ``forward``, where the state is that of one batch.
    """

    batch_alone = False
    _store: Store
    _ranked: Callable[..., Any]
    _result_of: Callable[..., Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Keep properties from `torch.jit.script`, which compiles those that are not listed."""
        super().__init_subclass__(**kwargs)
        attributes = [item for base in cls.__mro__ for item in vars(base).items()]
        cls.__jit_unused_properties__ = [name for name, value in attributes if isinstance(value, property)]

    @torch.jit.unused
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return the value of this batch alone; a failed call leaves the metric as it was."""
        methods = type(self).update, type(self).compute
        ours = all(method.__module__.startswith(f"{__package__}.") for method in methods)
        if ours and not (self._is_synced or self.dist_sync_on_step):  # torchmetrics copies and resets the state
            ranked, extras = self._ranked(*args, **kwargs)
            value = self._result_of(read_alone(self._store, ranked, extras))
            self.update(ranked, **extras._asdict())
            self._forward_cache: Any = value
            return value
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
        states: Any = incoming_state._all_states() if isinstance(incoming_state, type(self)) else incoming_state
        if not isinstance(states, dict):
            expected = f"a {type(self).__name__} or a dict of its states"
            raise TypeError(_checks.message("incoming_state", expected, type(incoming_state).__name__))
        states = {name: [] for name in self._lists} | states
        for name in self._defaults:
            if name not in states:
                raise ValueError(_checks.message("incoming_state", f"the state {name}", sorted(states)))
            self._check_state(name, name, states[name])
            states[name] = _each(Tensor.detach, states[name])
        updates = incoming_state.update_count if isinstance(incoming_state, Metric) else int(self._differs(states))
        with self._all_or_nothing():
            self._computed = None
            self._update_count += updates
            self._reduce_states(states)

    @property
    def metric_state(self) -> dict[str, State]:
        """The states by name, without lists that are empty: only flat lists of items fill them."""
        self._settle()
        return {name: state for name, state in self._all_states().items() if name not in self._lists or len(state)}

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the persistent states, without lists that are empty."""
        self._settle()
        states = super().state_dict(*args, **kwargs)
        prefix = kwargs.get("prefix", args[1] if len(args) > 1 else "")
        for name in self._lists:
            if prefix + name in states and not states[prefix + name]:
                del states[prefix + name]
        return states

    @torch.jit.unused
    def reset(self) -> None:
        """Forget all queries. Lists that others hold, as torchmetrics' `Running` does, stay as they are."""
        self.__dict__.update({name: [] for name in self._lists})  # torchmetrics clears them in place
        super().reset()

    def _settle(self) -> None:
        before = self._states()
        after = self._store.settled(before)
        if all(new is old for new, old in zip(after, before, strict=True)):
            return
        for metric in self._peers():  # what waits is added up once for all
            if all(getattr(metric, name, None) is state for name, state in zip(self._names, before, strict=True)):
                metric.__dict__.update(zip(self._names, after, strict=True))
        self.__dict__.update(zip(self._names, after, strict=True))

    def _reduce_states(self, incoming_state: dict[str, Any]) -> None:
        super()._reduce_states(incoming_state)
        self.__dict__.update(zip(self._names, self._store.bounded(self._states()), strict=True))

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> nn.Module:
        """Move the state where ``fn`` moves tensors, but never cast it: bfloat16 could not count to 257."""
        self._settle()

        def moved(tensor: Tensor) -> Tensor:
            device = fn(tensor.new_empty(0, dtype=torch.float32)).device
            if tensor.is_floating_point() and state_dtype(device) != state_dtype(tensor.device):
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
            for name, state in ({name: [] for name in self._lists} | given).items():
                setattr(self, name, self._copied(state, getattr(self, name)))
            # torchmetrics would go on giving the value of before, and warn that there was no update.
            self._computed = None
            self._update_count = max(self._update_count, 1) if self._differs(self._all_states()) else 0
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
            return state.detach().to(current.device, current.dtype, copy=True)
        return [item.detach().to(self.device, copy=True) for item in state]

    def _differs(self, states: dict[str, State]) -> bool:
        """Return True if ``states`` are others than those of a metric that was never updated."""
        return not all(same(default, states[name]) for name, default in self._defaults.items())


class SharedStateCollection(MetricCollection):
    """A collection whose compute groups share their states at little cost, where an update replaces them.

    torchmetrics copies the states for whoever looks at a member, as `self.log_dict(collection)` of Lightning does at
    each step.

    Attributes:
        in_place: an update changes the states themselves.
    """

    in_place = False

    def _compute_groups_create_state_ref(self, copy: bool = False) -> None:
        if self.in_place:
            super()._compute_groups_create_state_ref(copy)
            return
        for names in self._groups.values():
            leader, *others = (getattr(self, name) for name in names)
            for other in others:
                states = {name: getattr(leader, name) for name in leader._defaults}
                other.__dict__.update(states, _update_count=leader._update_count)


def _each(move: Callable[[Tensor], Tensor], state: State) -> State:
    return move(state) if isinstance(state, Tensor) else [move(item) for item in state]


def renamed(collection: MetricCollection, values: dict[str, Any]) -> dict[str, Any]:
    """Return ``values`` under the names that the collection gives them: with its prefix and postfix."""
    return {collection._set_name(name): value for name, value in values.items()}
