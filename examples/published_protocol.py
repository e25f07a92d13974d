"""The published "target + 99 sampled negatives" protocol, reproduced from its files.

`python examples/published_protocol.py FOLDER` reads a `*.test.negative` file of Neural Collaborative Filtering (He et
al., WWW 2017: a line per user, `(user,item)` and the ids of 99 negatives) and a GMF model saved as `*.npz` with the
arrays `user_embedding`, `item_embedding`, `output_weight` and `output_bias`, and prints HR@10, NDCG@10 and MRR@10,
beside what the same model gets on the full catalogue.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchmetrics import MetricCollection

from mrr_torch import HitRate, MeanReciprocalRank, NormalizedDCG, Ranks, rank_catalogue


def read_negatives(path: Path) -> tuple[Tensor, Tensor]:
    """Return users ``(B,)`` and candidates ``(B, 100)``, the target first."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        ids = [int(text) for text in re.findall(r"\d+", line)]
        if len(ids) != 101:
            sys.exit(f"{path}:{number}: expected a user, an item and 99 negatives, got {len(ids)} ids")
        rows.append(ids)
    table = torch.tensor(rows)
    return table[:, 0], table[:, 1:]


def one_file(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        sys.exit(f"{folder}: expected one file {pattern}, got {len(found)}")
    return found[0]


def values(ranks: Ranks | Tensor, title: str, candidates: Tensor | None = None, **protocol: int) -> None:
    metrics = MetricCollection(
        {
            "HR@10": HitRate(10, **protocol),
            "NDCG@10": NormalizedDCG(10, **protocol),
            "MRR@10": MeanReciprocalRank(10, **protocol),
        }
    )
    metrics.update(ranks, candidates=candidates)
    print(f"{title}: " + ", ".join(f"{name} {value:.6f}" for name, value in metrics.compute().items()))
    print(f"  {metrics['MRR@10'].describe()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds *.test.negative and *.npz")
    folder = parser.parse_args().folder
    users, candidates = read_negatives(one_file(folder, "*.test.negative"))
    saved = np.load(one_file(folder, "*.npz"))
    user, item, weight, bias = (
        torch.from_numpy(saved[f"{name}"])
        for name in ("user_embedding", "item_embedding", "output_weight", "output_bias")
    )
    queries = user[users] * weight.flatten()
    scores = torch.einsum("bd,bnd->bn", queries, item[candidates]) + bias
    # The ids matter: where the target stands among its own negatives it must not compete with itself.
    values(scores, "as published", candidates, num_negatives=99)
    ranks = rank_catalogue(queries, item, candidates[:, 0])
    values(ranks, "expectation over draws of 99 from all other items", num_negatives=99)
    values(ranks, "full catalogue")


if __name__ == "__main__":
    main()
