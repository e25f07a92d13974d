"""What relevance labels say of a row of scores: which items are relevant, which label is bad, which item is best."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.ranks.tiles import TileMask, buffer, buffer_size, by_tile


def check_labels(relevance: Any, scores: Tensor) -> None:
    """Check a relevance tensor: bool or integer, the shape and the device of the scores."""
    if not isinstance(relevance, Tensor) or relevance.is_floating_point() or relevance.is_complex():
        got = relevance.dtype if isinstance(relevance, Tensor) else type(relevance).__name__
        raise TypeError(_checks.message("target", "bool or integer relevance", got))
    _checks.same_shape("target", relevance, _checks.shape(scores))
    _checks.same_device("target", relevance, scores)


def negative_labels(labels: Tensor, real: Tensor | None) -> Tensor:
    """Mark negative relevance of real items; raise where it can be seen."""
    negative = torch.zeros_like(labels) if labels.dtype == torch.bool else labels < 0
    if real is not None:
        negative = negative & real
    if _checks.on_host(negative) and bool(negative.any()):
        raise ValueError(_checks.message("target", "relevance >= 0 (or ignore_index)", int(labels[negative][0])))
    return negative


def negative_rows(labels: Tensor, real: TileMask | None) -> Tensor | None:
    """Mark the rows with negative relevance of real items; raise where it can be seen."""
    if labels.dtype == torch.bool:
        return None
    if real is None and _checks.on_host(labels) and (not labels.numel() or int(labels.min()) >= 0):
        return None

    def negative(rows: slice, columns: slice) -> list[Tensor]:
        return [negative_labels(labels[rows, columns], None if real is None else real(rows, columns)).any(1)]

    return by_tile(labels, negative, lambda parts: parts.amax(0))[0]


def lowest(dtype: torch.dtype) -> float | int:
    """Return a value that no score of ``dtype`` is below."""
    return -torch.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def best_relevant(
    flat: Tensor, relevant_at: TileMask, keep: TileMask | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return, per row: the best relevant score ``(rows, 1)``, if there is a relevant item, if one is not NaN.

    The latter two are None where all rows have one that is not NaN, and that can be seen.
    """
    nothing = flat.new_full((), lowest(flat.dtype))

    def found_at(rows: slice, columns: slice) -> Tensor:
        found = relevant_at(rows, columns)
        return found if keep is None else found & keep(rows, columns)  # the second copy of a candidate is no best one

    def tops(rows: slice, columns: slice) -> list[Tensor]:
        tile = flat[rows, columns]
        return [torch.where(found_at(rows, columns), tile, nothing, out=buffer(tile)).amax(1)]

    def all_about(rows: slice, columns: slice) -> list[Tensor]:
        tile, relevant = flat[rows, columns], relevant_at(rows, columns)
        found = found_at(rows, columns) & (tile == tile)
        return [torch.where(found, tile, nothing).amax(1), relevant.any(1), found.any(1)]

    if _checks.on_host(flat) and flat.numel():
        (best,) = by_tile(flat, tops, lambda parts: parts.amax(0), buffer_size(flat) // (2 if keep else 1))
        if best.min().item() > lowest(flat.dtype):  # neither without a score, nor NaN
            return best[:, None], None, None
    best, some, scored = by_tile(flat, all_about, lambda parts: parts.amax(0))
    return best[:, None], some, scored
