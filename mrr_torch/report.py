"""What a person reads: one line that says a value and how it was computed, and the bars of the rank distribution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch._torchmetrics import need_matplotlib
from mrr_torch.intervals import Moments
from mrr_torch.ranks import Outcome
from mrr_torch.reading import Reading
from mrr_torch.settings import Settings


class Value(NamedTuple):
    """One value of a metric.

    Attributes:
        name: such as ``mrr@10``.
        moments: of the queries' values.
        low: lower end of the interval.
        high: upper end.
        chance: the chance level; None if unknown.
    """

    name: str
    moments: Moments
    low: float
    high: float
    chance: float | None


def line(values: list[Value], reading: Reading, confidence: float) -> str:
    """Return everything that a reader needs to compare a value with another one."""
    parts = [", ".join(_value(value, confidence) for value in values)]
    weighted = ", weighted" if len(reading.channels) > 1 else ""
    parts.append(_checks.queries(reading.queries) + weighted)
    parts.append(mode(reading.settings, reading.candidates))
    parts.append(f"ties: {reading.settings.ties}")
    parts += left_out(reading)
    return "; ".join(parts)


def mode(settings: Settings, candidates: tuple[float, float]) -> str:
    """Return what the target was ranked against."""
    fewest, most = candidates
    if most <= 0:
        number = "candidates unknown"
    elif fewest == 0:
        number = f"up to {most:,.0f} candidates, unknown for some"
    elif fewest == most:
        number = f"{most:,.0f} candidates"
    else:
        number = f"{fewest:,.0f} to {most:,.0f} candidates"
    if settings.num_negatives is None:
        return f"all of {number}" if most > 0 else number
    sampled = f"target + {settings.num_negatives:,} sampled negatives"
    if most <= 1 + settings.num_negatives:
        return sampled if fewest == 1 + settings.num_negatives else f"{sampled} ({number})"
    return f"{sampled} (expected over draws from {number})"


def left_out(reading: Reading) -> list[str]:
    """Return which queries were not ranked."""
    nan, empty, ignored = (reading.count(o) for o in (Outcome.NAN, Outcome.EMPTY, Outcome.IGNORED))
    parts = []
    if nan:
        parts.append(f"{nan:,} NaN target{'s count' if nan > 1 else ' counts'} 0")
    if empty:
        one = empty == 1
        does = {"neg": "count 0", "pos": "count 1", "skip": "left out", "error": "refused"}
        what = does[reading.settings.empty_target_action]
        parts.append(f"{empty:,} without a relevant item {what.replace('count', 'counts') if one else what}")
    if ignored:
        parts.append(f"{ignored:,} ignored")
    return parts


def _value(value: Value, confidence: float) -> str:
    level = f"{confidence * 100:.10g}%"
    text = f"{value.name} {value.moments.mean:.4f} ({level} {value.low:.4f} to {value.high:.4f}"
    return text + (")" if value.chance is None else f", chance {value.chance:.4f})")


def plot_shares(shares: Mapping[str, tuple[Tensor, float | None]], title: str, ax: Any = None) -> tuple[Any, Any]:
    """Draw the share of queries at each rank, beyond, and missed, one group of bars for each model.

    Args:
        shares: per model ``(top_k + 1,)`` shares at ranks 1 .. top_k and beyond, and the share missed (None: unknown).
        title: says the protocol.
        ax: axes to draw into; new ones if None.

    Returns:
        figure and axes.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    need_matplotlib()
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(8, 4), layout="constrained") if ax is None else (ax.get_figure(), ax)
    top_k = max(mass.shape[0] for mass, _ in shares.values()) - 1
    width = 0.8 / len(shares)
    # Gaps set "beyond" and "missed" apart from the ranks, and leave room for their labels.
    gap = max(2.0, top_k / 12)
    extra = {top_k + gap: f"> {top_k}"}
    if any(missed is not None for _, missed in shares.values()):
        extra[top_k + 2 * gap] = "missed"
    positions = [*range(1, top_k + 1), *extra]
    # From dark to light, so that the models differ in print too; hatches tell more than three apart.
    for i, (name, (mass, missed)) in enumerate(shares.items()):
        heights = torch.zeros(top_k + 2, device="cpu")
        heights[: mass.shape[0] - 1] = mass[:-1]
        heights[top_k], heights[top_k + 1] = mass[-1], missed or 0.0
        ax.bar(
            [at + (i - (len(shares) - 1) / 2) * width for at in positions],
            heights[: len(positions)].tolist(),
            width,
            label=name,
            color=plt.get_cmap("viridis")(i / max(len(shares) - 1, 1) * 0.85),
            edgecolor="black",
            linewidth=0.4,
            hatch=("", "//", "..", "xx")[i % 4],
        )
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, top_k) if top_k / step <= 15)
    ticks = [rank for rank in range(1, top_k + 1) if rank == 1 or rank % step == 0]
    ax.set_xticks([*ticks, *extra], [*map(str, ticks), *extra.values()])
    ax.set_xlabel("rank of the first relevant item")
    ax.set_ylabel("share of queries")
    ax.set_ylim(bottom=0)
    ax.set_title(title, fontsize="medium", wrap=True)
    if len(shares) > 1:
        ax.legend()
    return fig, ax
