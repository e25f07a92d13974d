"""Sums of small numbers as sums of whole numbers, which are exact in any order."""

from __future__ import annotations

from torch import Tensor

# Numbers are kept in units of 1 / UNIT, and what is left over in units of 1 / (UNIT * FINE_UNIT).
UNIT, FINE_UNIT = 2.0**36, 2.0**26


def whole_parts(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return numbers below 2**-10 as two whole numbers each: their sums are exact for 100 million queries.

    A sum of floats would depend on the order of the queries, and so on batches and processes.
    """
    scaled = numbers * UNIT
    coarse = scaled.floor()
    return coarse, ((scaled - coarse) * FINE_UNIT).round()


def from_whole_parts(coarse: float, fine: float) -> float:
    """Return what sums of `whole_parts` stand for."""
    return coarse / UNIT + fine / (UNIT * FINE_UNIT)
