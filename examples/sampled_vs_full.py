"""Sampled and full-catalogue evaluation of the same models, side by side, and what not to conclude from the first.

Two pairs of models. A small SASRec, trained here on generated data, and popularity; and two that are made to be good in
different ways: one is right at the very top for a few queries and lost for the others, one puts the target rather high
for everybody. Prints both protocols and saves the rank distributions of the first pair as a PNG.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

import lightning
import torch
from interactions import generate, leave_one_out, windows
from sasrec.data import padded
from sasrec.models import NextItemModel, Popularity, SASRec
from sasrec.training import be_quiet
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import MetricCollection

from mrr_torch import HitRate, MeanReciprocalRank, RankDistribution, Ranks, rank_catalogue, sample_negatives

NEGATIVES = 99


def evaluate(name: str, ranks: Ranks, sampled: Tensor | Ranks) -> RankDistribution:
    """Print a model's values in both protocols; return its rank distribution in the full catalogue."""
    print(name)
    sampled_mode = {"num_negatives": NEGATIVES}
    for protocol, preds, mode in (
        ("full", ranks, {}),
        ("sampled", sampled, sampled_mode),
        ("expected", ranks, sampled_mode),
    ):
        metrics = MetricCollection([MeanReciprocalRank(10, **mode), HitRate(10, **mode)])
        metrics.update(preds)
        for metric in metrics.values():
            print(f"  {protocol:<9}{metric.describe()}")
    spread = RankDistribution(top_k=20)
    spread.update(ranks)
    return spread


def trained(users: int, items: int, epochs: int, seed: int) -> dict[str, RankDistribution]:
    """Train SASRec for a while and evaluate it and popularity on the users' last items."""
    data = generate(users, items, seed)
    split = leave_one_out(data)
    sasrec = SASRec(data.num_items, dim=64, max_len=50)
    popularity = Popularity(split.train, data.num_items)
    batches = DataLoader(windows(split.train, 50), 64, shuffle=True, collate_fn=padded)
    with contextlib.redirect_stdout(sys.stderr):
        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=epochs, logger=False, enable_checkpointing=False, enable_model_summary=False
        )
        trainer.fit(sasrec, batches)
    history = padded([[0, *query.history] for query in split.test])  # item 0 is padding, and no item
    recent = padded([query.history[-50:] for query in split.test])
    target = torch.tensor([query.target for query in split.test])
    generator = torch.Generator().manual_seed(seed)
    candidates = sample_negatives(target, 1 + data.num_items, NEGATIVES, exclude=history, generator=generator)
    models: dict[str, NextItemModel] = {"SASRec": sasrec.eval(), "popularity": popularity.eval()}
    spread = {}
    for name, model in models.items():
        with torch.no_grad():
            queries, table = model.queries(recent), model.items()
            ranks = rank_catalogue(queries, table, target, exclude=history)
            spread[name] = evaluate(name, ranks, torch.einsum("bd,bnd->bn", queries, table[candidates]))
    return spread


def made(queries: int, items: int, seed: int) -> None:
    """Evaluate two made models, of which the sampled protocol prefers the one that is worse at the top."""
    generator = torch.Generator().manual_seed(seed)

    def places(low: int, high: int) -> Tensor:
        return torch.randint(low, high, (queries,), generator=generator)

    lucky = torch.rand(queries, generator=generator) < 0.12
    models = {"sharp for a few": torch.where(lucky, places(0, 5), places(0, items)), "rather high": places(20, 200)}
    for name, higher in models.items():
        one, size = torch.ones_like(higher), torch.full_like(higher, items)
        # Which items are above the target does not matter: the first `higher` of them, the target the last.
        drawn = sample_negatives(torch.full_like(higher, items - 1), items, NEGATIVES, generator=generator)[:, 1:]
        sampled = Ranks((drawn < higher[:, None]).sum(1), 0 * one, one, torch.full_like(one, 1 + NEGATIVES))
        evaluate(name, Ranks(higher, 0 * one, one, size), sampled)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, default=Path("rank_distribution.png"), help="where to save the plot")
    options = parser.parse_args()
    be_quiet()
    torch.set_num_threads(1)  # tensors this small gain little from more
    lightning.seed_everything(options.seed)
    spread = trained(options.users, options.items, options.epochs, options.seed)
    made(5000, 4000, options.seed)
    print("Sampled values are far higher, and for the last two models they turn the order round: nearly all of the 99")
    print("items that a target meets are no rivals of it. Do not compare them with full-catalogue values, nor with")
    print("values of another number of negatives, and do not choose a model by them.")
    figure, _ = spread["SASRec"].plot(spread)
    figure.savefig(options.plot, dpi=150)
    print(f"{options.plot}: the ranks in the full catalogue")


if __name__ == "__main__":
    main()
