"""Hugging Face Trainer, on one process or on several: `torchrun --nproc_per_node 2 hugging_face_trainer.py`.

With `batch_eval_metrics` no score outlives its batch. The Trainer gathers each batch and drops repeated queries, so
that every process sees all queries: synchronised as well, the metric would count each of them once a process.
"""

import torch
from torch import Tensor, nn
from transformers import EvalPrediction, Trainer, TrainingArguments

from mrr_torch import MeanReciprocalRank

metric = MeanReciprocalRank(10, sync_on_compute=False)


class Model(nn.Module):
    def __init__(self, items: Tensor) -> None:
        super().__init__()
        self.items = nn.Parameter(items)

    def forward(self, query: Tensor, labels: Tensor) -> dict[str, Tensor]:
        scores = query @ self.items.T
        return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}


def compute_metrics(prediction: EvalPrediction, compute_result: bool) -> dict[str, float]:
    metric.update(prediction.predictions, prediction.label_ids)
    return {"mrr@10": metric.compute().item()} if compute_result else {}


def main() -> None:
    torch.manual_seed(0)
    items, target = torch.randn(500, 16), torch.randint(500, (301,))
    queries = items[target] + torch.randn(301, 16)
    data = [{"query": query, "labels": label} for query, label in zip(queries, target, strict=True)]
    settings = TrainingArguments(use_cpu=True, batch_eval_metrics=True, per_device_eval_batch_size=32, report_to="none")
    trainer = Trainer(Model(items), settings, eval_dataset=data, compute_metrics=compute_metrics)
    metric.reset()  # before each evaluation
    value = trainer.evaluate()["eval_mrr@10"]
    if trainer.is_world_process_zero():
        print(f"mrr@10 {value:.6f}")


if __name__ == "__main__":
    main()
