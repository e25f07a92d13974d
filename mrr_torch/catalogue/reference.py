"""All scores at once: what every other implementation has to equal, readable in a minute."""

from __future__ import annotations

import torch
from torch import Tensor

from mrr_torch.catalogue.arguments import Arguments, Counted, Embeddings, Rows, score_type
from mrr_torch.catalogue.scorers import ScoreFunction


def count_with_all_scores(given: Arguments, rows: Rows) -> Counted:
    """Count the competitors of each query's best relevant item in the matrix of all scores ``(Q, N)``."""
    scores = _all_scores(given.source)
    relevant = _mark(rows.relevant, scores)
    competes = ~relevant if rows.shared is None else ~(relevant | rows.shared)
    for ids in rows.excluded:
        competes &= ~_mark(ids, scores)
    # A NaN among the relevant items is as if it were not there; only NaN, or none at all, leaves NaN.
    scored = relevant & ~scores.isnan()
    best = torch.where(scored, scores, -torch.inf).amax(1, keepdim=True)
    best = torch.where(scored.any(1, keepdim=True), best, torch.nan)
    return Counted(
        higher=((scores > best) & competes).sum(1),
        tied=((scores == best) & competes).sum(1),
        relevant=((scores == best) & relevant).sum(1),
        competing=competes.sum(1),
    )


def _all_scores(source: Embeddings | ScoreFunction) -> Tensor:
    if isinstance(source, ScoreFunction):
        return source.slice(0)  # all items are one slice
    queries, items, bias = source
    dtype = score_type(queries, items)
    scores = queries.new_empty(queries.shape[0], items.shape[0], dtype=dtype)
    torch.mm(queries.to(dtype), items.to(dtype).T, out=scores)  # with `out`, autocast does not change it
    return scores if bias is None else scores + bias.to(dtype)


def _mark(ids: Tensor, scores: Tensor) -> Tensor:
    """Return the mask ``(Q, N)`` of ids ``(Q, K)``; an id that is no item is marked behind the items."""
    rows, items = scores.shape
    marks = torch.zeros(rows, items + 1, dtype=torch.bool, device=scores.device)
    return marks.scatter_(1, torch.where((ids >= 0) & (ids < items), ids, items), True)[:, :-1]
