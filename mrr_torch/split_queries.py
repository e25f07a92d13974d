"""What becomes of queries of flat lists whose items come in several updates, or on several processes.

Under ``"refuse"`` the state keeps the ids of the queries, 8 bytes each, to tell at `compute` of those that came twice.
(On an accelerator 8 bytes an item: how many queries there are cannot be known there without synchronising.) Under
``"gather"`` it keeps the items, 9 bytes each and the score, 8 more where ``candidates`` are given, and ranks them all
together. Under ``"separate"`` it keeps nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch._gather import joined, parts_of
from mrr_torch.kernels import backend
from mrr_torch.kernels.runs import NO_ID
from mrr_torch.ranks.batch import Ranked, ranked_items
from mrr_torch.ranks.grouped import Items
from mrr_torch.settings import Settings

# What is kept of an item beside its score and the id of its query.
FLAGS = RELEVANT, INVALID, EXCLUDED, ABSENT, NAMED = 1, 2, 4, 8, 16
# Lists of what is kept of items.
ITEM_LISTS = {"scores": torch.float64, "indexes": torch.int64, "flags": torch.uint8, "candidates": torch.int64}


def lists(settings: Settings) -> dict[str, torch.dtype]:
    """Return the names of the lists of tensors ``(n,)`` that are kept, and a dtype that holds their values."""
    state = settings.state_name
    if settings.split_queries == "gather":
        return {f"item_{name}_of_{state}": dtype for name, dtype in ITEM_LISTS.items()}
    return {f"indexes_of_{state}": torch.int64} if settings.split_queries == "refuse" else {}


def keep(kept: Sequence[list[Tensor]], ranked: Ranked) -> list[list[Tensor]]:
    """Return the lists with what has to be kept of a flat list added."""
    new: list[Tensor | None] = [ranked.ids] if ranked.items is None else _packed(ranked.items)
    # For "separate" there are no lists.
    return [
        parts if part is None or not part.numel() else [*parts, part] for parts, part in zip(kept, new, strict=False)
    ]


def read(kept: Sequence[Any], settings: Settings, device: torch.device) -> Ranked | None:
    """Return the ranks of all items that were kept, on ``device``; raise for queries that came more than once."""
    if settings.split_queries == "gather":
        scores, *others = (joined(parts).to(device) if parts else None for parts in map(parts_of, kept))
        return None if scores is None else ranked_items(_unpacked(scores, *others), settings.num_negatives)
    if settings.split_queries == "refuse":
        _refuse_repeats(parts_of(kept[0]))
    return None


def _refuse_repeats(ids: list[Tensor]) -> None:
    if not ids:
        return
    together = backend(ids[0]).sort_rows(torch.cat(ids))
    again = (together[1:] == together[:-1]) & (together[1:] != NO_ID)
    # An id that came three times is one query.
    again[1:] &= together[2:] != together[:-2]
    number = int(again.sum())
    if number:
        expected = (
            "all items of a query in one update of one process, or split_queries='gather' (rank all its items together)"
            " or 'separate' (each update has queries of its own)"
        )
        raise ValueError(_checks.message("indexes", expected, f"{_checks.queries(number)} in several"))


def _packed(items: Items) -> list[Tensor | None]:
    """Return what is kept of items, as `ITEM_LISTS`. Copies: the caller may write into its own."""
    flags = (items.labels > 0).to(torch.uint8)
    for flag, where in ((INVALID, items.invalid), (EXCLUDED, items.excluded), (ABSENT, _not(items.there))):
        if where is not None:
            flags += where * flag
    if items.candidates is not None:
        flags += NAMED
    candidates = None if items.candidates is None else items.candidates.clone()
    return [items.scores.clone(), items.indexes.clone(), flags, candidates]


def _unpacked(scores: Tensor, indexes: Tensor | None, flags: Tensor | None, candidates: Tensor | None) -> Items:
    """Return the items that `_packed` was given."""
    assert indexes is not None
    assert flags is not None
    _, invalid, excluded, absent, named = _at(flags)
    labels = flags & RELEVANT if invalid is None else (flags & RELEVANT).to(torch.int8) - invalid.to(torch.int8)
    ids = None if candidates is None or named is None else _ids_of_all(candidates, named)
    return Items(scores, labels, indexes, _not(absent), excluded, ids, invalid)


def _at(flags: Tensor) -> list[Tensor | None]:
    """Return, for each of `FLAGS`, the mask of the items that have it; None if there are none."""
    sets = torch.bincount(flags, minlength=1).tolist()  # the items with each set of flags
    used = [any(number and index & flag for index, number in enumerate(sets)) for flag in FLAGS]
    return [(flags & flag) != 0 if has else None for flag, has in zip(FLAGS, used, strict=True)]


def _not(where: Tensor | None) -> Tensor | None:
    return None if where is None else ~where


def _ids_of_all(candidates: Tensor, named: Tensor) -> Tensor:
    """Return an id for each item: those given, in their order, and others for items that came without one."""
    if candidates.shape == named.shape:
        return candidates
    ids = torch.searchsorted(candidates.sort().values, candidates)
    others = candidates.shape[0] + torch.arange(named.shape[0], device=named.device)
    return torch.masked_scatter(others, named, ids)
