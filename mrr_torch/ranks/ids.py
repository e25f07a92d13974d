"""Ids in rows: which occur in a list, and which column of a row holds an item first. Ids are sorted, scores never."""

from __future__ import annotations

import torch
from torch import Tensor

from mrr_torch.kernels import backend


def first_of_each(ids: Tensor, preferred: Tensor | None = None) -> Tensor:
    """Mark one column for each id of a row: its first ``preferred`` column, else its first column.

    Args:
        ids: ``(rows, columns)``; any int64.
        preferred: ``(rows, columns)`` bool, or None.

    Returns:
        ``(rows, columns)`` bool.
    """
    # Stable sorts, so that "first" stays true: by preference, then by id. (One sort of 2 * id + preference overflows.)
    if preferred is None:
        sorted_ids, order = ids.sort(dim=1, stable=True)
    else:
        by_preference = (~preferred).to(torch.uint8).sort(dim=1, stable=True).indices
        sorted_ids, order = ids.gather(1, by_preference).sort(dim=1, stable=True)
        order = by_preference.gather(1, order)
    first = sorted_ids == sorted_ids  # all True
    first[:, 1:] = sorted_ids[:, 1:] != sorted_ids[:, :-1]
    return torch.empty_like(first).scatter_(1, order, first)


def occurs(ids: Tensor, lists: Tensor) -> Tensor:
    """Return the mask of ``ids`` ``(rows, columns)`` that occur in the list ``(rows, H)`` of their row."""
    if lists.shape[1] == 0:
        return ids != ids  # all False
    if lists.shape[1] == 1:
        return ids == lists
    lists = backend(lists).sort_rows(lists.contiguous())
    index = torch.searchsorted(lists, ids.contiguous()).clamp_(max=lists.shape[1] - 1)
    return lists.gather(1, index) == ids


def at_columns(ids: Tensor, columns: int) -> Tensor:
    """Return the mask ``(rows, columns)`` of the columns listed in ``ids`` ``(rows, M)``; other ids mean nothing."""
    # Ids that are no column land in one more column, which is dropped.
    marks = ids.new_zeros(ids.shape[0], columns + 1, dtype=torch.bool)
    return marks.scatter_(1, torch.where((ids >= 0) & (ids < columns), ids, columns), True)[:, :-1]


def distinct(ids: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """Return the ids of each row in order, clamped to 0..columns-1, and the mask of those that are one and the first.

    Args:
        ids: ``(rows, H)``; ids outside 0..columns-1 mean nothing.
        columns: how many there are.
    """
    listed = ids if ids.shape[1] == 1 else backend(ids).sort_rows(ids)
    used = (listed >= 0) & (listed < columns)
    used[:, 1:] &= listed[:, 1:] != listed[:, :-1]
    return listed.clamp(0, columns - 1), used
