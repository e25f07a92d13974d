"""What is known of each query of a fixed set, however often and on whichever process it was seen.

A column for each query, and rows for the largest of each count and the largest of its negative. Such a table is reduced
by the maximum, so entering a query again changes nothing, and tables of several processes merge in any order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.ranks.base import ABSENT, BAD_IDS, IGNORED, Ranks, RanksOfSeveral

FIELDS = len(Ranks._fields)
UNSEEN = torch.iinfo(torch.int32).min


class Seen(NamedTuple):
    """A table, read.

    Attributes:
        ranks: of all queries, in the order of their ids; skipped where unseen.
        seen: ``(num_queries,)`` bool.
        differing: ``(num_queries,)`` bool; seen more than once, with different counts.
    """

    ranks: Ranks
    seen: Tensor
    differing: Tensor


def empty_table(num_queries: int, device: torch.device) -> Tensor:
    """Return a table of which nothing is filled in; its last column takes what belongs to no query."""
    return torch.full((2 * FIELDS, num_queries + 1), UNSEEN, dtype=torch.int32, device=device)


def enter(table: Tensor, ranks: Ranks, query_ids: Tensor) -> None:
    """Enter a batch into the table, in place and without waiting for its device.

    Args:
        table: from `empty_table`.
        ranks: of shape ``(...)``, on the device of the table.
        query_ids: ``(...)`` int64, checked; ids out of range are marked, skipped queries are not entered.
    """
    fields, ids = [_checks.flat(field) for field in ranks], _checks.flat(query_ids)
    spill = table.shape[1] - 1
    higher, tied, relevant, candidates = fields
    absent = relevant == ABSENT
    outside = (ids < 0) | (ids >= spill)
    relevant = torch.where(absent, IGNORED, torch.where(outside, BAD_IDS, relevant))
    if isinstance(ranks, RanksOfSeveral):
        candidates = torch.zeros_like(candidates)  # of these nothing is told of chance, as if they were not known
    values = torch.stack([higher, tied, relevant, candidates]).clamp(max=torch.iinfo(torch.int32).max).int()
    place = torch.where(outside | (relevant == IGNORED), spill, ids)
    both = torch.cat([values, -values])
    table.scatter_reduce_(1, place.expand_as(both), both, "amax")


def check_query_ids(query_ids: Tensor | None, ranks: Ranks, num_queries: int | None) -> Tensor | None:
    """Check ``query_ids``, which are asked for with ``num_queries`` and make no sense without."""
    if (query_ids is None) != (num_queries is None):
        expected = "None without num_queries" if num_queries is None else "the ids of the queries, with num_queries"
        raise ValueError(_checks.message("query_ids", expected, type(query_ids).__name__))
    if query_ids is None or num_queries is None:
        return None
    ids = _checks.integer_tensor("query_ids", query_ids, ranks.higher)
    _checks.same_shape("query_ids", ids, _checks.shape(ranks.higher))
    if _checks.on_host(ids) and ids.numel():
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= num_queries:
            expected = f"ids in 0..{num_queries - 1} (num_queries={num_queries})"
            raise ValueError(_checks.message("query_ids", expected, low if low < 0 else high))
    return ids


def read_table(table: Tensor) -> Seen:
    """Read a table. Where a query was seen with different counts, it counts as the worst of them together.

    That is: the most items above and tied, the fewest relevant ones (a miss or a fault before any), and the fewest
    candidates that hold them.
    """
    most, least = table[:FIELDS].long(), -table[FIELDS:].long()
    seen = table[0] != UNSEEN
    seen[-1] = False
    higher, tied = most[:2].clamp(min=0)
    relevant = torch.where(seen, least[2], IGNORED)
    candidates = torch.where(least[3] > 0, torch.maximum(least[3], higher + tied + 1), 0)
    # The last column holds skipped queries, which do not count, and ids that are none, which are faults.
    relevant[-1] = torch.where(table[FIELDS + 2, -1] == -BAD_IDS, BAD_IDS, IGNORED)
    differing = seen & (most != least).any(0)
    ranks = Ranks(higher, tied, relevant, torch.where(seen, candidates, 0))
    return Seen(ranks, seen[:-1], differing[:-1])
