"""All scores at once: what every other implementation has to equal, readable in a minute."""

from __future__ import annotations

from torch import Tensor

from mrr_torch.ranks import Ranks, rank_target


def rank_with_all_scores(
    queries: Tensor, items: Tensor, target: Tensor, bias: Tensor | None, exclude: Tensor | None
) -> Ranks:
    """Rank each target among all items by ``queries @ items.T + bias``; arguments are checked and of one dtype."""
    scores = queries @ items.T
    if bias is not None:
        scores = scores + bias
    return rank_target(scores, target, exclude=exclude)
