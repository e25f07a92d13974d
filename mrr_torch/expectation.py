"""What a sampled metric measures: the exact distribution of a sampled rank, and the way back to the full catalogue.

A target with h competitors above it among C candidates is ranked against m of the C - 1 competitors, drawn uniformly
without replacement. Its sampled rank is then a hypergeometric variable, so its distribution needs no drawing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from mrr_torch import _checks

# Elements of a block of probabilities: a few MB of float64, with what is needed to find them.
BLOCK = 2**17
# Weight of the variance against the squared bias of the full-catalogue estimate (gamma in the paper).
SMOOTHNESS = 0.1
# Ranks at each end of a catalogue that are summed one by one.
EDGE = 2**13


def hypergeometric(population: Tensor, successes: Tensor, draws: Tensor, width: int) -> Tensor:
    """Return P(x successes among the draws) for x = 0 .. width - 1, from each row's population.

    The probabilities are products of ratios of neighbours, outwards from the mode and normalised at the end: no
    factorials, no cancellation, nothing that could overflow, for populations of any size.

    Args:
        population: ``(rows,)`` items to draw from, without replacement.
        successes: ``(rows,)`` of them that count.
        draws: ``(rows,)`` at most ``population``.
        width: at least the largest number of draws + 1.

    Returns:
        ``(rows, width)`` float64.
    """
    population, successes, draws = (x.double()[:, None] for x in (population, successes, draws))
    x = torch.arange(width - 1, dtype=torch.float64, device=population.device)
    # P(x + 1) / P(x); zero or infinite at the ends of the support.
    over = (successes - x).clamp(min=0) * (draws - x).clamp(min=0)
    under = (x + 1) * (population - successes - draws + x + 1).clamp(min=0)
    rising = over > under  # below the mode
    up = torch.where(rising, 1.0, over / under.clamp(min=1)).cumprod(1)
    down = torch.where(rising, under / over.clamp(min=1), 1.0).flip(1).cumprod(1).flip(1)
    one = torch.ones_like(population)
    weight = torch.cat([one, up], 1) * torch.cat([down, one], 1)
    return weight / weight.sum(1, keepdim=True)


def more_than_sampled(
    found: Tensor | None, candidates: Tensor, negatives: int | None, last: int | None
) -> Tensor | None:
    """Mark the queries of sampled mode that have more competitors than are drawn; None if there are none."""
    if negatives is None or (last is not None and last <= negatives + 1):
        return None
    more = candidates > negatives + 1
    if found is not None:  # else all were
        more = more & found
    return more if _checks.some(more) else None


def sampled_ranks(
    higher: Tensor, tied: Tensor, candidates: Tensor, sampled: Tensor, negatives: int, ties: str
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Give, block by block, the distribution of a query's rank among competitors drawn without replacement.

    Args:
        higher: ``(queries,)``, as in `mrr_torch.Ranks`.
        tied: ``(queries,)``.
        candidates: ``(queries,)``.
        sampled: ``(queries,)`` bool; the queries that are meant, all with one relevant item. Off the CPU all are
            gone through, to pick none by value.
        negatives: how many competitors are drawn.
        ties: the tie rule.

    Yields:
        indexes of queries ``(rows,)``; ranks ``(steps,)``: 1, 2, ... (for realistic ties 1, 1.5, ...); probabilities
        ``(rows, steps)`` float64, 0 for the queries that are not meant.
    """
    per_rank = 2 if ties == "realistic" else 1
    ranks = 1 + torch.arange(per_rank * negatives + 1, dtype=torch.float64, device=higher.device) / per_rank
    for rows in torch.split(_checks.rows_at(sampled), max(1, BLOCK // (negatives + 1))):
        meant = sampled[rows, None]
        # The others may hold anything; they are given a place that exists.
        above, beside, all_of_them = (torch.where(sampled[rows], x[rows], 0) for x in (higher, tied, candidates - 1))
        chance = _sampled(above, beside, all_of_them, negatives, ties)
        yield rows, ranks, torch.where(meant, chance, 0.0)


def _sampled(higher: Tensor, tied: Tensor, others: Tensor, negatives: int, ties: str) -> Tensor:
    draws, width = others.clamp(max=negatives), negatives + 1
    if ties == "optimistic":
        return hypergeometric(others, higher, draws, width)
    if ties == "pessimistic":
        return hypergeometric(others, higher + tied, draws, width)
    if ties == "realistic":
        return _mean_ranks(higher, tied, others, draws, negatives)
    exact = hypergeometric(others, higher, draws, width)
    if not _checks.some(tied > 0):
        return exact
    # The target has each place in its tie with the same chance. The mean over these places telescopes, since
    # P(x above among m of C - 1, R above) = C / (m + 1) * [P(Y(R + 1) > x) - P(Y(R) > x)], Y(R) among m + 1 of C.
    size, candidates = tied + 1, others + 1
    change = hypergeometric(candidates, higher + size, draws + 1, width + 1) - hypergeometric(
        candidates, higher, draws + 1, width + 1
    )
    beyond = torch.ones(width + 1, width, dtype=torch.float64, device=change.device).tril(-1)
    spread = (change @ beyond) * (candidates / ((draws + 1) * size).double())[:, None]
    return torch.where((tied > 0)[:, None], spread, exact)


def _mean_ranks(higher: Tensor, tied: Tensor, others: Tensor, draws: Tensor, negatives: int) -> Tensor:
    """Return the distribution of 1 + a + b / 2, a competitors above and b tied ones among those drawn."""
    reached = hypergeometric(others, higher + tied, draws, negatives + 1)
    result = torch.zeros(higher.shape[0], 2 * negatives + 1, dtype=torch.float64, device=higher.device)
    for k in range(negatives + 1):  # a + b = k; of these k the a above are hypergeometric again
        drawn = (higher + tied).clamp(max=k)
        result[:, k : 2 * k + 1] += reached[:, k, None] * hypergeometric(higher + tied, higher, drawn, k + 1)
    return result


def full_catalogue_gain(
    gain: Callable[[Tensor], Tensor], catalogue_size: int, negatives: int, top_k: int | None = None
) -> Tensor:
    """Return what to count for each sampled rank so that its mean estimates the mean of ``gain`` over full ranks.

    The bias-variance corrected metric of Krichene and Rendle (KDD 2020, section 5), for draws without replacement: of
    all functions of the sampled rank the one with the least squared bias plus `SMOOTHNESS` times (variance - squared
    bias), averaged over all full ranks alike. It is an estimate with a bias towards that uniform prior.

    Args:
        gain: of float64 ranks ``(n,)`` in the full catalogue; smooth, but for a cut-off after ``top_k``.
        catalogue_size: candidates in the full catalogue, the target included.
        negatives: drawn from the others, without replacement.
        top_k: the cut-off; None for none.

    Returns:
        ``(negatives + 1,)`` float64 on the CPU: the gain of sampled ranks 1, 2, ...; it may be negative or above 1.
    """
    width = negatives + 1
    products = torch.zeros(width, width, dtype=torch.float64, device="cpu")
    reached, wanted = torch.zeros_like(products[0]), torch.zeros_like(products[0])
    others, draws = reached.new_tensor(catalogue_size - 1), reached.new_tensor(negatives)
    for above, times in _sum_over_ranks(catalogue_size, width, top_k):
        chance = hypergeometric(others.expand_as(above), above, draws.expand_as(above), width)
        products += chance.T @ (chance * times[:, None])
        reached += times @ chance
        inside = times if top_k is None else times * (above < top_k)
        wanted += (inside * gain(1 + above)) @ chance
    system = (1 - SMOOTHNESS) * products + SMOOTHNESS * reached.diag()
    solution: Tensor = torch.linalg.solve(system, wanted)
    return solution


def _sum_over_ranks(size: int, width: int, top_k: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Give numbers of items above, 0 .. ``size`` - 1, and weights, to sum smooth functions of them over the catalogue.

    Every number near both ends. Between them the probabilities are polynomials of a degree below ``width``, and a
    product of two of them is summed exactly by ``width`` nodes of a Gauss quadrature, on ranges that double in length
    so that gains like 1 / rank are smooth too. Ten million ranks take some thousand nodes.
    """
    edges = [EDGE]
    while edges[-1] < size - EDGE:
        edges.append(min(2 * edges[-1], size - EDGE))
    if size <= 2 * EDGE:
        edges = [size]
    if top_k is not None and edges[0] < top_k < edges[-1]:
        edges = sorted({*edges, top_k})
    ends = (
        torch.arange(edges[0], device="cpu"),
        torch.arange(edges[-1] if len(edges) > 1 else size, size, device="cpu"),
    )
    for every in torch.split(torch.cat(ends).double(), max(1, BLOCK // width)):
        yield every, torch.ones_like(every)
    for first, stop in itertools.pairwise(edges):
        places, weights = _discrete_gauss(stop - first, width)
        yield first + places, weights


def _discrete_gauss(points: int, nodes: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights that sum polynomials of a degree below 2 * ``nodes`` over 0 .. ``points`` - 1 exactly.

    From the recurrence of the discrete Chebyshev (Gram) polynomials, by Golub and Welsch (1969).
    """
    if points <= nodes:
        places = torch.arange(points, dtype=torch.float64, device="cpu")
        return places, torch.ones_like(places)
    k = torch.arange(1, nodes, dtype=torch.float64, device="cpu")
    off = (k**2 * (float(points) ** 2 - k**2) / (4 * (4 * k**2 - 1))).sqrt()
    places, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return places + (points - 1) / 2, points * vectors[0] ** 2
