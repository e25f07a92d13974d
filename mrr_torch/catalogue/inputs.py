"""What `rank_catalogue` is given, checked once for all implementations, the queries' dimensions flattened to one."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.ranks.competitors import flatten


class Inputs(NamedTuple):
    """The arguments of `rank_catalogue`. Embeddings keep their dtype: a converted copy of the table may not fit."""

    queries: Tensor  # (Q, D)
    items: Tensor  # (N, D)
    target: Tensor  # (Q,) int64
    bias: Tensor | None  # (N,)
    exclude: Tensor | None  # (Q, H) int64, or (1, H) for all queries
    shape: tuple[int, ...]  # what Q was


def check_inputs(queries: Any, items: Any, target: Any, bias: Any, exclude: Any) -> Inputs:
    """Check types, shapes and devices; values are looked at where the number of items is known."""
    queries, items = check_embeddings("query_embeddings", queries), check_embeddings("item_embeddings", items)
    if items.ndim != 2:
        raise ValueError(_checks.message("item_embeddings", "shape (N, D), N >= 1", f"shape {_checks.shape(items)}"))
    if queries.shape[-1] != items.shape[1]:
        wanted = f"shape (..., {items.shape[1]}), as item_embeddings"
        raise ValueError(_checks.message("query_embeddings", wanted, f"shape {_checks.shape(queries)}"))
    _same_device("item_embeddings", items, queries)
    shape = _checks.shape(queries)[:-1]
    target = _checks.integer_tensor("target", target, target if isinstance(target, Tensor) else queries)
    _same_device("target", target, queries)
    _checks.same_shape("target", target, shape)
    if bias is not None:
        bias = check_embeddings("bias", bias)
        _checks.same_shape("bias", bias, (items.shape[0],))
        _same_device("bias", bias, queries)
    if exclude is not None:
        exclude = _checks.integer_tensor("exclude", exclude, exclude if isinstance(exclude, Tensor) else queries)
        _same_device("exclude", exclude, queries)
        if exclude.ndim == 0 or (exclude.ndim > 1 and _checks.shape(exclude)[:-1] != shape):
            wanted = f"shape {(*shape, 'H')}, or (H,) for all queries"
            raise ValueError(_checks.message("exclude", wanted, f"shape {_checks.shape(exclude)}"))
        exclude = flatten(exclude)
    return Inputs(flatten(queries), items, _checks.flat(target), bias, exclude, shape)


def check_embeddings(name: str, value: Any) -> Tensor:
    """Check that ``value`` is a plain tensor of floating-point numbers, and detach it."""
    if not isinstance(value, Tensor):
        raise TypeError(_checks.message(name, "a floating-point tensor", type(value).__name__))
    if not value.is_floating_point():
        raise TypeError(_checks.message(name, "a floating-point tensor", value.dtype))
    if hasattr(value, "placements"):
        raise TypeError(_checks.message(name, "a plain tensor (only item_embeddings may be sharded)", "a DTensor"))
    if value.ndim == 0:
        raise ValueError(_checks.message(name, "shape (..., D)", "shape ()"))
    return value.detach()


def score_type(*embeddings: Tensor) -> torch.dtype:
    """Return the type of the scores: float32, or float64 where some embeddings have it.

    Products of half precision are accumulated in float32, since in bfloat16 scores would tie that do not.
    """
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in embeddings) else torch.float32


def targets_outside(target: Tensor, items: int) -> Tensor | None:
    """Mark targets that are no item; None if there is none. Raise where they can be seen."""
    outside = (target < 0) | (target >= items)
    if _checks.on_host(outside):
        if not bool(outside.any()):
            return None
        raise ValueError(_checks.message("target", f"ids in 0..{items - 1}", int(target[outside][0])))
    return outside


def excluded_outside(exclude: Tensor | None, items: int) -> Tensor | None:
    """Mark queries that exclude an item that does not exist; None if there is none. Raise where they can be seen."""
    if exclude is None:
        return None
    beyond = exclude >= items
    if _checks.on_host(beyond):
        if not bool(beyond.any()):
            return None
        wanted = f"ids in 0..{items - 1}, padded with negative ids"
        raise ValueError(_checks.message("exclude", wanted, int(exclude.max())))
    return beyond.any(1)


def _same_device(name: str, value: Tensor, queries: Tensor) -> None:
    if value.device != queries.device:
        wanted = f"a tensor on {queries.device}, where query_embeddings are"
        raise ValueError(_checks.message(name, wanted, value.device))
