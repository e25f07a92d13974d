"""A loop with Accelerate, on one process or on several: `accelerate launch --num_processes 2 accelerate_loop.py`.

A prepared loader repeats queries so that every process gets as many. Known by their ids, they count once, and no score
has to be gathered.
"""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from mrr_torch import MeanReciprocalRank, rank_catalogue


def main() -> None:
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    items, target = torch.randn(500, 16), torch.randint(500, (301,))
    queries = items[target] + torch.randn(301, 16)
    loader = accelerator.prepare(DataLoader(TensorDataset(torch.arange(301), queries, target), batch_size=32))
    metric = MeanReciprocalRank(10, num_queries=301).to(accelerator.device)
    for ids, query, label in loader:
        metric.update(rank_catalogue(query, items.to(query.device), label), query_ids=ids)
    value = metric.compute()  # on all processes: it is synchronised
    accelerator.print(f"mrr@10 {value:.6f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
