"""Runs of equal ids in a sorted list, and what is counted in each."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Runs(NamedTuple):
    """The runs of a sorted list of ids ``(T,)``.

    Attributes:
        number: of runs; where values cannot be read T, the last of which are padding.
        even: all runs are known to have the same length.
        starts: ``(number,)``; the first item of each run. Where values cannot be read ``(T,)``: the run of each item.
        lengths: ``(number,)``; items in each run; None where values cannot be read.
        padding: ``(number,)`` bool; runs that are none; None if there is none.
    """

    number: int
    even: bool
    starts: Tensor
    lengths: Tensor | None = None
    padding: Tensor | None = None


class RunCounts(NamedTuple):
    """Counts of each run, all ``(runs,)`` int64.

    Attributes:
        higher: competitors above the best relevant score.
        equal: items with this score, the relevant ones included.
        level: relevant items with this score; 0 if there is none.
        number: relevant items.
        candidates: items that are relevant or compete.
    """

    higher: Tensor
    equal: Tensor
    level: Tensor
    number: Tensor
    candidates: Tensor
