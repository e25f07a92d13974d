"""Lightning on one process, or on several: `torchrun --nproc_per_node 2 lightning_processes.py`.

Lightning's sampler repeats queries so that every process gets as many. Known by their ids, they count once.
"""

import os

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from mrr_torch import MeanReciprocalRank, rank_catalogue


class Model(lightning.LightningModule):
    def __init__(self, items: Tensor, num_queries: int) -> None:
        super().__init__()
        self.items = nn.Parameter(items)
        self.mrr = MeanReciprocalRank(10, num_queries=num_queries)

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        ids, queries, target = batch
        self.mrr.update(rank_catalogue(queries, self.items, target), query_ids=ids)
        self.log("mrr@10", self.mrr)


def main() -> None:
    torch.manual_seed(0)
    items, target = torch.randn(500, 16), torch.randint(500, (301,))
    queries = items[target] + torch.randn(301, 16)
    loader = DataLoader(TensorDataset(torch.arange(301), queries, target), batch_size=32)
    processes = int(os.environ.get("WORLD_SIZE", 1))
    trainer = lightning.Trainer(accelerator="cpu", devices=processes, logger=False, enable_progress_bar=False)
    [values] = trainer.validate(Model(items, len(target)), loader, verbose=False)
    if trainer.is_global_zero:
        print(f"mrr@10 {values['mrr@10']:.6f}")
    if torch.distributed.is_initialized():  # Lightning leaves it, and a process that ends with it may abort
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
