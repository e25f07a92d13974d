"""RePlay: a callback beside RePlay's own, for its Lightning module; both have to give the same value.

On several processes RePlay logs the mean of their means; this metric adds up their queries.
"""

import lightning
import torch
from replay.nn.lightning import LightningModule
from replay.nn.lightning.callback import ComputeMetricsCallback
from torch import Tensor, nn
from torch.utils.data import DataLoader

from mrr_torch import MeanReciprocalRank


class Model(nn.Module):
    def __init__(self, items: Tensor) -> None:
        super().__init__()
        self.items = nn.Parameter(items)

    def forward(self, query: Tensor) -> dict[str, Tensor]:
        return {"logits": query @ self.items.T}


class Callback(lightning.Callback):
    def on_validation_start(self, trainer, module) -> None:
        self.metric = MeanReciprocalRank(10).to(module.device)

    def on_validation_batch_end(self, trainer, module, outputs, batch, index, loader=0) -> None:
        self.metric.update(outputs["logits"], batch["ground_truth"][:, 0])

    def on_validation_epoch_end(self, trainer, module) -> None:
        module.log("ours", self.metric.compute())  # on all processes: it is synchronised


def main() -> None:
    torch.manual_seed(0)
    items, target = torch.randn(500, 16), torch.randint(500, (301,))
    queries = items[target] + torch.randn(301, 16)
    data = [{"query": query, "ground_truth": label[None]} for query, label in zip(queries, target, strict=True)]
    callbacks = [ComputeMetricsCallback(["mrr"], [10], verbose=False), Callback()]
    trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, callbacks=callbacks)
    [values] = trainer.validate(LightningModule(Model(items)), DataLoader(data, batch_size=32), verbose=False)
    print(f"mrr@10 {values['ours']:.6f}")
    print(f"RePlay {values['mrr@10']:.6f}")


if __name__ == "__main__":
    main()
