"""One line that says a value and how it was computed, to be pasted beside it."""

from __future__ import annotations

from typing import NamedTuple

from mrr_torch.intervals import Moments
from mrr_torch.protocol import Protocol, outcome_count
from mrr_torch.ranks.base import EMPTY, IGNORED, NAN


class Told(NamedTuple):
    """One value of a metric, ready to be told.

    Attributes:
        name: such as ``mrr@10``.
        moments: of the queries' values.
        low: lower end of the interval.
        high: upper end.
        chance: what a scorer of random numbers would get; None if unknown.
    """

    name: str
    moments: Moments
    low: float
    high: float
    chance: float | None


def line(
    readings: list[Told],
    protocol: Protocol,
    outcomes: list[float],
    candidates: tuple[float, float],
    confidence: float,
) -> str:
    """Put everything that a reader needs to compare a value with another one into a line."""
    parts = [", ".join(_value(reading, confidence) for reading in readings)]
    parts.append(f"{readings[0].moments.queries:,} queries")
    parts.append(mode(protocol, candidates))
    parts.append(f"ties: {protocol.ties}")
    parts += left_out(protocol, outcomes)
    return "; ".join(parts)


def mode(protocol: Protocol, candidates: tuple[float, float]) -> str:
    """Say what the target was ranked against."""
    fewest, most = candidates
    if most <= 0:
        number = "candidates unknown"
    elif fewest == 0:
        number = f"up to {most:,.0f} candidates, unknown for some"
    elif fewest == most:
        number = f"{most:,.0f} candidates"
    else:
        number = f"{fewest:,.0f} to {most:,.0f} candidates"
    if protocol.num_negatives is None:
        return f"all of {number}" if most > 0 else number
    sampled = f"target + {protocol.num_negatives:,} sampled negatives"
    if most <= 1 + protocol.num_negatives:
        return sampled if fewest == 1 + protocol.num_negatives else f"{sampled} ({number})"
    return f"{sampled} (expected over draws from {number})"


def left_out(protocol: Protocol, outcomes: list[float]) -> list[str]:
    """Say which queries were not ranked."""
    nan, empty, ignored = (outcome_count(outcomes, code) for code in (NAN, EMPTY, IGNORED))
    parts = []
    if nan:
        parts.append(f"{nan:,} NaN targets count 0")
    if empty:
        what = {"neg": "count 0", "pos": "count 1", "skip": "left out", "error": "refused"}
        parts.append(f"{empty:,} without a relevant item {what[protocol.empty_target_action]}")
    if ignored:
        parts.append(f"{ignored:,} ignored")
    return parts


def _value(reading: Told, confidence: float) -> str:
    text = f"{reading.name} {reading.moments.mean:.4f} ({confidence:.0%} {reading.low:.4f} to {reading.high:.4f}"
    return text + (")" if reading.chance is None else f", chance {reading.chance:.4f})")
