"""From observed sampled ranks an estimate of the value in the full catalogue."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from mrr_torch.sampling.expectation import BLOCK, hypergeometric

# Weight of the variance against the squared bias (gamma in the paper).
SMOOTHNESS = 0.1
# Ranks at each end of a catalogue that are summed one by one.
EDGE = 2**13


def full_catalogue_gains(
    gain: Callable[[Tensor], Tensor], catalogue_size: int | None, negatives: int | None, cuts: list[int | None]
) -> dict[int | None, Tensor]:
    """Return `full_catalogue_gain` for each cut-off; none where no size of the catalogue is given."""
    if catalogue_size is None or negatives is None:
        return {}
    return {k: full_catalogue_gain(gain, catalogue_size, negatives, k) for k in cuts}


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
