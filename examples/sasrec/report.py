"""Test ranks of several models, and the table of their values in both protocols."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from mrr_torch import Ranks, rank_catalogue, rank_target, ranking_metrics, reciprocal_rank
from sasrec.data import Batch
from sasrec.models import NextItemModel

NAMES = {"mrr@10": "MRR@10", "hit_rate@10": "HitRate@10", "ndcg@10": "NDCG@10"}
Results = dict[str, dict[str, dict[str, float]]]  # protocol, model, metric


class Tested(NamedTuple):
    """The ranks of the test targets: among the full catalogue, and among the sampled negatives."""

    full: Ranks
    sampled: Ranks


@torch.no_grad()
def tested(model: NextItemModel, batches: list[Batch], candidates: list[Tensor]) -> Tested:
    """Rank the test targets in both protocols."""
    model = model.eval().cpu()
    full, sampled = [], []
    for batch, ids in zip(batches, candidates, strict=True):
        queries, items = model.queries(batch.recent), model.items()
        full.append(rank_catalogue(queries, items, batch.target, exclude=batch.exclude))
        # The target is scored together with its negatives: no difference of rounding may set it apart from them.
        scores = torch.einsum("bd,bnd->bn", queries, items[ids])
        sampled.append(rank_target(scores, torch.zeros_like(batch.target)))
    return Tested(*(Ranks(*map(torch.cat, zip(*parts, strict=True))) for parts in (full, sampled)))


def chance(ranks: Tested) -> Tested:
    """Return the ranks of a model that gives all items the same score: the chance level."""
    return Tested(*(part._replace(higher=0 * part.higher, tied=part.num_candidates - 1) for part in ranks))


def values(ranks: Ranks, num_negatives: int | None) -> dict[str, float]:
    """Return MRR, hit rate and NDCG at 10, with their 95 % intervals."""
    collection = ranking_metrics(10, num_negatives=num_negatives, confidence=0.95)
    collection.update(ranks)
    return {name: float(value) for name, value in collection.compute().items()}


def protocols(num_negatives: int) -> dict[str, tuple[str, int | None]]:
    """Return for each protocol which ranks it takes, and how many negatives."""
    return {
        "full catalogue": ("full", None),
        f"target + {num_negatives} sampled": ("sampled", num_negatives),
        # What sampling would give on average over all draws follows from the full ranks: no sampling, no noise.
        f"target + {num_negatives} expected": ("full", num_negatives),
    }


def evaluate(models: dict[str, Tested], num_negatives: int) -> Results:
    return {
        protocol: {model: values(getattr(ranks, which), negatives) for model, ranks in models.items()}
        for protocol, (which, negatives) in protocols(num_negatives).items()
    }


def table(results: Results, models: dict[str, Tested], num_items: int, num_negatives: int) -> str:
    """Return the values of all models, and how they were computed: without that they can't be compared."""
    sampling, expectation = list(results)[1:]
    number = next(iter(models.values())).full.num_candidates
    left = number.double().mean()
    row = "{:<23}{:<12}" + 3 * "{:<25}"
    lines = [row.format("protocol", "model", *NAMES.values()).rstrip()]
    for protocol, rows in results.items():
        for model, value in rows.items():
            cells = [f"{value[n]:.4f} [{value[f'{n}_low']:.4f}, {value[f'{n}_high']:.4f}]" for n in NAMES]
            if model == "chance":  # known exactly
                cells = [f"{value[n]:.4f}" for n in NAMES]
            lines.append(row.format(protocol, model, *cells).rstrip())
    lines += [
        "",
        f"{len(number):,} queries: a query is a user, its target the user's last item. All but the last two items",
        "of these users are for training, and popularity is how often an item occurs there. Equal scores count as in",
        "random order; chance is a model that gives all items the same score. In brackets: 95 % intervals over users.",
        f"  full catalogue: the target among {num_items:,} items without the user's history ({left:,.0f} on average)",
        f"  {sampling}: the target among {num_negatives} items that are not in the user's history,",
        "    drawn once before training, uniformly and without repeats",
        f"  {expectation}: the mean of that over all draws, computed from the full ranks, without drawing",
        "Sampled values are far higher than full-catalogue ones and need not keep the order of models",
        "(Krichene and Rendle, KDD 2020): choose a model by the full catalogue.",
    ]
    return "\n".join(lines)


def paired(models: dict[str, Tested], num_negatives: int) -> str:
    """Return the differences in MRR@10 of each two models, with paired 95 % intervals."""
    from scipy.stats import ttest_rel

    row = "{:<23}{:<26}{:<28}{}"
    lines = [row.format("protocol", "models", "difference in MRR@10", "p (paired t-test)")]
    for protocol, (which, negatives) in protocols(num_negatives).items():
        of = {
            m: reciprocal_rank(getattr(r, which), top_k=10, num_negatives=negatives).double() for m, r in models.items()
        }
        for first, second in combinations(models, 2):
            test = ttest_rel(of[first], of[second])
            low, high = test.confidence_interval(0.95)
            mean = float((of[first] - of[second]).mean())
            shown = f"{mean:+.4f} [{low:+.4f}, {high:+.4f}]"
            lines.append(row.format(protocol, f"{first} - {second}", shown, f"{test.pvalue:.1g}"))
    return "\n".join(lines)
