"""A torchmetrics metric with one summed state: what torchmetrics leaves open, or does wrong, for such a metric."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.utilities import plot

from mrr_torch import _checks
from mrr_torch._device import state_dtype


def need_matplotlib() -> None:
    """Raise torchmetrics' own ModuleNotFoundError where matplotlib is not installed."""
    plot._error_on_missing_matplotlib()


class SummedStateMetric(Metric):
    """A metric whose states add up: refused updates leave no trace, moves never cast.

    Attributes:
        batch_alone: within ``forward``, where the state is that of one batch.
    """

    batch_alone = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return the value of this batch alone; bad input leaves the metric as it was."""
        # torchmetrics resets the state before it updates, to another tensor, so references suffice.
        before = dict(self.__dict__)
        self.batch_alone = True
        try:
            return super().forward(*args, **kwargs)
        except Exception:
            self.__dict__.update(before)
            raise
        finally:
            self.batch_alone = False

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the queries of another metric of the same class and settings, or of its states by name, to this one.

        Raises:
            TypeError: neither a metric of this class nor a dict.
            ValueError: states of other settings, or of another shape.
        """
        # torchmetrics, where it has this method, leaves the value of before the merge in the cache, and the count of
        # updates as it was.
        updates = 1
        if isinstance(incoming_state, type(self)):
            updates, incoming_state = (
                incoming_state.update_count,
                {name: getattr(incoming_state, name) for name in incoming_state._defaults},
            )
        if not isinstance(incoming_state, dict):
            expected = f"a {type(self).__name__} or a dict of its states"
            raise TypeError(_checks.message("incoming_state", expected, type(incoming_state).__name__))
        for name in self._defaults:
            if name not in incoming_state:
                raise ValueError(_checks.message("incoming_state", f"the state {name}", sorted(incoming_state)))
            _checks.same_shape(name, incoming_state[name], _checks.shape(getattr(self, name)))
        self._reduce_states(incoming_state)
        self._computed = None
        self._update_count += updates

    def _wrap_update(self, update: Callable[..., None]) -> Callable[..., None]:
        """Let a refused update leave no trace: torchmetrics counts it, and drops the cached value, before it runs."""
        wrapped = super()._wrap_update(update)

        @functools.wraps(update)
        def atomic(*args: Any, **kwargs: Any) -> None:
            before = self._update_count, self._computed
            try:
                wrapped(*args, **kwargs)
            except Exception:
                self._update_count, self._computed = before
                raise

        return atomic

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> nn.Module:
        """Move the state where ``fn`` moves tensors, but never cast it: bfloat16 could not count to 257."""

        def moved(tensor: Tensor) -> Tensor:
            device = fn(tensor.new_empty(0, dtype=torch.float32)).device
            if tensor.is_floating_point() and state_dtype(device) != torch.float64:
                return tensor.to(device, state_dtype(device))
            result = fn(tensor)
            return result if result.dtype == tensor.dtype else tensor.to(result.device)

        return super()._apply(moved, exclude_state)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in self._defaults:
            key = prefix + name
            if key not in state_dict:
                continue
            current = getattr(self, name)
            _checks.same_shape(key, state_dict[key], _checks.shape(current))
            # A copy: the caller's checkpoint is not to be added to.
            state_dict[key] = state_dict[key].to(current.device, current.dtype, copy=True)
            # torchmetrics would go on giving the value of before, or warn that there was no update.
            self._computed = None
            self._update_count = max(self._update_count, 1)
        super()._load_from_state_dict(state_dict, prefix, *args)
