"""Where the relevant item stands among items of the same score: the tie rules, and sampled mode.

A query's mass of 1 stands at one rank; or evenly on consecutive ranks (a tie of one relevant item with competitors); or
on ranks with a probability each (several relevant items in a tie, or a draw of negatives). `standings` says which of
the three; the state adds them up, and the per-query values are means of a gain over them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from mrr_torch._device import state_dtype
from mrr_torch.kernels import backend, readable
from mrr_torch.ranks.batch import Ranked
from mrr_torch.sampling.expectation import sampled_ranks
from mrr_torch.vectors import at

Ties = Literal["expected", "optimistic", "pessimistic", "realistic"]
TIES: tuple[Ties, ...] = ("expected", "optimistic", "pessimistic", "realistic")
# Ranks in a block of probabilities, and the rank up to which harmonic sums use digamma.
BLOCK = 1024


class Even(NamedTuple):
    """Queries whose mass is spread evenly over the steps from ``start`` to before ``stop``.

    Attributes:
        rows: ``(n,)``; indexes of queries; None for all.
        start: ``(n,)``; first step.
        stop: ``(n,)``; the step after the last.
        share: ``(n,)`` float; the mass at each step; 0 for queries that are not meant.
    """

    rows: Tensor | None
    start: Tensor
    stop: Tensor
    share: Tensor


class Block(NamedTuple):
    """Probabilities of consecutive steps.

    Attributes:
        rows: ``(n,)``; indexes of queries.
        first: the first of the steps.
        ranks: ``(width,)`` float; the rank of each step.
        probabilities: ``(n, width)``; 0 for queries that are not meant.
        rest: ``(n,)``; the mass beyond, of which nothing more is known; or None.
    """

    rows: Tensor
    first: int
    ranks: Tensor
    probabilities: Tensor
    rest: Tensor | None = None


class Standings(NamedTuple):
    """Where queries stand. A step is a rank from 0, or half a rank where ties are realistic.

    Attributes:
        step: ``(queries,)`` int64; the first step at which each may stand.
        spread: ``(queries,)`` bool; the queries whose mass is not all there; None if there are none.
        even: queries spread evenly; None if there are none.
        blocks: queries with a probability for each step.
    """

    step: Tensor
    spread: Tensor | None
    even: Even | None
    blocks: Iterator[Block]


def steps_per_rank(ties: Ties) -> int:
    """Return the number of steps in a rank: a realistic (mean) rank may be half-way between two."""
    return 2 if ties == "realistic" else 1


def standings(ranked: Ranked, ties: Ties, negatives: int | None, edge: int = 0, last: int | None = None) -> Standings:
    """Return where the queries of a batch stand.

    Args:
        ranked: ranks ``(queries,)``, and what is known of them. Counts of queries without a rank are not used.
        ties: the tie rule. ``"expected"``: each order of the tied items has the same probability (McSherry and Najork,
            2008). ``"realistic"``: the mean of the optimistic and the pessimistic rank.
        negatives: where a target has more competitors, take the expectation over draws of so many of them.
        edge: no block of probabilities reaches over this rank.
        last: ranks beyond do not matter; None if all do.
    """
    (higher, tied, relevant, _), known = ranked.ranks, ranked.known
    kernel = backend(higher)
    if ties in ("expected", "optimistic"):
        step = higher
    else:  # the first of several relevant items comes last behind the tied competitors, and on average half-way there
        step = higher + tied if ties == "pessimistic" else 2 * higher + tied
    sampled = spread = None
    if negatives is not None and known.most > negatives + 1:
        sampled = ranked.ranks.num_candidates > negatives + 1
    if ties == "expected" and not known.untied:
        spread = tied > 0
    if not known.ranked:
        sampled, spread = (None if where is None else where & (relevant > 0) for where in (sampled, spread))
    if sampled is not None and not kernel.some(sampled):
        sampled = None
    blocks: list[Iterator[Block]] = []
    elsewhere = sampled
    if sampled is not None:
        candidates = ranked.ranks.num_candidates
        blocks.append(_blocks_of_sample(higher, tied, candidates, sampled, negatives, ties))
    even = None
    if spread is not None:
        spread = spread if sampled is None else spread & ~sampled
        elsewhere = spread if sampled is None else spread | sampled
        several = None if known.single or known.wanted <= 1 else spread & (relevant > 1)
        if several is not None and kernel.some(several):
            spread = spread & ~several
            end = min(math.inf if last is None else last, known.last)
            blocks.append(first_of_several(higher, tied, relevant, several, end, edge))
        rows = kernel.subset(spread)
        start, length = at(higher, rows), at(tied, rows) + 1
        share = length.to(state_dtype(length.device)).reciprocal()
        even = Even(rows, start, start + length, share if rows is not None else share * spread)
    return Standings(step, elsewhere, even, (block for each in blocks for block in each))


def first_of_several(
    higher: Tensor, tied: Tensor, relevant: Tensor, several: Tensor, last: float, edge: int = 0
) -> Iterator[Block]:
    """Give, block by block, the probability that the first of several relevant items in a tie stands at a rank.

    m relevant items and t competitors in random order: after x - 1 competitors the next item is relevant with
    probability m / (m + t - x + 1). The product form has no cancellation and needs no large binomials.

    Args:
        higher: ``(queries,)``, as in `Ranks`.
        tied: ``(queries,)``.
        relevant: ``(queries,)``.
        several: ``(queries,)`` bool; the queries that are meant. Where values cannot be read all are followed.
        last: ranks beyond do not matter, or there are none. Where values cannot be read and it is infinite, they are
            followed to ``edge``, and the last block tells the rest.
        edge: no block reaches over this rank.
    """
    dtype, host = state_dtype(higher.device), readable(several)
    for rows in torch.split(backend(several).rows_at(several), BLOCK // 2):
        above, competitors, wanted = higher[rows, None], tied[rows, None], relevant[rows, None].clamp(min=1)
        start = int(above.min()) + 1 if host and rows.numel() else 1
        end = min(last, int((above + competitors).max()) + 1) if host and rows.numel() else last
        unknown, end = end == math.inf, edge if end == math.inf else int(end)
        before = torch.ones_like(above, dtype=dtype) * several[rows, None]
        while start <= end:
            stop = min(start + BLOCK - 1, end, edge if start <= edge else end)
            rank = torch.arange(start, stop + 1, dtype=dtype, device=higher.device)
            passed = rank - 1 - above  # competitors of the tie that stand before this rank
            left = (competitors - passed).clamp(min=0)
            stays = torch.where(passed >= 0, left / (left + wanted), 1.0).cumprod(1) * before
            reached = torch.cat([before, stays[:, :-1]], 1)
            probability = torch.where(passed >= 0, reached * wanted / (left + wanted), 0.0)
            before = stays[:, -1:]
            yield Block(rows, start - 1, rank, probability, before[:, 0] if unknown and stop == end else None)
            start = stop + 1


def _blocks_of_sample(
    higher: Tensor, tied: Tensor, candidates: Tensor, sampled: Tensor, negatives: int | None, ties: Ties
) -> Iterator[Block]:
    for rows, ranks, probabilities in sampled_ranks(higher, tied, candidates, sampled, negatives or 0, ties):
        yield Block(rows, 0, ranks, probabilities)


def reciprocals_between(low: Tensor, high: Tensor) -> Tensor:
    """Return 1 / (low + 1) + ... + 1 / high in float64, to full precision for any size."""
    dtype = state_dtype(low.device)
    low, high = low.to(dtype), high.to(dtype)
    return torch.where(low < BLOCK, torch.digamma(high + 1) - torch.digamma(low + 1), far_reciprocals(low, high))


def far_reciprocals(low: Tensor, high: Tensor) -> Tensor:
    """Return the same for floats from `BLOCK` on."""
    a, b = low + 0.5, high + 0.5
    # Euler-Maclaurin at the half-way points; the next term is below 1e-20 there.
    u, v = (a * a).reciprocal(), (b * b).reciprocal()
    return ((b - a) / a).log1p() + (v - u) * (1 / 24 - 7 / 960 * (u + v))
