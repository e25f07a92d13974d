"""From embeddings to `Ranks`: the rank of each target among all items of a catalogue."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.catalogue.reference import rank_with_all_scores
from mrr_torch.ranks import Ranks

__all__ = ["rank_catalogue"]


@torch.no_grad()
def rank_catalogue(
    query_embeddings: Tensor,
    item_embeddings: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    exclude: Tensor | None = None,
) -> Ranks:
    """Rank each query's target among all items by the dot product of their embeddings.

    Scores are accumulated and compared in float32, in float64 for float64 embeddings: bfloat16 scores would tie where
    the products do not. Ties, NaN and infinities are as in `rank_target`.

    Args:
        query_embeddings: ``(..., D)``; any floating dtype.
        item_embeddings: ``(N, D)``; any floating dtype.
        target: ``(...)``; integer row of the relevant item.
        bias: ``(N,)``; added to the items' scores.
        exclude: item ids ``(..., H)`` per query, padded with negative ids, or ``(H,)`` for all queries, that never
            compete. The target is never excluded.

    Returns:
        `Ranks` of shape ``(...)``.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: a wrong shape or device; on a CPU also ids out of range. On an accelerator those are marked in the
            result and raised when a metric is computed.

    >>> rank_catalogue(torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 1.0], [3.0, 0.0]]), torch.tensor([0])).higher
    tensor([1])
    """
    queries = _embeddings("query_embeddings", query_embeddings)
    items = _embeddings("item_embeddings", item_embeddings)
    if items.ndim != 2 or items.shape[0] == 0:
        raise ValueError(_checks.fault("item_embeddings", "shape (N, D), N >= 1", f"shape {_checks.shape(items)}"))
    if queries.shape[-1] != items.shape[1]:
        wanted = f"shape (..., {items.shape[1]}), as item_embeddings"
        raise ValueError(_checks.fault("query_embeddings", wanted, f"shape {_checks.shape(queries)}"))
    _checks.same_device("item_embeddings", items, queries)
    dtype = torch.float64 if torch.float64 in (queries.dtype, items.dtype) else torch.float32
    if bias is not None:
        bias = _embeddings("bias", bias).to(dtype)
        _checks.same_shape("bias", bias, (items.shape[0],))
        _checks.same_device("bias", bias, queries)
    with full_precision(queries.device):
        return rank_with_all_scores(queries.to(dtype), items.to(dtype), target, bias, exclude)


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Switch autocast off, which would compute products in half precision."""
    kind = device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def _embeddings(name: str, value: Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(_checks.fault(name, "a floating-point tensor", type(value).__name__))
    if not value.is_floating_point():
        raise TypeError(_checks.fault(name, "a floating-point tensor", value.dtype))
    if value.ndim == 0:
        raise ValueError(_checks.fault(name, "shape (..., D)", "shape ()"))
    return value.detach()
