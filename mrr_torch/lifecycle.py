"""A torchmetrics metric with one summed state: what torchmetrics leaves open, or does wrong, for such a metric."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from mrr_torch import _checks
from mrr_torch.distribution import state_dtype


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
        """Add the queries of another metric, or of its state dict, to this one."""
        super().merge_state(incoming_state)
        # torchmetrics leaves the value of before the merge in the cache, and the count of updates as it was.
        self._computed = None
        self._update_count += incoming_state.update_count if isinstance(incoming_state, Metric) else 1

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
