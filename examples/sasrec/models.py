# ruff: noqa: D102 (methods named by Lightning and torch mean what they mean there)
"""SASRec, GRU4Rec and popularity, all of which score an item by a dot product, and are evaluated alike.

SASRec: Kang and McAuley, Self-Attentive Sequential Recommendation, ICDM 2018.
GRU4Rec: Hidasi et al., Session-based Recommendations with Recurrent Neural Networks, ICLR 2016.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import lightning
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mrr_torch import rank_catalogue, ranking_metrics
from sasrec.data import PADDING, Batch
from sasrec.losses import next_item_loss


class Training(NamedTuple):
    """What a model is trained with; the losses are those of `next_item_loss`."""

    loss: str = "softmax"
    negatives: int = 1
    learning_rate: float = 3e-3
    weight_decay: float = 0.01


class NextItemModel(lightning.LightningModule):
    """Whatever scores an item by the dot product of its embedding with the query's."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics = ranking_metrics(10, prefix="val/")

    def queries(self, recent: Tensor) -> Tensor:
        """Return the embedding ``(B, D)`` of what comes after ``recent`` ``(B, L)``."""
        raise NotImplementedError

    def items(self) -> Tensor:
        """Return the embeddings ``(1 + num_items, D)`` of all items; row 0 is padding."""
        raise NotImplementedError

    def validation_step(self, batch: Batch, index: int) -> None:
        ranks = rank_catalogue(self.queries(batch.recent), self.items(), batch.target, exclude=batch.exclude)
        self.metrics.update(ranks)
        self.log_dict(self.metrics, prog_bar=True)


class Popularity(NextItemModel):
    """The baseline: an item's score is how often it was taken in training, for every user."""

    def __init__(self, train: list[list[int]], num_items: int) -> None:
        super().__init__()
        taken = Counter(item for items in train for item in items)
        self.register_buffer("counts", torch.tensor([[float(taken[item])] for item in range(1 + num_items)]))

    def queries(self, recent: Tensor) -> Tensor:
        return self.counts.new_ones(len(recent), 1)

    def items(self) -> Tensor:
        return self.counts


class SequenceModel(NextItemModel):
    """An encoder of sequences between item embeddings that serve as input and as output."""

    def __init__(self, num_items: int, dim: int, dropout: float, training: Training) -> None:
        super().__init__()
        self.settings = training
        self.item_embedding = nn.Embedding(1 + num_items, dim, padding_idx=PADDING)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.item_embedding.weight, std=0.02)

    def embedded(self, items: Tensor) -> Tensor:
        return self.item_embedding(items) * self.item_embedding.embedding_dim**0.5

    def queries(self, recent: Tensor) -> Tensor:
        last = (recent != PADDING).sum(1) - 1
        return self(recent)[torch.arange(len(recent), device=recent.device), last]

    def items(self) -> Tensor:
        return self.item_embedding.weight

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        loss = next_item_loss(self.settings.loss, self(batch[:, :-1]), self.items(), batch, self.settings.negatives)
        self.log("loss", loss, prog_bar=True, on_step=False, on_epoch=True, batch_size=len(batch))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        rate, decay = self.settings.learning_rate, self.settings.weight_decay
        return torch.optim.AdamW(self.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=decay, fused=True)


class Block(nn.Module):
    """Causal self-attention, then a feed-forward network, each on normalised input and added to it."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.feed_forward = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        # (B, L, 3 D) -> three of (B, heads, L, D / heads)
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(attended.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.feed_forward(self.norms[1](x)))


class SASRec(SequenceModel):
    """Item and position embeddings, and blocks of causal self-attention."""

    def __init__(
        self,
        num_items: int,
        dim: int,
        max_len: int,
        *,
        blocks: int = 2,
        heads: int = 1,
        dropout: float = 0.3,
        training: Training = Training(),  # noqa: B008 (it can't be changed)
    ) -> None:
        super().__init__(num_items, dim, dropout, training)
        self.position_embedding = nn.Embedding(max_len, dim)
        self.blocks = nn.Sequential(*(Block(dim, heads, dropout) for _ in range(blocks)))
        self.norm = nn.LayerNorm(dim)
        nn.init.normal_(self.position_embedding.weight, std=0.02)

    def forward(self, items: Tensor) -> Tensor:
        """Return, for each position of ``items`` ``(B, L)``, the embedding ``(B, L, D)`` of what comes next.

        Padding stands at the end, where causal attention does not look from a real position.
        """
        positions = torch.arange(items.shape[1], device=items.device)
        x = self.embedded(items) + self.position_embedding(positions)
        return self.norm(self.blocks(self.dropout(x)))


class GRU4Rec(SequenceModel):
    """A gated recurrent unit; what it has read so far is projected to the embedding of what comes next."""

    def __init__(
        self,
        num_items: int,
        dim: int,
        *,
        hidden: int = 100,
        dropout: float = 0.3,
        training: Training = Training(),  # noqa: B008 (it can't be changed)
    ) -> None:
        super().__init__(num_items, dim, dropout, training)
        self.recurrent, self.out = nn.GRU(dim, hidden, batch_first=True), nn.Linear(hidden, dim)

    def forward(self, items: Tensor) -> Tensor:
        """Return, for each position of ``items`` ``(B, L)``, the embedding ``(B, L, D)`` of what comes next."""
        return self.out(self.dropout(self.recurrent(self.dropout(self.embedded(items)))[0]))
