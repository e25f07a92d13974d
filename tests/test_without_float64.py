"""Devices without float64 (MPS): everything but reading the state works in float32."""

import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mrr_torch import MeanReciprocalRank, sample_negatives


class WithoutFloat64(TorchDispatchMode):
    """A device without float64, as MPS."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype == torch.float64:
            raise TypeError(f"{func} makes a tensor of float64")
        return result


@pytest.fixture
def without_float64(unread, monkeypatch):
    """Let no tensor of float64 be made."""
    for name, module in list(sys.modules.items()):
        if name.startswith("mrr_torch") and hasattr(module, "state_dtype"):
            monkeypatch.setattr(module, "state_dtype", lambda device: torch.float32)
    return WithoutFloat64()


class TestDevicesWithoutFloat64:
    """Everything but reading the state works in float32."""

    @pytest.mark.parametrize("ties", ["expected", "realistic", "pessimistic"])
    @pytest.mark.parametrize("negatives", [None, 3])
    @pytest.mark.parametrize("several", [False, True])
    def test_update(self, ties, negatives, several, without_float64):
        scores, target = torch.arange(6.0).div(2, rounding_mode="floor").expand(6, 6).clone(), torch.arange(6)
        with without_float64:
            metric = MeanReciprocalRank(5, ties=ties, num_negatives=negatives)
            if several and negatives is None:
                metric.update(scores, torch.eye(6).long() + torch.eye(6).long().flip(0))
            else:
                metric.update(scores, target)
        assert 0 < metric.compute() < 1

    @pytest.mark.parametrize("replacement", [False, True])
    @pytest.mark.parametrize("weights", [None, torch.tensor([0.0, 1.0, 2.0, 3.0, 0.5, 9.0])])
    @pytest.mark.parametrize("items", [6, 1000])
    def test_negatives(self, replacement, weights, items, without_float64):
        if weights is not None and items > 6:
            weights = torch.cat([weights, torch.ones(items - 6)])
        with without_float64:
            ids = sample_negatives(torch.tensor([2, 3]), items, 3, weights=weights, replacement=replacement)
        assert ((ids >= 0) & (ids < items)).all()
        assert not (ids[:, 1:] == ids[:, :1]).any()
        if weights is not None:
            assert (weights[ids[:, 1:]] > 0).all()


@pytest.mark.parametrize("ties", ["expected", "realistic"])
def test_counts_that_waited_are_added_to_a_state_of_float32(ties, unread):
    """The host, which has float64, adds them up, and hands back the type of the device."""
    scores, target = torch.arange(6.0).div(2, rounding_mode="floor").expand(6, 6).clone(), torch.arange(6)
    metric = MeanReciprocalRank(5, ties=ties)
    metric.update(scores, target)
    whole, *_ = metric._store.settled(metric._states())
    narrow = [state.float() if isinstance(state, torch.Tensor) else state for state in metric._states()]
    assert len(narrow[2]) == 1  # the batch waits
    settled = metric._store.settled(narrow)
    assert [state.dtype for state in settled[:2]] == [torch.float32] * 2
    assert torch.equal(settled[0], whole.float())
    assert metric._store.read(narrow).queries == 6
