"""From `Ranks` to the distribution of ranks: where the tie rules live, and the layout of the state of every metric.

A query adds a mass of 1, to one rank or, among ties, spread over several. The state is one float64 vector, and states
add up. Without ties a value is read from whole numbers only, so it is exact and does not depend on order, batches or
processes. (Intervals also use squares of ranks beyond those told apart, which do in their last bit.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.expectation import more_than_sampled, sampled_ranks
from mrr_torch.ranks.base import ABSENT, OUTCOMES, UNRESOLVED, Ranks

Ties = Literal["expected", "optimistic", "pessimistic", "realistic"]
TIES: tuple[Ties, ...] = ("expected", "optimistic", "pessimistic", "realistic")

# Ranks that the state tells apart; of those beyond it keeps the number, and the sums that an MRR without cut-off needs.
BINS = 1024
# Beyond: mass; sum of 1 / rank**2; sum of 1 / rank as two numbers, in units of 2**-36 and 2**-62.
BEYOND = 4
COARSE, FINE = 2.0**36, 2.0**26


def steps_per_rank(ties: Ties) -> int:
    """Return how finely ranks are told apart: a realistic (mean) rank may be half-way between two."""
    return 2 if ties == "realistic" else 1


def state_size(bins: int, ties: Ties) -> int:
    """Return the length of the state vector: the mass at each rank, what is beyond, outcomes, a place never read."""
    return bins * steps_per_rank(ties) + BEYOND + OUTCOMES + 1


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
        outcomes: queries that were found, then those of each code of `Ranks.relevant` from 0 downwards.
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
    # Differences of fractions leave residues of either sign where nothing is.
    mass, outcomes = state[:steps].clamp(min=0), state[steps + BEYOND : steps + BEYOND + OUTCOMES]
    beyond, squares, coarse, fine = state[steps : steps + BEYOND].tolist()
    return Distribution(
        ranks=1 + torch.arange(steps, dtype=torch.float64, device="cpu") / steps_per_rank(ties),
        mass=mass,
        beyond=beyond,
        tail=from_whole_parts(coarse, fine),
        tail_squares=squares,
        # Each query that was found has a mass of 1, whole or in parts.
        outcomes=[round(float(mass.sum()) + beyond), *outcomes.tolist()],
    )


def add_ranks(
    state: Tensor,
    ranks: Ranks,
    *,
    ties: Ties,
    bins: int,
    negatives: int | None = None,
    last: int | None = None,
    single: bool = False,
    found: bool = False,
) -> None:
    """Add a batch of ranks to a state vector, in place and without waiting for its device.

    Args:
        state: ``(n,)``, of which the first ``state_size(bins, ties)`` are written to.
        ranks: of any shape, on the device of the state.
        ties: the tie rule.
        bins: ranks to tell apart.
        negatives: where a target has more competitors, take the expectation over draws of so many of them.
        last: no rank is beyond it; None if that is not known.
        single: no query has several relevant items.
        found: each query has a relevant item that was found; False if that is not known.
    """
    higher, tied, relevant, candidates = map(_checks.flat, ranks)
    steps = bins * steps_per_rank(ties)
    outcomes, nowhere = steps + BEYOND, steps + BEYOND + OUTCOMES  # where rows to spare are put, too
    start = first_step(higher, tied, ties)
    ranked = None if found else relevant > 0
    sampled = more_than_sampled(ranked, candidates, negatives, last)
    spread = _spread(tied, ranked, sampled) if ties == "expected" else None
    # Each query adds 1 in one place: at its rank if it has just one, or at its outcome. What is spread over ranks is
    # put where nothing is read, and added below.
    near = _checks.none_beyond(start, steps - 1) if last is None or last > bins else True
    place = start if near else start.clamp(max=steps)
    if ranked is not None:
        place = torch.where(ranked, place, outcomes - relevant.clamp(ABSENT, 0))
    for elsewhere in (sampled, spread):
        place = place if elsewhere is None else place.masked_fill(elsewhere, nowhere)
    state.index_add_(0, place, state.new_ones(1).expand(place.shape))
    if not near:
        rank = start.to(state.dtype) + 1 if steps == bins else start.to(state.dtype) / 2 + 1
        reciprocal = (place == steps) / rank
        sums = torch.stack([reciprocal * reciprocal, *whole_parts(reciprocal)]).sum(1)
        state[steps + 1 : steps + BEYOND].add_(sums)
    if spread is not None:
        _add_spread(state, higher, tied, relevant, spread, bins, last, single)
    if sampled is not None:
        for _, _, chance in sampled_ranks(higher, tied, candidates, sampled, negatives or 0, ties):
            _add_mass(state, 1, chance.sum(0).to(state.dtype))


def _spread(tied: Tensor, ranked: Tensor | None, sampled: Tensor | None) -> Tensor | None:
    """Mark the ranked queries whose relevant item is tied; None if none is, as far as that can be seen."""
    if _checks.none_beyond(tied, 0):
        return None
    spread = tied > 0
    if ranked is not None:
        spread &= ranked
    return spread if sampled is None else spread & ~sampled


def first_step(higher: Tensor, tied: Tensor, ties: Ties) -> Tensor:
    """Return the step (from 0) at which a query's mass starts; it is spread over the tied ones only if expected."""
    if ties in ("expected", "optimistic"):
        return higher
    # The first of several relevant items comes last behind the tied competitors, and on average half-way there.
    return higher + tied if ties == "pessimistic" else 2 * higher + tied


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


def whole_parts(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return numbers below 2**-10 as two whole numbers each: their sums are exact for 100 million queries.

    A sum of floats would depend on the order of the queries, and so on batches and processes.
    """
    scaled = numbers * COARSE
    coarse = scaled.floor()
    return coarse, ((scaled - coarse) * FINE).round()


def from_whole_parts(coarse: float, fine: float) -> float:
    """Return what sums of `whole_parts` stand for."""
    return coarse / COARSE + fine / (COARSE * FINE)


def reciprocals_between(low: Tensor, high: Tensor) -> Tensor:
    """Return 1 / (low + 1) + ... + 1 / high in float64, to full precision for any size."""
    dtype = state_dtype(low.device)
    low, high = low.to(dtype), high.to(dtype)
    return torch.where(low < BINS, torch.digamma(high + 1) - torch.digamma(low + 1), _far_reciprocals(low, high))


def _far_reciprocals(low: Tensor, high: Tensor) -> Tensor:
    """Return the same for floats from `BINS` on."""
    a, b = low + 0.5, high + 0.5
    # Euler-Maclaurin at the half-way points; the next term is below 1e-20 there.
    u, v = (a * a).reciprocal(), (b * b).reciprocal()
    return ((b - a) / a).log1p() + (v - u) * (1 / 24 - 7 / 960 * (u + v))


def _add_mass(state: Tensor, first: int, mass: Tensor) -> None:
    """Add masses ``(n,)`` at the ranks (or steps) from ``first`` on."""
    state[first - 1 : first - 1 + mass.shape[0]].add_(mass)


def _add_beyond(state: Tensor, steps: int, mass: Tensor, square: Tensor, reciprocal: Tensor) -> None:
    """Add, per query, what is spread beyond the ranks told apart: fractions, so nothing is gained by whole parts."""
    state[steps : steps + BEYOND - 1].add_(torch.stack([mass, square, reciprocal * COARSE]).sum(1))


def _add_spread(
    state: Tensor,
    higher: Tensor,
    tied: Tensor,
    relevant: Tensor,
    spread: Tensor,
    bins: int,
    last: int | None,
    single: bool,
) -> None:
    """Add the queries at ``spread``, whose relevant item is tied: evenly over its tie, unless it is one of several."""
    rows = _checks.rows_at(spread)
    several = None
    if not single and _checks.some(relevant[rows] > 1):
        several = spread & (relevant > 1)
    start, length = higher[rows], tied[rows] + 1
    stop, share = start + length, length.to(state.dtype).reciprocal()
    if several is not None:
        share = share * (spread & ~several)[rows]
    elif not _checks.on_host(spread):
        share = share * spread
    # Two entries for a query: differences of the mass from rank to rank.
    near = _checks.none_beyond(stop, bins) if last is None or last > bins else True
    change = state.new_zeros(bins + 1)
    for place, alpha in ((start, 1), (stop, -1)):
        change.index_add_(0, place if near else place.clamp(max=bins), share, alpha=alpha)
    _add_mass(state, 1, change.cumsum(0)[:bins])
    if not near:
        low, high = (place.clamp(min=bins).to(state.dtype) for place in (start, stop))
        mass = (high - low) * share
        squares = mass / ((low + 0.5) * (high + 0.5))
        _add_beyond(state, bins, mass, squares, _far_reciprocals(low, high) * share)
    if several is not None:
        _add_several(state, higher, tied, relevant, several, bins, last)


def _add_several(
    state: Tensor, higher: Tensor, tied: Tensor, relevant: Tensor, several: Tensor, bins: int, last: int | None
) -> None:
    """Add the queries at ``several``, which have several relevant items in a tie with competitors."""
    if not _checks.on_host(several) and last is None:
        # Following a tie as far as it goes would need to know how far that is.
        last = bins
        unresolved = (several & (higher + tied >= bins)).sum()
        state[bins + BEYOND - UNRESOLVED].add_(unresolved)
    for rows, start, rank, chance in several_relevant(higher, tied, relevant, several, last, bins):
        chance = torch.where(several[rows, None], chance, 0.0).to(state.dtype)
        if start <= bins:
            _add_mass(state, start, chance.sum(0))
        else:
            _add_beyond(state, bins, *((chance / rank**power).sum(1) for power in (0, 2, 1)))
