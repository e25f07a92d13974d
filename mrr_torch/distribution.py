"""From `Ranks` to the distribution of ranks: where the tie rules live, and the layout of the state of every metric.

A query adds a mass of 1, to one rank or, among ties, spread over several. The state is one float64 vector, and states
add up. Without ties it holds whole numbers only, so sums are exact and do not depend on order, batches or processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.expectation import more_than_sampled, sampled_ranks
from mrr_torch.ranks.base import OUTCOMES, UNRESOLVED, Ranks

Ties = Literal["expected", "optimistic", "pessimistic", "realistic"]
TIES: tuple[Ties, ...] = ("expected", "optimistic", "pessimistic", "realistic")

# Ranks that the state tells apart; of those beyond it keeps the number, and the sums that an MRR without cut-off needs.
BINS = 1024
# Beyond: mass; sum of 1 / rank as two whole numbers, in units of 2**-36 and 2**-62; sum of 1 / rank**2.
TAIL = 4
COARSE, FINE = 2.0**36, 2.0**26


def steps_per_rank(ties: Ties) -> int:
    """Return how finely ranks are told apart: a realistic (mean) rank may be half-way between two."""
    return 2 if ties == "realistic" else 1


def state_size(bins: int, ties: Ties) -> int:
    """Return the length of the state vector: differences of the mass at each rank, tail, outcomes."""
    return bins * steps_per_rank(ties) + 1 + TAIL + OUTCOMES


def state_dtype(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on devices that have no float64 (MPS): whole numbers are exact up to 2**24 there."""
    return torch.float32 if device.type == "mps" else torch.float64


class Distribution(NamedTuple):
    """The state, read: all float64 on the CPU.

    Attributes:
        ranks: ``(steps,)``; 1, 2, ... or 1, 1.5, ... for realistic ties.
        mass: ``(steps,)``; queries at each of them.
        beyond: mass at the ranks beyond.
        tail: sum of 1 / rank over these.
        tail_squares: sum of 1 / rank**2 over these.
        outcomes: found, then a number for each code of `Ranks.relevant` from 0 downwards.
    """

    ranks: Tensor
    mass: Tensor
    beyond: float
    tail: float
    tail_squares: float
    outcomes: list[float]


def read(state: Tensor, bins: int, ties: Ties) -> Distribution:
    """Read a state vector; waits for its device."""
    state = state.detach().to("cpu", torch.float64)
    steps = bins * steps_per_rank(ties)
    beyond, coarse, fine, squares = state[steps + 1 : steps + 1 + TAIL].tolist()
    return Distribution(
        ranks=1 + torch.arange(steps, dtype=torch.float64) / steps_per_rank(ties),
        mass=state[:steps].cumsum(0),
        beyond=beyond,
        tail=coarse / COARSE + fine / (COARSE * FINE),
        tail_squares=squares,
        outcomes=state[steps + 1 + TAIL :].tolist(),
    )


def distribute(
    ranks: Ranks,
    *,
    ties: Ties,
    bins: int,
    dtype: torch.dtype,
    negatives: int | None = None,
    last: int | None = None,
    single: bool = False,
) -> Tensor:
    """Return the state vector of a batch of ranks, without waiting for its device.

    Args:
        ranks: of any shape.
        ties: the tie rule.
        bins: ranks to tell apart.
        dtype: of the state.
        negatives: where a target has more competitors, take the expectation over draws of so many of them.
        last: no rank is beyond it; None if that is not known.
        single: no query has several relevant items.
    """
    higher, tied, relevant, candidates = map(_checks.flat, ranks)
    steps = bins * steps_per_rank(ties)
    first_outcome = steps + 1 + TAIL
    start, length = spans(higher, tied, relevant, ties)
    found = relevant > 0
    sampled = more_than_sampled(found, candidates, negatives, last)
    ranked = found if sampled is None else found & ~sampled
    spread = ranked & (tied > 0) if ties == "expected" else None
    if spread is not None and not _checks.some(spread):
        spread = None
    # Each query is counted in one place: at its rank if it has just one, else at its outcome.
    place = (first_outcome + 1) - relevant.clamp(2 - OUTCOMES, 1)
    place = torch.where(ranked if spread is None else ranked & ~spread, start.clamp(max=steps), place)
    state = torch.zeros(state_size(bins, ties), dtype=dtype, device=higher.device)
    state.index_add_(0, place, state.new_ones(1).expand(place.shape))
    at_rank = state[: steps + 1].clone()
    state[first_outcome] += at_rank.sum()
    # The mass is kept as differences from rank to rank, where a query that is spread evenly takes two entries.
    state[1 : steps + 1] -= at_rank[:-1]
    if sampled is not None:
        for _, _, chance in sampled_ranks(higher, tied, candidates, sampled, negatives or 0, ties):
            mass = chance.sum(0).to(dtype)
            state[: mass.shape[0]] += mass
            state[1 : 1 + mass.shape[0]] -= mass
    weight = ranked.to(dtype)
    if spread is not None:
        several = torch.zeros_like(spread) if single else spread & (relevant > 1)
        rows = _checks.rows_at(spread)
        even = (spread & ~several)[rows].to(dtype) / length[rows]
        ends = torch.cat([start[rows], start[rows] + length[rows]]).clamp(max=steps)
        state.index_add_(0, ends, torch.cat([even, -even]))
        if not single and _checks.some(several):
            state += _several(higher, tied, relevant, several, bins, dtype, last)
        weight = torch.where(several, 0.0, weight / length)
    if (last is None or last > bins) and _checks.some(start + length > steps):
        state[steps + 1 : first_outcome] += _tail(start, length, weight, ties, bins)
    return state


def spans(higher: Tensor, tied: Tensor, relevant: Tensor, ties: Ties) -> tuple[Tensor, Tensor]:
    """Return the step (from 0) where each query's mass starts, and over how many ranks it is spread evenly."""
    if ties == "expected":
        return higher, torch.where(relevant == 1, tied + 1, 1)
    length = torch.ones_like(higher)
    if ties == "optimistic":
        return higher, length
    # The first of several relevant items comes last behind the tied competitors, and on average half-way there.
    return (higher + tied if ties == "pessimistic" else 2 * higher + tied), length


def several_relevant(
    higher: Tensor, tied: Tensor, relevant: Tensor, several: Tensor, last: int | None, edge: int = 0
) -> Iterator[tuple[Tensor, int, Tensor, Tensor]]:
    """Give, block by block, the probability that a query's first relevant item stands at a rank.

    m relevant items and t competitors in random order: after x - 1 competitors the next item is relevant with
    probability m / (m + t - x + 1). The product form has no cancellation and needs no large binomials.

    Args:
        higher: ``(queries,)``, as in `Ranks`.
        tied: ``(queries,)``.
        relevant: ``(queries,)``.
        several: ``(queries,)`` bool; the queries that are meant. Off the CPU all are followed, to pick none by value.
        last: no rank is beyond it; may be None on a CPU.
        edge: no block of ranks reaches over this one.

    Yields:
        indexes of queries ``(rows,)``; the first rank of a block; its ranks ``(width,)``; probabilities
        ``(rows, width)``.
    """
    host = _checks.on_host(several)
    queries = _checks.rows_at(several)
    dtype = state_dtype(higher.device)
    for rows in torch.split(queries, BINS // 2) if queries.numel() else ():
        above, rivals, wanted = higher[rows, None], tied[rows, None], relevant[rows, None].clamp(min=1)
        start = int(above.min()) + 1 if host else 1
        end = int((above + rivals).max()) + 1 if last is None else last
        before = torch.ones(rows.shape[0], 1, dtype=dtype, device=higher.device)
        while start <= end:
            stop = min(start + BINS - 1, end, edge if start <= edge else end)
            rank = torch.arange(start, stop + 1, dtype=dtype, device=higher.device)
            passed = rank - 1 - above  # competitors of the tie that stand before this rank
            left = (rivals - passed).clamp(min=0)
            stays = torch.where(passed >= 0, left / (left + wanted), 1.0).cumprod(1) * before
            reached = torch.cat([before, stays[:, :-1]], 1)
            yield rows, start, rank, torch.where(passed >= 0, reached * wanted / (left + wanted), 0.0)
            before, start = stays[:, -1:], stop + 1


def reciprocals_between(low: Tensor, high: Tensor) -> Tensor:
    """Return 1 / (low + 1) + ... + 1 / high in float64, to full precision for any size."""
    dtype = state_dtype(low.device)
    low, high = low.to(dtype), high.to(dtype)
    a, b = low + 0.5, high + 0.5
    # Euler-Maclaurin at the half-way points; the next term is below 1e-20 from 1024 on.
    smooth = ((b - a) / a).log1p() + (b**-2 - a**-2) / 24 - 7 * (b**-4 - a**-4) / 960
    return torch.where(low < BINS, torch.digamma(high + 1) - torch.digamma(low + 1), smooth)


def _tail(start: Tensor, length: Tensor, weight: Tensor, ties: Ties, bins: int) -> Tensor:
    """Return the part of the state that keeps the ranks beyond ``bins``."""
    per_rank = steps_per_rank(ties)
    low = start.clamp(min=bins * per_rank)
    high = torch.maximum(start + length, low)
    beyond = high - low
    rank = 1 + low.to(weight.dtype) / per_rank
    # A query on one rank: the division, correctly rounded, so that the sum is the same in any order.
    reciprocal = torch.where(length == 1, beyond / rank, reciprocals_between(low, high).to(weight.dtype))
    square = torch.where(length == 1, beyond / rank**2, beyond / ((low + 0.5) * (high + 0.5)))
    return _tail_sums(beyond * weight, reciprocal * weight, square * weight)


def _tail_sums(beyond: Tensor, reciprocal: Tensor, square: Tensor) -> Tensor:
    # Two whole numbers a query: their sums are exact for 100 million queries, whatever the order.
    coarse = (reciprocal * COARSE).floor()
    fine = ((reciprocal * COARSE - coarse) * FINE).round()
    return torch.stack([beyond.sum(), coarse.sum(), fine.sum(), square.sum()])


def _several(
    higher: Tensor, tied: Tensor, relevant: Tensor, several: Tensor, bins: int, dtype: torch.dtype, last: int | None
) -> Tensor:
    """Return the state of the queries at ``several``, which have several relevant items in a tie with competitors."""
    state = torch.zeros(state_size(bins, "expected"), dtype=dtype, device=higher.device)
    mass, tail = state[:bins], state[bins + 1 : bins + 1 + TAIL]
    if not _checks.on_host(several) and last is None:
        # Following a tie as far as it goes would need to know how far that is.
        last = bins
        state[bins + 1 + TAIL + 1 - UNRESOLVED] = (several & (higher + tied >= bins)).sum()
    for rows, start, rank, chance in several_relevant(higher, tied, relevant, several, last, bins):
        chance = chance * several[rows, None]
        if start <= bins:
            mass[start - 1 : start - 1 + rank.shape[0]] += chance.sum(0)
        else:
            tail += _tail_sums(chance.sum(1), (chance / rank).sum(1), (chance / rank**2).sum(1))
    state[1 : bins + 1] -= mass.clone()  # the state holds differences
    return state
