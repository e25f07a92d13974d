"""Old names, until the last of them is gone."""

from __future__ import annotations

from torch import Tensor

from mrr_torch.ranks import Outcome, Ranks, check_ranks

FOUND = 1
EMPTY, MISSED, NAN, IGNORED, BAD_TARGET, BAD_RELEVANCE, BAD_EXCLUDE, BAD_SEVERAL, BAD_IDS, UNRESOLVED, ABSENT = (
    -i for i in range(11)
)
OUTCOMES = 10
FAULTS = {int(o): o.message for o in Outcome if o.invalid and int(o) != UNRESOLVED}
__all__ = ["Ranks", "check_ranks"]


class RanksOfSeveral(Ranks):
    """`Ranks` of queries that may have other relevant items than those they hold: what chance gives is not known."""


def unranked(counts: Tensor, ranked: Tensor | None) -> Tensor:
    """Set counts to 0 where a query has no rank; ``ranked`` is None where all have one."""
    return counts if ranked is None else counts.masked_fill(~ranked, 0)


def mark(relevant: Tensor, where: Tensor | None, outcome: int) -> Tensor:
    """Set ``outcome`` for the queries at ``where``; the last call wins, so faults are marked last."""
    return relevant if where is None or not True else relevant.masked_fill(where, outcome)
