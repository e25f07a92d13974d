"""What is known of each query of a fixed set, however often and on whichever process it was seen.

A column for each query, and rows for the largest of each count and the largest of its negative. Such a table is reduced
by the maximum, so entering a query again changes nothing, and tables of several processes merge in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from mrr_torch import _checks
from mrr_torch._device import state_dtype, to_device
from mrr_torch.extras import Extras, check_extras
from mrr_torch.ranks import Outcome, Ranks, with_several
from mrr_torch.ranks.batch import Ranked
from mrr_torch.reading import Reading
from mrr_torch.state import RankHistogram

INT32 = torch.iinfo(torch.int32)
UNSEEN = INT32.min
# Among the largest numbers of candidates, of a query that was only skipped.
CANDIDATES, SKIPPED = Ranks._fields.index("candidates"), -1
# Numbers of candidates are kept below this number; it is added for queries with several relevant items.
SEVERAL = 2**30


class QueryTable(NamedTuple):
    """The layout of the table: counts as in `Ranks`, and the cohort if there are any; weights in a table of their own.

    Attributes:
        histogram: of the queries, once each has its final ranks.
        num_queries: the queries have the ids 0 .. num_queries-1. One more column takes what belongs to no query.
        unseen: what a query counts that was not seen: "skip" nothing, "neg" 0.
    """

    histogram: RankHistogram
    num_queries: int
    unseen: str = "skip"

    @property
    def name(self) -> str:
        """Name of the state."""
        return f"queries_of_{self.histogram.settings.state_name}"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the states."""
        return (self.name, f"weights_of_{self.name}") if self.histogram.settings.weighted else (self.name,)

    @property
    def lists(self) -> dict[str, torch.dtype]:
        """No state is a list."""
        return {}

    def empty(self, device: torch.device) -> dict[str, tuple[Tensor, str]]:
        """Return the states of no query, by name, and how each is reduced over processes."""
        rows = 2 * (len(Ranks._fields) + bool(self.histogram.settings.cohorts))
        table = torch.full((rows, self.num_queries + 1), UNSEEN, dtype=torch.int32, device=device)
        states = {self.name: (table, "max")}
        if self.histogram.settings.weighted:
            shape = (2, self.num_queries + 1)
            weights = torch.full(shape, -torch.inf, dtype=state_dtype(device), device=device)
            states[self.names[1]] = (weights, "max")
        return states

    def settled(self, states: Sequence[Any]) -> tuple[Any, ...]:
        """Return the states: nothing waits to be entered."""
        return tuple(states)

    def bounded(self, states: Sequence[Any]) -> tuple[Any, ...]:
        """Return the states: nothing waits to be entered."""
        return tuple(states)

    def check(self, extras: Extras, ranked: Ranked) -> tuple[Extras, Ranked]:
        """Check the ids of the queries; where ids out of range cannot be read they are marked when they are entered."""
        given, ranks, name = extras.query_ids, ranked.ranks, "query_ids"
        if ranked.ids is not None:
            given, name = ranked.ids, "indexes"
        if given is None:
            expected = "the ids of the queries, with num_queries"
            raise ValueError(_checks.message(name, expected, "NoneType"))
        ids = _checks.integer_tensor(name, given, ranks.higher)
        _checks.same_shape(name, ids, _checks.shape(ranks.higher))
        outside = (ids < 0) | (ids >= self.num_queries)
        expected = f"ids in 0..{self.num_queries - 1} (num_queries={self.num_queries})"
        _checks.refuse(outside, name, expected, lambda: int(ids[outside][0]))
        return check_extras(extras._replace(query_ids=ids), ranked, self.histogram.settings)

    def add(self, states: Sequence[Any], ranked: Ranked, extras: Extras) -> tuple[Any, ...]:
        """Enter a batch without synchronising; skipped queries are not entered. The table is changed in place."""
        table, *rest = map(_writable, states)
        assert extras.query_ids is not None
        ranks, ids = Ranks(*map(_checks.flat, ranked.ranks)), _checks.flat(extras.query_ids)
        relevant = ranks.relevant.masked_fill(ranks.relevant == Outcome.PADDING.value, Outcome.IGNORED.value)
        skipped = relevant == Outcome.IGNORED.value
        # An error that was marked before is the one to be told, in whichever column.
        outside = ((ids < 0) | (ids >= self.num_queries)) & (relevant > Outcome.BAD_TARGET.value)
        ids = ids.clamp(0, self.num_queries - 1)
        relevant = relevant.masked_fill(outside & ~skipped, Outcome.BAD_IDS.value)
        candidates = ranks.num_candidates.clamp(max=SEVERAL - 1) + SEVERAL * ranks.several
        fields = [ranks.higher, ranks.tied, relevant, candidates]
        if extras.cohort is not None:
            fields.append(_checks.flat(extras.cohort))
        values = torch.stack(fields).clamp(max=INT32.max).int()
        column = torch.where(outside | skipped, self.num_queries, ids)
        _enter(table, values, column)
        if self.unseen == "neg":  # a skipped query was seen, and is not to count as one that was not
            here = torch.where(outside | ~skipped, self.num_queries, ids)
            table[CANDIDATES].scatter_reduce_(0, here, torch.full_like(here, SKIPPED, dtype=torch.int32), "amax")
        if extras.weights is not None:
            _enter(rest[0], _checks.flat(extras.weights).to(rest[0].dtype)[None], column)
        return table, *rest

    def read(self, states: Sequence[Any], *, complete: bool = True) -> Reading:
        """Read the table. A query that was seen with different counts counts as the worst of them together.

        That is: the most items above and tied, the fewest relevant ones (a miss or an error before any), and the fewest
        candidates that hold them; the largest cohort and weight.

        Args:
            states: as `add` returns them.
            complete: warn of queries that have not been seen.
        """
        cpu = torch.device("cpu")
        table, *rest = (to_device(state.detach(), cpu) for state in states)
        height = table.shape[0] // 2
        most, least = table[:height].long(), -table[height:].long()
        seen = table[0] != UNSEEN
        seen[-1] = False
        differing = int((seen & (most != least).any(0)).sum())
        higher, tied = most[0].clamp(min=0), most[1].clamp(min=0)
        relevant = torch.where(seen, least[2], Outcome.IGNORED.value)
        # The last column holds skipped queries, which do not count, and invalid ids.
        invalid = table[height + 2, -1] == -Outcome.BAD_IDS.value
        relevant[-1] = torch.where(invalid, Outcome.BAD_IDS.value, Outcome.IGNORED.value)
        fewest = least[3] % SEVERAL
        candidates = torch.where(fewest > 0, torch.maximum(fewest, higher + tied + 1), 0)
        candidates = with_several(candidates, most[3] >= SEVERAL)
        if complete and self.unseen == "neg":
            never = ~seen & (most[CANDIDATES] != SKIPPED)
            never[-1] = False
            relevant = relevant.masked_fill(never, Outcome.MISSED.value)
        ranks = Ranks(higher * seen, tied * seen, relevant, candidates * seen)
        missing = self.num_queries - int(seen.sum())
        if missing and complete and self.unseen == "skip":
            seen_of = f"Only {self.num_queries - missing:,} of {self.num_queries:,} queries have been seen"
            rank_zero_warn(f"{seen_of}; the others do not count.")
        if differing:
            were = "was" if differing == 1 else "were"
            rank_zero_warn(f"{_checks.queries(differing)} {were} seen with different ranks; the worse ones count.")
        # Each query once, in the order of the ids: on any processes the same sums to the last bit.
        entered = relevant != Outcome.IGNORED.value
        extras = Extras(
            cohort=most[4][entered] if self.histogram.settings.cohorts else None,
            weights=rest[0][0][entered] if rest else None,
        )
        empty = [state for state, _ in self.histogram.empty(cpu).values()]
        counted = self.histogram.add(empty, Ranked(Ranks(*(field[entered] for field in ranks))), extras)
        reading = self.histogram.read(counted)
        return reading._replace(ranks=Ranks(*(field[:-1] for field in ranks)))


def _enter(table: Tensor, values: Tensor, column: Tensor) -> None:
    both = torch.cat([values, -values])
    table.scatter_reduce_(1, column.expand_as(both), both, "amax")


def _writable(table: Tensor) -> Tensor:
    """Return the table itself, or a copy of one made in inference mode (by a reset, say), not to be changed outside."""
    return table.clone() if table.is_inference() and not torch.is_inference_mode_enabled() else table
