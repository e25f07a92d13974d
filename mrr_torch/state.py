"""The state of every metric: counts of its queries, and what waits to be counted.

An update only ranks. Its ranks wait, and are counted many batches at a time, or when the state is read. But a host
counts at once a batch that comes when none waits: the first one, and the first after a reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mrr_torch import _checks, split_queries
from mrr_torch._device import compiling, to_device
from mrr_torch._gather import parts_of
from mrr_torch.counts import Counts
from mrr_torch.extras import Extras, check_extras
from mrr_torch.kernels import readable
from mrr_torch.ranks import Ranks
from mrr_torch.ranks.batch import Ranked
from mrr_torch.reading import Reading, refuse_invalid
from mrr_torch.settings import Settings

# What may wait to be counted: numbers, 4 to 6 of a query, where they can be read (2 MiB) and elsewhere (8 MiB), and
# batches, before they are put together.
READABLE_WAITING, WAITING, PARTS = 2**18, 2**20, 64


class RankHistogram(NamedTuple):
    """The states of a metric: counts, ranges of the number of candidates, ranks that wait, and what flat lists keep.

    Attributes:
        settings: how ranks are taken.
        bins: ranks with a bin of their own.
    """

    settings: Settings
    bins: int

    @property
    def counts(self) -> Counts:
        """The layout of the counts."""
        return Counts(self.settings, self.bins)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the states."""
        return self.settings.state_name, self.settings.candidates_name, *self.lists

    @property
    def lists(self) -> dict[str, torch.dtype]:
        """Names of the states that are lists of tensors ``(n,)``, and a dtype that holds their values."""
        return {f"waiting_for_{self.settings.state_name}": torch.int64, **split_queries.lists(self.settings)}

    def empty(self, device: torch.device) -> dict[str, tuple[Any, str]]:
        """Return the states of no query, by name, and how each is reduced over processes."""
        summed, ranges = self.counts.empty(device)
        summed_name, ranges_name, *lists = self.names
        return {summed_name: (summed, "sum"), ranges_name: (ranges, "max"), **{name: ([], "cat") for name in lists}}

    def check(self, extras: Extras, ranked: Ranked) -> tuple[Extras, Ranked]:
        """Check what is given for each query; queries with invalid values that cannot be read are marked."""
        if extras.query_ids is not None:
            expected = "None without num_queries"
            raise ValueError(_checks.message("query_ids", expected, type(extras.query_ids).__name__))
        asked = self.settings.cohorts or self.settings.weighted
        if asked or extras.cohort is not None or extras.weights is not None:
            return check_extras(extras, ranked, self.settings)
        return extras, ranked

    def add(self, states: Sequence[Any], ranked: Ranked, extras: Extras) -> tuple[Any, ...]:
        """Return the states with a batch added, without synchronising with their device."""
        summed, ranges, waiting, *kept = states
        if ranked.ids is not None or ranked.items is not None:
            kept = split_queries.keep(kept, ranked)
        host, ranks = readable(summed), ranked.ranks
        traced = not host and compiling()
        if ranked.items is not None or not (traced or ranks.higher.numel()):
            return summed, ranges, waiting, *kept
        # To count a batch takes some forty small operations, more than to rank a small one: so it waits for others.
        # Where nothing waits a host counts it, since it may be read before the next one comes; an empty part in the
        # list makes the next one wait. For a list that grows `torch.compile` would compile anew.
        if len(waiting) if host else not traced:
            parts = [*waiting, _packed(ranks, extras, summed.dtype)]
            # Beyond, on an accelerator: what is known of this batch bounds its ties; of many that waited nothing is.
            if host or _size(parts) <= WAITING:
                return self.bounded((summed, ranges, parts, *kept))
        ranks = Ranks(*map(_checks.flat, ranks))
        extras = Extras(*(None if value is None else _checks.flat(value) for value in extras))
        counted = self.counts.add(summed, ranges, ranked._replace(ranks=ranks), extras)
        return *counted, [ranks.higher.new_empty(0)] if host else waiting, *kept

    def bounded(self, states: Sequence[Any]) -> tuple[Any, ...]:
        """Return the states with no more waiting than memory and time allow, without synchronising."""
        summed, ranges, waiting, *kept = states
        most = READABLE_WAITING if readable(summed) else WAITING
        if len(waiting) < PARTS and _size(waiting) <= most:
            return tuple(states)
        if not _size(waiting):
            return summed, ranges, waiting[:1], *kept
        together = _together(parts_of(waiting))
        if together.numel() <= most:
            return summed, ranges, [together], *kept
        return *self.counts.add(summed, ranges, *self._unpacked(together, summed.dtype)), [], *kept

    def settled(self, states: Sequence[Any]) -> tuple[Any, ...]:
        """Return the states on their device with nothing that waits to be counted, for which it is waited."""
        summed, ranges, waiting, *kept = states
        if not len(waiting):
            return tuple(states)
        if not parts_of(waiting):
            return summed, ranges, [], *kept
        return *(to_device(state.to(summed.dtype), summed.device) for state in self._counted(states)), [], *kept

    def read(self, states: Sequence[Any], *, complete: bool = True) -> Reading:
        """Read the states, waiting for their device; raise for invalid values that could not be read before."""
        items = split_queries.read(states[3:], self.settings, states[0].device)
        if items is not None:
            states = self.add(states[:3], items, Extras())
        reading = self.counts.read(*self._counted(states))
        refuse_invalid(reading.counts.outcomes, self.settings)
        return reading

    def _counted(self, states: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Return counts and ranges, float64 on the CPU, with what waits counted."""
        cpu, parts = torch.device("cpu"), parts_of(states[2])
        summed, ranges = (to_device(state, cpu).double() for state in states[:2])
        if not parts:
            return summed, ranges
        waiting = to_device(_together(parts), cpu)
        return self.counts.add(summed, ranges, *self._unpacked(waiting, states[0].dtype))

    def _unpacked(self, waiting: Tensor, dtype: torch.dtype) -> tuple[Ranked, Extras]:
        """Return what `_packed` made the rows of."""
        higher, tied, relevant, candidates, *more = waiting.unbind()
        weights = more.pop().to(_bits(dtype)).view(dtype) if self.settings.weighted else None
        extras = Extras(cohort=more.pop() if self.settings.cohorts else None, weights=weights)
        return Ranked(Ranks(higher, tied, relevant, candidates)), extras


def _packed(ranks: Ranks, extras: Extras, dtype: torch.dtype) -> Tensor:
    """Return ranks, cohorts and weights ``(...)`` as the rows of one int64 tensor, for counts of ``dtype``."""
    rows = list(ranks)
    if extras.cohort is not None:
        rows.append(extras.cohort)
    if extras.weights is not None:
        rows.append(extras.weights.to(dtype).view(_bits(dtype)).long())
    return torch.stack(rows).view(len(rows), -1)


def _bits(dtype: torch.dtype) -> torch.dtype:
    """Return the integers of the size of the floats of counts."""
    return torch.int64 if dtype == torch.float64 else torch.int32


def _together(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _size(parts: list[Tensor]) -> int:
    return sum(part.numel() for part in parts)
