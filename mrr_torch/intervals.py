"""Confidence intervals of a mean over queries, from what the state keeps of the queries' values."""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple


class Moments(NamedTuple):
    """What is known of the values of the queries.

    Attributes:
        queries: how many there are.
        mean: their mean.
        square: the mean of their squares.
    """

    queries: int
    mean: float
    square: float


def normal_interval(moments: Moments, confidence: float) -> tuple[float, float]:
    """Return mean -+ z * standard error, within [0, 1].

    Right by the central limit theorem for some hundred queries; too narrow where few of them have a value above 0.
    """
    queries, mean, square = moments
    if queries < 2:
        return 0.0, 1.0  # one query says nothing of the spread
    variance = max(square - mean**2, 0.0) / (queries - 1)
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * variance**0.5
    return max(mean - reach, 0.0), min(mean + reach, 1.0)


def wilson_interval(moments: Moments, confidence: float) -> tuple[float, float]:
    """Return Wilson's score interval of a share (1927), which keeps its level for shares near 0 and 1."""
    queries, share, _ = moments
    if queries == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    scale = 1 + z**2 / queries
    middle = (share + z**2 / (2 * queries)) / scale
    reach = z / scale * (share * (1 - share) / queries + z**2 / (4 * queries**2)) ** 0.5
    # At the ends the difference is 0 but for rounding.
    return max(middle - reach, 0.0) if share > 0 else 0.0, min(middle + reach, 1.0) if share < 1 else 1.0
