"""The distribution of ranks as bars. Imports matplotlib when called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torchmetrics.utilities.imports import _MATPLOTLIB_AVAILABLE
from torchmetrics.utilities.plot import _error_on_missing_matplotlib


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
    _error_on_missing_matplotlib()
    assert _MATPLOTLIB_AVAILABLE
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(8, 4), layout="constrained") if ax is None else (ax.get_figure(), ax)
    top_k = max(mass.shape[0] for mass, _ in shares.values()) - 1
    width = 0.8 / len(shares)
    # Gaps set "beyond" and "missed" apart from the ranks, and leave room for their labels.
    gap = max(2.0, top_k / 12)
    extra = {top_k + gap: f"> {top_k}"}
    if any(missed is not None for _, missed in shares.values()):
        extra[top_k + 2 * gap] = "missed"
    places = [*range(1, top_k + 1), *extra]
    # From dark to light, so that the models differ in print too; hatches tell more than three apart.
    for i, (name, (mass, missed)) in enumerate(shares.items()):
        heights = torch.zeros(top_k + 2)
        heights[: mass.shape[0] - 1] = mass[:-1]
        heights[top_k], heights[top_k + 1] = mass[-1], missed or 0.0
        ax.bar(
            [place + (i - (len(shares) - 1) / 2) * width for place in places],
            heights[: len(places)].tolist(),
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
