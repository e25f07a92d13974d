"""The losses of next-item prediction: against all items, or against negatives drawn anew for each batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

LOSSES = ("softmax", "sampled-softmax", "bce", "gbce")


def next_item_loss(
    name: str, hidden: Tensor, items: Tensor, batch: Tensor, negatives: int = 1, calibration: float = 0.75
) -> Tensor:
    """Return the mean loss of all positions of a batch that are followed by an item.

    - "softmax": cross-entropy over all items;
    - "sampled-softmax": cross-entropy over the target and ``negatives`` items, drawn uniformly once for the batch;
    - "bce": binary cross-entropy with ``negatives`` items a position that are not in the sequence (Kang and McAuley,
      2018, with one);
    - "gbce": binary cross-entropy with the negatives of "sampled-softmax", in which the positive term is weighted by
      beta so that scores keep the calibration that sampling takes from them (Petrov and Macdonald, 2023).

    Args:
        name: one of `LOSSES`.
        hidden: ``(B, L - 1, D)``; for each position the embedding of what comes next.
        items: ``(1 + num_items, D)``; row 0 is padding.
        batch: ``(B, L)``; the sequences, padded with 0 at the end.
        negatives: how many to draw; "softmax" draws none.
        calibration: "gbce": 0 is plain binary cross-entropy, 1 removes the over-confidence wholly.
    """
    real = batch[:, 1:] != 0
    hidden, target = hidden[real], batch[:, 1:][real]  # (P, D), (P,)
    if name == "softmax":
        return F.cross_entropy(hidden @ items.T, target)  # the padding row is left in: it is never a target
    if name == "bce":
        return _binary(hidden, items, target, batch, real, negatives)
    drawn = torch.randint(1, len(items), (negatives,), device=batch.device)
    positive = (hidden * items[target]).sum(1)  # (P,)
    accidental = drawn == target[:, None]  # (P, K)
    negative = (hidden @ items[drawn].T).masked_fill(accidental, -torch.inf)
    if name == "sampled-softmax":
        return (torch.logsumexp(torch.cat([positive[:, None], negative], 1), 1) - positive).mean()
    rate = negatives / (len(items) - 2)  # the share of the other items that is drawn
    beta = rate * (calibration * (1 - 1 / rate) + 1 / rate)
    return (F.softplus(negative).sum(1) - beta * F.logsigmoid(positive)).mean() / (1 + negatives)


def _binary(hidden: Tensor, items: Tensor, target: Tensor, batch: Tensor, real: Tensor, negatives: int) -> Tensor:
    drawn = torch.randint(1, len(items), (len(target), negatives), device=batch.device)
    sequence = batch[real.nonzero()[:, 0]]  # (P, L)
    allowed = (drawn[:, :, None] != sequence[:, None, :]).all(2)
    positive = (hidden * items[target]).sum(1)
    negative = torch.einsum("pd,pkd->pk", hidden, items[drawn])
    return (F.softplus(-positive) + (F.softplus(negative) * allowed).sum(1) / negatives).mean()
