"""What a sampled metric measures: the exact distribution of a sampled rank.

A target with h competitors above it among C candidates is ranked against m of the C - 1 competitors, drawn uniformly
without replacement. Its sampled rank is then a hypergeometric variable, so its distribution needs no drawing.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mrr_torch._device import state_dtype
from mrr_torch.kernels import backend, readable

# Elements of a block of probabilities: a few MB of float64, with what is needed to find them.
BLOCK = 2**17
# Largest C / ((m + 1) n) for which the telescoped mean over a tie is exact to 1e-12.
TELESCOPED = 2**11


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
        ``(rows, width)`` float64 (float32 on devices without it).
    """
    dtype = state_dtype(population.device)
    population, successes, draws = (x.to(dtype)[:, None] for x in (population, successes, draws))
    x = torch.arange(width - 1, dtype=dtype, device=population.device)
    # P(x + 1) / P(x); zero or infinite at the ends of the support.
    over = (successes - x).clamp(min=0) * (draws - x).clamp(min=0)
    under = (x + 1) * (population - successes - draws + x + 1).clamp(min=0)
    rising = over > under  # below the mode
    up = torch.where(rising, 1.0, over / under.clamp(min=1)).cumprod(1)
    down = torch.where(rising, under / over.clamp(min=1), 1.0).flip(1).cumprod(1).flip(1)
    one = torch.ones_like(population)
    weight = torch.cat([one, up], 1) * torch.cat([down, one], 1)
    return weight / weight.sum(1, keepdim=True)


def sampled_ranks(
    higher: Tensor, tied: Tensor, candidates: Tensor, sampled: Tensor, negatives: int, ties: str
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Give, block by block, the distribution of a query's rank among competitors drawn without replacement.

    For ``"expected"`` ties among n items of C candidates the probabilities are exact to 1e-12; where values cannot be
    read (on an accelerator), to C / ((m + 1) n) times 5e-16.

    Args:
        higher: ``(queries,)``, as in `mrr_torch.Ranks`.
        tied: ``(queries,)``.
        candidates: ``(queries,)``.
        sampled: ``(queries,)`` bool; the queries that are meant, all with one relevant item. Where values cannot be
            read all are gone through.
        negatives: how many competitors are drawn.
        ties: the tie rule.

    Yields:
        indexes of queries ``(rows,)``; ranks ``(steps,)``: 1, 2, ... (for realistic ties 1, 1.5, ...); probabilities
        ``(rows, steps)`` float64, 0 for the queries that are not meant.
    """
    per_rank = 2 if ties == "realistic" else 1
    dtype = state_dtype(higher.device)
    ranks = 1 + torch.arange(per_rank * negatives + 1, dtype=dtype, device=higher.device) / per_rank
    for rows in torch.split(backend(sampled).rows_at(sampled), max(1, BLOCK // (negatives + 1))):
        meant = sampled[rows, None]
        # The others may hold anything; they are given numbers that exist.
        above, beside, competitors = (torch.where(sampled[rows], x[rows], 0) for x in (higher, tied, candidates - 1))
        probability = _sampled(above, beside, competitors, negatives, ties)
        yield rows, ranks, torch.where(meant, probability, 0.0)


def _sampled(higher: Tensor, tied: Tensor, others: Tensor, negatives: int, ties: str) -> Tensor:
    draws, width = others.clamp(max=negatives), negatives + 1
    if ties == "optimistic":
        return hypergeometric(others, higher, draws, width)
    if ties == "pessimistic":
        return hypergeometric(others, higher + tied, draws, width)
    if ties == "realistic":
        return _mean_ranks(higher, tied, others, draws, negatives)
    exact = hypergeometric(others, higher, draws, width)
    if not backend(tied).some(tied > 0):
        return exact
    # The target stands at each position of its tie with the same probability. The mean over these telescopes, since
    # P(x above among m of C - 1, R above) = C / (m + 1) * [P(Y(R + 1) > x) - P(Y(R) > x)], Y(R) among m + 1 of C.
    size, candidates = tied + 1, others + 1
    change = hypergeometric(candidates, higher + size, draws + 1, width + 1) - hypergeometric(
        candidates, higher, draws + 1, width + 1
    )
    beyond = change.new_ones(width + 1, width).tril(-1)
    scale = (candidates / ((draws + 1) * size).to(change.dtype))[:, None]
    spread = (change @ beyond) * scale
    if readable(tied):  # where the difference loses too many digits
        rows = ((scale[:, 0] > TELESCOPED) & (tied > 0)).nonzero()[:, 0]
        if rows.numel():
            spread[rows] = _spread_by_parts(higher[rows], tied[rows], others[rows], draws[rows], negatives)
    return torch.where((tied > 0)[:, None], spread, exact)


def _spread_by_parts(higher: Tensor, tied: Tensor, others: Tensor, draws: Tensor, negatives: int) -> Tensor:
    """Return what telescopes in `_sampled` as a sum of positive terms, so without cancellation."""
    reached = hypergeometric(others, higher + tied, draws, negatives + 1)
    result = torch.zeros_like(reached)
    for k in range(negatives + 1):  # k drawn above or tied, of which a above; the target is anywhere among the k - a
        above = hypergeometric(higher + tied, higher, (higher + tied).clamp(max=k), k + 1)
        size = torch.arange(k + 1, 0, -1, dtype=above.dtype, device=above.device)
        result[:, : k + 1] += reached[:, k, None] * (above / size).cumsum(1)
    return result


def _mean_ranks(higher: Tensor, tied: Tensor, others: Tensor, draws: Tensor, negatives: int) -> Tensor:
    """Return the distribution of 1 + a + b / 2, a competitors above and b tied ones among those drawn."""
    reached = hypergeometric(others, higher + tied, draws, negatives + 1)
    result = reached.new_zeros(higher.shape[0], 2 * negatives + 1)
    for k in range(negatives + 1):  # a + b = k; of these k the a above are hypergeometric again
        drawn = (higher + tied).clamp(max=k)
        result[:, k : 2 * k + 1] += reached[:, k, None] * hypergeometric(higher + tied, higher, drawn, k + 1)
    return result
