"""Who competes with the target: masks, excluded items, and candidates named by id (collisions and repeats)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.ranks.tiles import Counts, TileMask, row_tiles


class Options(NamedTuple):
    """The optional arguments of the dense forms, checked, with the queries' dimensions flattened to one."""

    excluded_ids: Tensor | None  # (rows, H), or (1, H) for all rows
    excluded: Tensor | None  # (rows, columns) bool
    real: TileMask | None  # False where a column is only padding
    candidates: Tensor | None  # (rows, columns) ids


def check_options(scores: Tensor, exclude: Any, mask: Any, candidates: Any) -> Options:
    """Check types, shapes and devices of the optional arguments."""
    ids = excluded = None
    if isinstance(exclude, Tensor) and exclude.dtype == torch.bool:
        excluded = flatten(_checks.bool_tensor("exclude", exclude, scores))
    elif exclude is not None:
        ids = _checks.integer_tensor("exclude", exclude, scores, expected="a tensor of integer ids or a bool mask")
        queries = _checks.shape(scores)[:-1]
        if ids.ndim == 1:  # for all queries; of a single query, (N,) scores, it is the same thing
            ids = ids[None]
        elif _checks.shape(ids)[:-1] != queries:
            wanted = f"shape {(*queries, 'H')}, (H,) for all queries, or a bool mask of shape {_checks.shape(scores)}"
            raise ValueError(_checks.message("exclude", wanted, f"shape {_checks.shape(ids)}"))
        ids = flatten(ids)
    real = None if mask is None else tile_of(flatten(_checks.bool_tensor("mask", mask, scores)))
    if candidates is not None:
        candidates = _checks.integer_tensor("candidates", candidates, scores)
        _checks.same_shape("candidates", candidates, _checks.shape(scores))
        candidates = flatten(candidates)
    return Options(ids, excluded, real, candidates)


def flatten(tensor: Tensor) -> Tensor:
    """Flatten all dimensions but the last; sizes may be 0."""
    return tensor[None] if tensor.ndim == 1 else tensor.flatten(0, -2)


def tile_of(mask: Tensor) -> TileMask:
    """Return a mask tensor as the function that gives a tile of it."""
    return lambda rows, columns: mask[rows, columns]


def excluded_beyond(options: Options, columns: int) -> Tensor | None:
    """Say which rows exclude a column that does not exist; raise where that can be seen."""
    if options.excluded_ids is None or options.candidates is not None:
        return None
    beyond = options.excluded_ids >= columns
    if _checks.on_host(beyond) and bool(beyond.any()):
        worst = int(options.excluded_ids.max())
        raise ValueError(_checks.message("exclude", f"ids in 0..{columns - 1}, padded with negative ids", worst))
    return beyond.any(1)


def competing(options: Options, relevant: TileMask) -> TileMask | None:
    """Return the mask of the columns that take part; None where all do, but for ids that `subtract_excluded` handles.

    ``relevant`` marks the relevant columns: they are never excluded.
    """
    ids, excluded, real, candidates = options
    if excluded is None and real is None and candidates is None:
        return None

    def free(rows: slice, columns: slice, names: Tensor | None) -> Tensor | None:
        out = None if excluded is None else excluded[rows, columns]
        if ids is not None:
            listed = _rows(ids, rows)
            more = _scattered(listed, columns) if names is None else occurs(names, listed)
            out = more if out is None else out | more
        return None if out is None else ~out

    def kept(rows: slice, columns: slice) -> Tensor:
        own, there = relevant(rows, columns), free(rows, columns, None)
        if real is not None:
            there = real(rows, columns) if there is None else real(rows, columns) & there
        return own if there is None else own | there

    def kept_once(rows: slice, columns: slice) -> Tensor:
        """Keep one column for each item: columns that share an id hold the same item."""
        everything = slice(0, names.shape[1])
        own, named = relevant(rows, everything), names[rows]
        if real is not None:  # a column of padding holds no item: it has no id, and is no copy of any
            named = torch.where(real(rows, everything) | own, named, -1)
        first = first_of_each_id(named, own) & (own | (named >= 0))
        there = free(rows, columns, names[rows, columns])
        return first[:, columns] if there is None else first[:, columns] & (own[:, columns] | there)

    if candidates is None:
        return kept
    names = candidates
    return kept_once


def subtract_excluded(
    counts: Counts, scores: Tensor, best: Tensor, ids: Tensor, is_relevant: Callable[[Tensor, slice], Tensor]
) -> Counts:
    """Take excluded columns out of counts that were made of all columns.

    Their scores are gathered by id, so no mask of the scores' size is made. ``is_relevant`` says, for ids of a slice
    of rows, which are relevant items: those stay.
    """
    counts = counts._replace(candidates=counts.candidates.contiguous())
    higher, equal, _, candidates = counts
    # Each item is taken out once, however often it is listed: sorted ids, and a mask of the first of each.
    for_all = ids.shape[0] == 1
    if for_all:
        ids = sort_rows(ids).expand(scores.shape[0], -1)
    for rows in row_tiles(scores.shape[0], ids.shape[1], scores.device):
        gone = ids[rows] if for_all or ids.shape[1] == 1 else sort_rows(ids[rows])
        used = (gone >= 0) & (gone < scores.shape[1])
        used[:, 1:] &= gone[:, 1:] != gone[:, :-1]
        gone = gone.clamp(0, scores.shape[1] - 1)
        used &= ~is_relevant(gone, rows)
        theirs, threshold = scores[rows].gather(1, gone), best[rows]
        higher[rows] -= ((theirs > threshold) & used).sum(1)
        equal[rows] -= ((theirs == threshold) & used).sum(1)
        candidates[rows] -= used.sum(1)
    return counts


def sort_rows(ids: Tensor) -> Tensor:
    """Sort each row of ids."""
    if _checks.on_host(ids):
        # NumPy sorts integers with vector instructions, some 20 times faster than torch, which sorts pairs with places.
        return torch.from_numpy(np.sort(ids.numpy(), axis=-1))
    return ids.sort(-1).values


def first_of_each_id(ids: Tensor, preferred: Tensor) -> Tensor:
    """Mark one column for each id of a row: its first ``preferred`` column, else its first column.

    So an item competes once, and a column that holds the id of a relevant item never competes with it.
    """
    # Ids are sorted, never scores; doubled, so that preferred columns come first. A stable sort keeps "first" true.
    keys, order = (2 * ids + (~preferred).long()).sort(dim=-1, stable=True)
    first = torch.ones_like(preferred)
    first[:, 1:] = (keys[:, 1:] >> 1) != (keys[:, :-1] >> 1)
    return torch.empty_like(first).scatter_(-1, order, first)


def occurs(ids: Tensor, lists: Tensor) -> Tensor:
    """Say which ``ids`` (rows, columns) occur in the list (rows, H) of their row."""
    if lists.shape[1] == 0:
        return torch.zeros_like(ids, dtype=torch.bool)
    lists = sort_rows(lists.contiguous())
    place = torch.searchsorted(lists, ids.contiguous()).clamp_(max=lists.shape[1] - 1)
    return lists.gather(1, place) == ids


def _rows(ids: Tensor, rows: slice) -> Tensor:
    return ids.expand(rows.stop - rows.start, -1) if ids.shape[0] == 1 else ids[rows]


def _scattered(ids: Tensor, columns: slice) -> Tensor:
    """Mark the listed columns of a tile; whatever lies outside it lands in one more column, which is dropped."""
    width = columns.stop - columns.start
    marks = torch.zeros(ids.shape[0], width + 1, dtype=torch.bool, device=ids.device)
    inside = (ids >= columns.start) & (ids < columns.stop)
    return marks.scatter_(1, torch.where(inside, ids - columns.start, width), True)[:, :-1]
