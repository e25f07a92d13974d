"""Confidence intervals of a mean over queries, from what the state keeps of the queries' values."""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple


class Moments(NamedTuple):
    """What is known of the values of the queries.

    Attributes:
        queries: how many there are.
        mean: their (weighted) mean.
        variance: their mean squared distance from it; with weights, the mean by squared weights.
        effective: the number of queries of weight 1 whose mean would be as certain (Kish): the square of the sum of
            weights by the sum of their squares.
    """

    queries: int
    mean: float
    variance: float
    effective: float


def normal_interval(moments: Moments, confidence: float) -> tuple[float, float]:
    """Return mean -+ z * standard error, within [0, 1].

    Right by the central limit theorem for some hundred queries; too narrow where few of them have a value above 0.
    """
    if moments.effective < 2:
        return 0.0, 1.0  # one query says nothing of the spread
    error = (moments.variance / (moments.effective - 1)) ** 0.5
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * error
    return max(moments.mean - reach, 0.0), min(moments.mean + reach, 1.0)


def wilson_interval(moments: Moments, confidence: float) -> tuple[float, float]:
    """Return Wilson's score interval of a share (1927), which keeps its level for shares near 0 and 1."""
    number, share = moments.effective, moments.mean
    if number == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    scale = 1 + z**2 / number
    middle = (share + z**2 / (2 * number)) / scale
    reach = z / scale * (share * (1 - share) / number + z**2 / (4 * number**2)) ** 0.5
    # At the ends the difference is 0 but for rounding.
    return max(middle - reach, 0.0) if share > 0 else 0.0, min(middle + reach, 1.0) if share < 1 else 1.0
