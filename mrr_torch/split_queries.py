"""What becomes of queries of flat lists whose items come in several updates, or on several processes.

Two stores around the histogram of ranks, with the same methods. `SplitRefused` keeps the ids of the queries, to tell at
`compute` of those that came twice. `ItemList` keeps the items, and ranks them all together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch._gather import joined, parts_of
from mrr_torch._synchronise import State
from mrr_torch.extras import Extras
from mrr_torch.kernels import backend
from mrr_torch.kernels.runs import NO_ID
from mrr_torch.ranks.batch import Ranked, ranked_items
from mrr_torch.ranks.grouped import Items
from mrr_torch.reading import Reading
from mrr_torch.state import RankHistogram

# What is kept of an item beside its score and the id of its query.
FLAGS = RELEVANT, INVALID, EXCLUDED, ABSENT, NAMED = 1, 2, 4, 8, 16
# States that are lists of what is kept of items: scores, indexes, flags, candidates.
LISTS = 4


class SplitRefused(NamedTuple):
    """The histogram, and the ids of the queries of flat lists: 8 bytes a query.

    On an accelerator 8 bytes an item: how many queries there are cannot be known there without synchronising.

    Attributes:
        histogram: of the queries.
    """

    histogram: RankHistogram

    @property
    def lists(self) -> dict[str, torch.dtype]:
        """Names of the states that are lists of tensors ``(n,)``, and the dtype that holds their values."""
        return {**self.histogram.lists, f"indexes_of_{self.histogram.settings.state_name}": torch.int64}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the states."""
        return *self.histogram.names, *list(self.lists)[-1:]

    def empty(self, device: torch.device) -> dict[str, tuple[State, str]]:
        """Return the states of no query, by name, and how each is reduced over processes."""
        return {**self.histogram.empty(device), self.names[-1]: ([], "cat")}

    def settled(self, states: Sequence[Any]) -> tuple[Any, ...]:
        """Return the states with no counts that wait to be added up."""
        return *self.histogram.settled(states[:-1]), states[-1]

    def bounded(self, states: Sequence[Any]) -> tuple[Any, ...]:
        """Return the states with no more waiting than memory and time allow, without synchronising."""
        return *self.histogram.bounded(states[:-1]), states[-1]

    def check(self, extras: Extras, ranked: Ranked) -> tuple[Extras, Ranked]:
        """Check what is given for each query; queries with invalid values that cannot be read are marked."""
        return self.histogram.check(extras, ranked)

    def add(self, states: Sequence[Any], ranked: Ranked, extras: Extras) -> tuple[Any, ...]:
        """Return the states with a batch added, without synchronising with their device."""
        *counts, ids = states
        if ranked.ids is not None and ranked.ids.numel():
            ids = [*ids, ranked.ids]
        return *self.histogram.add(counts, ranked, extras), ids

    def read(self, states: Sequence[Any], *, complete: bool = True) -> Reading:
        """Read the states; raise for queries that came more than once."""
        *counts, listed = states
        ids = parts_of(listed)
        if ids:
            together = backend(ids[0]).sort_rows(torch.cat(ids))
            again = (together[1:] == together[:-1]) & (together[1:] != NO_ID)
            # An id that came three times is one query.
            again[1:] &= together[2:] != together[:-2]
            number = int(again.sum())
            if number:
                expected = (
                    "all items of a query in one update of one process, or split_queries='gather' (rank all its items "
                    "together) or 'separate' (each update has queries of its own)"
                )
                raise ValueError(_checks.message("indexes", expected, f"{_checks.queries(number)} in several"))
        return self.histogram.read(counts)


class ItemList(NamedTuple):
    """The histogram of the other forms, and the items of flat lists: 9 bytes an item, and its score.

    8 more where ``candidates`` are given.

    Attributes:
        histogram: of the queries of other forms, and once they are read of all.
    """

    histogram: RankHistogram

    @property
    def lists(self) -> dict[str, torch.dtype]:
        """Names of the states that are lists of tensors ``(n,)``, and a dtype that holds their values."""
        dtypes = {"scores": torch.float64, "indexes": torch.int64, "flags": torch.uint8, "candidates": torch.int64}
        items = {f"item_{name}_of_{self.histogram.settings.state_name}": dtype for name, dtype in dtypes.items()}
        return {**self.histogram.lists, **items}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the states."""
        return *self.histogram.names, *list(self.lists)[-LISTS:]

    def empty(self, device: torch.device) -> dict[str, tuple[State, str]]:
        """Return the states of no query, by name, and how each is reduced over processes."""
        return {**self.histogram.empty(device), **{name: ([], "cat") for name in self.names[-LISTS:]}}

    def settled(self, states: Sequence[Any]) -> tuple[Any, ...]:
        """Return the states with no counts that wait to be added up."""
        return *self.histogram.settled(states[:-LISTS]), *states[-LISTS:]

    def bounded(self, states: Sequence[Any]) -> tuple[Any, ...]:
        """Return the states with no more waiting than memory and time allow, without synchronising."""
        return *self.histogram.bounded(states[:-LISTS]), *states[-LISTS:]

    def check(self, extras: Extras, ranked: Ranked) -> tuple[Extras, Ranked]:
        """Check what is given for each query."""
        return self.histogram.check(extras, ranked)

    def add(self, states: Sequence[Any], ranked: Ranked, extras: Extras) -> tuple[Any, ...]:
        """Return the states with a batch added, without synchronising with their device."""
        counts, lists = states[:-LISTS], states[-LISTS:]
        items = ranked.items
        if items is None:
            return *self.histogram.add(counts, ranked, extras), *lists
        if not items.scores.numel():
            return tuple(states)
        flags = (items.labels > 0).to(torch.uint8)
        for flag, where in ((INVALID, items.invalid), (EXCLUDED, items.excluded), (ABSENT, _not(items.there))):
            if where is not None:
                flags += where * flag
        if items.candidates is not None:
            flags += NAMED
        # Copies: the caller may write into its own.
        kept = (
            items.scores.clone(),
            items.indexes.clone(),
            flags,
            None if items.candidates is None else items.candidates.clone(),
        )
        more = [parts if part is None else [*parts, part] for parts, part in zip(lists, kept, strict=True)]
        return *counts, *more

    def read(self, states: Sequence[Any], *, complete: bool = True) -> Reading:
        """Rank all items together, and read the states."""
        counts, lists = states[:-LISTS], map(parts_of, states[-LISTS:])
        device = counts[0].device
        scores, indexes, flags, candidates = (joined(parts).to(device) if parts else None for parts in lists)
        if scores is not None and indexes is not None and flags is not None:
            _, invalid, excluded, absent, named = _at(flags)
            labels = flags & RELEVANT if invalid is None else (flags & RELEVANT).to(torch.int8) - invalid.to(torch.int8)
            ids = None if candidates is None or named is None else _ids_of_all(candidates, named)
            items = Items(scores, labels, indexes, _not(absent), excluded, ids, invalid)
            ranked = ranked_items(items, self.histogram.settings.num_negatives)
            counts = self.histogram.add(counts, ranked, Extras())
        return self.histogram.read(counts)


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
