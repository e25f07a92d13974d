"""All scores at once: what every other implementation has to equal, readable in a minute."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from mrr_torch.catalogue.inputs import score_type
from mrr_torch.ranks import Ranks
from mrr_torch.ranks.scores import rank_target


def rank_with_all_scores(
    queries: Tensor, items: Tensor, target: Tensor, bias: Tensor | None, exclude: Tensor | None, shape: tuple[int, ...]
) -> Ranks:
    """Rank each target among all items by ``queries @ items.T + bias``; arguments are checked."""
    dtype = score_type(queries, items)
    with _full_precision(queries.device):
        scores = queries.to(dtype) @ items.to(dtype).T
    if bias is not None:
        scores = scores + bias.to(dtype)
    if exclude is not None and exclude.shape[0] == 1:
        exclude = exclude[0]
    ranks = rank_target(scores, target, exclude=exclude)
    return Ranks(*(field.reshape(shape) for field in ranks))


def _full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Switch autocast off, which would compute products in half precision."""
    kind = device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()
