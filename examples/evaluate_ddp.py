"""Evaluate on several processes and get the value of one, to the last bit.

`torchrun --nproc_per_node 2 examples/evaluate_ddp.py` prints the same table as `python examples/evaluate_ddp.py`,
though the `DistributedSampler` repeats queries so that all processes have equally many: each query has an id and
counts once.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from torchmetrics import MetricCollection

from mrr_torch import HitRate, MeanReciprocalRank, NormalizedDCG


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=997, help="a number that processes can't share evenly (997)")
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()
    several = "RANK" in os.environ  # set by torchrun
    if several:
        dist.init_process_group("gloo")

    # In earnest: the outputs of a model for the batch. Here: scores in which the target is somewhat better than others.
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(options.queries, options.items, generator=generator)
    target = torch.randint(0, options.items, (options.queries,), generator=generator)
    scores.scatter_add_(1, target[:, None], torch.full((options.queries, 1), 2.0))
    queries = TensorDataset(torch.arange(options.queries), scores, target)
    sampler = DistributedSampler(queries, shuffle=False) if several else None

    metrics = MetricCollection(
        {
            "MRR@10": MeanReciprocalRank(10, num_queries=options.queries),
            "HitRate@10": HitRate(10, num_queries=options.queries),
            "NDCG@10": NormalizedDCG(10, num_queries=options.queries),
        }
    )
    for ids, batch_scores, batch_target in DataLoader(queries, options.batch_size, sampler=sampler):
        metrics.update(batch_scores, batch_target, query_ids=ids)

    values = metrics.compute()  # on all processes, and the same on all
    line = metrics["MRR@10"].describe()
    if not several or dist.get_rank() == 0:
        for name, value in values.items():
            print(f"{name:<12}{value:.9f}")
        print(line)
    if several:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
