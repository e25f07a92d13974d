# ruff: noqa: D102 (methods named by Lightning and torch mean what they mean there)
"""Train SASRec, a transformer that predicts a user's next item, and evaluate it against popularity.

`python examples/train_sasrec.py` runs on generated data; `--data FILE` reads MovieLens `u.data` or `ratings.dat`, a
RecBole `.inter` file, or `user item` lines in order of time. Evaluation is leave-one-out, in two ways: the held-out
item ranked among the full catalogue, and among sampled negatives.

SASRec: Kang and McAuley, Self-Attentive Sequential Recommendation, ICDM 2018.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import lightning
import torch
from interactions import DataError, Query, Split, generate, leave_one_out, read, windows
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, TQDMProgressBar
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchmetrics import MetricCollection

from mrr_torch import HitRate, MeanReciprocalRank, NormalizedDCG, Ranks, rank_catalogue, sample_negatives

PADDING = 0
BLOCKS = 2
HEADS = 2


class Batch(NamedTuple):
    """Queries as tensors.

    Attributes:
        exclude: ``(B, H)``; what is not to be recommended.
        recent: ``(B, L)``; the last items, as many as the model takes, padded at the end.
        candidates: ``(B, 1 + num_negatives)``; the target first.
    """

    exclude: Tensor
    recent: Tensor
    candidates: Tensor


def padded(sequences: list[list[int]]) -> Tensor:
    return nn.utils.rnn.pad_sequence([torch.tensor(items) for items in sequences], True, PADDING)


def batches(
    queries: list[Query], num_items: int, options: argparse.Namespace, generator: torch.Generator
) -> DataLoader:
    """Return queries as batches. Negatives are drawn here, once: all epochs and all models have to get the same."""
    parts = []
    for start in range(0, len(queries), 256):
        part = queries[start : start + 256]
        target = torch.tensor([query.target for query in part])
        # What a user had before is not recommended again. Padding is excluded too, as it is no item.
        exclude = padded([[PADDING, *query.history] for query in part])
        recent = padded([query.history[-options.max_len :] for query in part])
        try:
            candidates = sample_negatives(
                target, 1 + num_items, options.num_negatives, exclude=exclude, generator=generator
            )
        except ValueError as error:  # a user has seen too many of the items
            raise DataError(str(error)) from error
        parts.append(Batch(exclude, recent, candidates))
    return DataLoader(parts, batch_size=None)


def metrics(prefix: str, num_negatives: int | None = None) -> MetricCollection:
    """Return the metrics of the full catalogue, or of sampled evaluation; each batch is ranked once for all three."""
    return MetricCollection(
        {
            "mrr@10": MeanReciprocalRank(top_k=10, num_negatives=num_negatives),
            "hit_rate@10": HitRate(top_k=10, num_negatives=num_negatives),
            "ndcg@10": NormalizedDCG(top_k=10, num_negatives=num_negatives),
        },
        prefix=prefix,
    )


class NextItemModel(lightning.LightningModule):
    """Whatever scores an item by the dot product of its embedding with the query's; all are evaluated alike."""

    def __init__(self, num_negatives: int) -> None:
        super().__init__()
        self.val_full, self.val_sampled = metrics("val/"), metrics("val/sampled/", num_negatives)
        self.test_full, self.test_sampled = metrics("test/"), metrics("test/sampled/", num_negatives)
        self.test_expected = metrics("test/expected/", num_negatives)

    def queries(self, recent: Tensor) -> Tensor:
        """Return the embedding ``(B, D)`` of what comes after ``recent`` ``(B, L)``."""
        raise NotImplementedError

    def items(self) -> Tensor:
        """Return the embeddings ``(1 + num_items, D)`` of all items; row 0 is padding."""
        raise NotImplementedError

    def validation_step(self, batch: Batch, index: int) -> None:
        self.evaluate(batch, self.val_full, self.val_sampled)

    def test_step(self, batch: Batch, index: int) -> None:
        # What sampling would give on average over all draws follows from the full ranks: no sampling, no noise.
        self.test_expected.update(self.evaluate(batch, self.test_full, self.test_sampled))
        self.log_dict(self.test_expected)

    def evaluate(self, batch: Batch, full: MetricCollection, sampled: MetricCollection) -> Ranks:
        queries, items, target = self.queries(batch.recent), self.items(), batch.candidates[:, 0]
        ranks = rank_catalogue(queries, items, target, exclude=batch.exclude)
        full.update(ranks)
        # The target is scored together with its negatives: no difference of rounding may set it apart from them.
        sampled.update(torch.einsum("bd,bnd->bn", queries, items[batch.candidates]))
        self.log_dict(full, prog_bar=True)
        self.log_dict(sampled)
        self.log(f"{full.prefix}candidates", ranks.candidates.float().mean(), batch_size=len(target))
        return ranks


class Popularity(NextItemModel):
    """The baseline: an item's score is how often it was taken in training, for every user."""

    def __init__(self, train: list[list[int]], num_items: int, num_negatives: int) -> None:
        super().__init__(num_negatives)
        taken = Counter(item for items in train for item in items)
        self.register_buffer("counts", torch.tensor([[float(taken[item])] for item in range(1 + num_items)]))

    def queries(self, recent: Tensor) -> Tensor:
        return self.counts.new_ones(len(recent), 1)

    def items(self) -> Tensor:
        return self.counts


class Block(nn.Module):
    """Causal self-attention, then a feed-forward network, each on normalised input and added to it."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.feed_forward = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        # (B, L, 3 D) -> three of (B, heads, L, D / heads)
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(attended.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.feed_forward(self.norms[1](x)))


class SASRec(NextItemModel):
    """Item and position embeddings, blocks of causal self-attention, and the item embeddings again as output."""

    def __init__(self, num_items: int, num_negatives: int, dim: int, max_len: int, dropout: float = 0.3) -> None:
        super().__init__(num_negatives)
        self.item_embedding = nn.Embedding(1 + num_items, dim, padding_idx=PADDING)
        self.position_embedding = nn.Embedding(max_len, dim)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(dim, dropout) for _ in range(BLOCKS)))
        self.norm = nn.LayerNorm(dim)
        for embedding in (self.item_embedding, self.position_embedding):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, items: Tensor) -> Tensor:
        """Return, for each position of ``items`` ``(B, L)``, the embedding ``(B, L, D)`` of what comes next.

        Padding stands at the end, where causal attention does not look from a real position.
        """
        positions = torch.arange(items.shape[1], device=items.device)
        x = self.item_embedding(items) * self.item_embedding.embedding_dim**0.5
        return self.norm(self.blocks(self.dropout(x + self.position_embedding(positions))))

    def queries(self, recent: Tensor) -> Tensor:
        last = (recent != PADDING).sum(1) - 1
        return self(recent)[torch.arange(len(recent), device=recent.device), last]

    def items(self) -> Tensor:
        return self.item_embedding.weight

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        inputs, targets = batch[:, :-1], batch[:, 1:]
        real = targets != PADDING
        # Against the full catalogue, as it is evaluated. Column 0 is left in: it is never a target.
        loss = F.cross_entropy(self(inputs)[real] @ self.items().T, targets[real])
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=0.01)


def run(split: Split, num_items: int, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Train SASRec until validation stops improving; return the test values of its best weights, and popularity's."""
    generator = torch.Generator().manual_seed(options.seed)
    validation, test = (batches(queries, num_items, options, generator) for queries in (split.validation, split.test))
    train = DataLoader(windows(split.train, options.max_len), options.batch_size, shuffle=True, collate_fn=padded)
    sasrec = SASRec(num_items, options.num_negatives, options.dim, options.max_len)
    popularity = Popularity(split.train, num_items, options.num_negatives)
    # The progress bar is sent to stderr, so that a redirected stdout holds the table alone.
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        trainer = lightning.Trainer(
            accelerator="auto",
            devices=1,
            max_epochs=options.epochs,
            callbacks=[
                EarlyStopping("val/mrr@10", mode="max", patience=options.patience),
                ModelCheckpoint(folder, monitor="val/mrr@10", mode="max", save_weights_only=True),
                TQDMProgressBar(refresh_rate=10),
            ],
            logger=False,
            num_sanity_val_steps=0,
            enable_model_summary=False,
        )
        trainer.fit(sasrec, train, validation)
        return {
            "SASRec": trainer.test(sasrec, test, ckpt_path="best", verbose=False)[0],
            "popularity": trainer.test(popularity, test, verbose=False)[0],
        }


def table(results: dict[str, dict[str, float]], num_items: int, num_queries: int, num_negatives: int) -> str:
    """Return the test values of all models, and how they were computed: without that they can't be compared."""
    sampling, expectation = f"target + {num_negatives} sampled", f"target + {num_negatives} expected"
    row = "{:<22}{:<12}{:>8}{:>12}{:>9}{:>10}{:>12}"
    lines = [row.format("protocol", "model", "MRR@10", "HitRate@10", "NDCG@10", "queries", "candidates")]
    protocols = {"full catalogue": "test/", sampling: "test/sampled/", expectation: "test/expected/"}
    for protocol, prefix in protocols.items():
        for model, values in results.items():
            shown = (f"{values[f'{prefix}{name}@10']:.4f}" for name in ("mrr", "hit_rate", "ndcg"))
            candidates = values["test/candidates"] if prefix == "test/" else 1 + num_negatives
            lines.append(row.format(protocol, model, *shown, f"{num_queries:,}", f"{candidates:,.0f}"))
    return "\n".join(
        [
            *lines,
            "",
            "A query is a user, its target the user's last item. All but the last two items of these users are for",
            "training, and popularity is how often an item occurs there. Equal scores count as in random order.",
            f"  full catalogue: the target among all {num_items:,} items but the user's history (mean number left)",
            f"  {sampling}: the target among {num_negatives} items that are not in the user's history,",
            "    drawn once before training, uniformly and without repeats",
            f"  {expectation}: the mean of that over all draws, computed from the full ranks, without drawing",
            "Sampled values are far higher than full-catalogue ones and need not keep the order of models",
            "(Krichene and Rendle, KDD 2020): choose a model by the full catalogue.",
        ]
    )


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="FILE", help="interactions to read; generated if left out")
    for name, default, what in (
        ("users", 2000, "users to generate"),
        ("items", 1000, "items to generate"),
        ("epochs", 30, "at most so many epochs"),
        ("patience", 5, "stop after so many epochs without a better validation MRR@10"),
        ("dim", 64, "size of the embeddings, an even number"),
        ("batch-size", 64, "sequences in a training batch"),
        ("max-len", 50, "last items of a history that SASRec looks at"),
        ("num-negatives", 99, "negatives of each query in sampled evaluation"),
        ("threads", 1, "CPU threads; tensors this small gain little from more"),
    ):
        parser.add_argument(f"--{name}", type=positive, default=default, metavar="N", help=f"{what} ({default})")
    parser.add_argument("--seed", type=int, default=0, help="of the data, the negatives and the training (0)")
    options = parser.parse_args()
    if options.dim % HEADS:
        parser.error(f"argument --dim: expected a multiple of {HEADS}, got {options.dim}")
    return options


def be_quiet() -> None:
    """Keep Lightning from telling what a reader of the table does not need."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)  # hints on hardware and on products
    warnings.filterwarnings("ignore", module=r"lightning\.")  # its use of deprecated parts of torch
    warnings.filterwarnings("ignore", message=".*does not have many workers")  # the data is in memory


def main() -> None:
    options = parse()
    be_quiet()
    torch.set_num_threads(options.threads)
    lightning.seed_everything(options.seed)
    try:
        data = read(options.data) if options.data else generate(options.users, options.items, options.seed)
        split = leave_one_out(data)
        print(data.describe(), flush=True)
        results = run(split, data.num_items, options)
    except DataError as error:
        sys.exit(f"{Path(__file__).name}: {error}")
    print(table(results, data.num_items, len(split.test), options.num_negatives))


if __name__ == "__main__":
    main()
