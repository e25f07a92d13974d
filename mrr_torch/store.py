"""Which store holds the queries of a metric, and what every store can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, get_args

import torch

from mrr_torch import _checks
from mrr_torch._device import to_device
from mrr_torch.extras import Extras
from mrr_torch.query_table import QueryTable
from mrr_torch.ranks import Ranks
from mrr_torch.ranks.batch import Ranked
from mrr_torch.reading import Reading
from mrr_torch.settings import Settings
from mrr_torch.state import RankHistogram

Unseen = Literal["skip", "neg"]


class Store(Protocol):
    """The states of a metric, in the order of ``names``: what they are, how a batch is added, how they are read."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the states; the first is a tensor."""

    @property
    def lists(self) -> dict[str, torch.dtype]:
        """Names of the states that are lists of tensors ``(n,)``, and a dtype that holds their values."""

    def empty(self, device: torch.device) -> dict[str, tuple[Any, str]]:
        """Return the states of no query, by name, and how each is reduced over processes."""

    def check(self, extras: Extras, ranked: Ranked) -> tuple[Extras, Ranked]:
        """Check what is given for each query; queries with invalid values that cannot be read are marked."""

    def add(self, states: Sequence[Any], ranked: Ranked, extras: Extras) -> tuple[Any, ...]:
        """Return the states with a batch added, without synchronising with their device."""

    def settled(self, states: Sequence[Any]) -> tuple[Any, ...]:
        """Return the states on their device with nothing that waits to be added up."""

    def bounded(self, states: Sequence[Any]) -> tuple[Any, ...]:
        """Return the states with no more waiting than memory and time allow, without synchronising."""

    def read(self, states: Sequence[Any], *, complete: bool = True) -> Reading:
        """Read the states, waiting for their device."""


def on_device(device: torch.device, ranked: Ranked, extras: Extras) -> tuple[Ranked, Extras]:
    """Return what is known of each query on the device of a state."""
    ranks = Ranks(*(to_device(field, device) for field in ranked.ranks))
    return ranked._replace(ranks=ranks), Extras(*(None if x is None else to_device(x, device) for x in extras))


def read_alone(store: Store, ranked: Ranked, extras: Extras) -> Reading:
    """Read the states of one batch alone; that other queries were not seen goes without saying."""
    empty = [state for state, _ in store.empty(ranked.ranks.higher.device).values()]
    return store.read(store.add(empty, ranked, extras), complete=False)


def store_of(settings: Settings, bins: int, num_queries: int | None, unseen: Any) -> Store:
    """Check ``unseen``, and return the store of a metric with these settings."""
    _checks.one_of("unseen", unseen, get_args(Unseen))
    histogram = RankHistogram(settings, bins)
    if num_queries is None:
        if unseen != "skip":
            raise ValueError(_checks.message("unseen", "'skip' without num_queries", repr(unseen)))
        return histogram
    if settings.split_queries != "refuse":
        expected = "'refuse' with num_queries, where each query counts once"
        raise ValueError(_checks.message("split_queries", expected, repr(settings.split_queries)))
    return QueryTable(histogram, num_queries, unseen)
