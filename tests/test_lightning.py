"""In Lightning: `self.log` with metrics and collections, two processes with the padded sampler, low precision."""

import os
import warnings
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection

from mrr_torch import HitRate, MeanReciprocalRank, NormalizedDCG

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports use what torch has deprecated
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment
    from lightning.pytorch.strategies import DDPStrategy

QUERIES, COLUMNS = 45, 30

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's hints on workers, samplers and processes


def data():
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(QUERIES, COLUMNS, generator=generator)
    return scores, torch.randint(0, COLUMNS, (QUERIES,), generator=generator)


class Evaluated(lightning.LightningModule):
    """Scores that come with the data, so that the values are known."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.once = MeanReciprocalRank(10, num_queries=QUERIES)
        self.plain = MeanReciprocalRank(10)
        self.several = MetricCollection({"hit": HitRate(10), "ndcg": NormalizedDCG(10)}, prefix="all/")

    def test_step(self, batch, index):
        ids, scores, target = batch
        self.once.update(scores, target, query_ids=ids)
        self.plain.update(scores, target)
        self.several.update(scores, target)
        self.log("once", self.once)
        self.log("plain", self.plain)
        self.log_dict(self.several)


def evaluate(**options):
    scores, target = data()
    loader = DataLoader(TensorDataset(torch.arange(QUERIES), scores, target), batch_size=8)
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **options,
    )
    return trainer.test(Evaluated(), loader, verbose=False)[0]


def expected():
    scores, target = data()
    return {
        "once": MeanReciprocalRank(10)(scores, target),
        "all/hit": HitRate(10)(scores, target),
        "all/ndcg": NormalizedDCG(10)(scores, target),
    }


@pytest.mark.parametrize("precision", ["32-true", "bf16-true", "16-true", "64-true"])
def test_logged_values_are_those_of_all_queries_at_any_precision(precision):
    if precision != "32-true":
        # Batches are cast on their way, so scores tie that did not; what is asked here is that the counts survive.
        values = evaluate(devices=1, precision=precision)
        dtype = {"bf16-true": torch.bfloat16, "16-true": torch.float16, "64-true": torch.float64}[precision]
        scores, target = data()
        reference = float(MeanReciprocalRank(10)(scores.to(dtype), target))
        # Lightning's default dtype is then that of the precision, and with it that of the logged value.
        assert values["once"] == pytest.approx(reference, rel=2 * torch.finfo(dtype).eps + 1e-7)
        return
    values = evaluate(devices=1)
    for name, value in expected().items():
        assert values[name] == pytest.approx(float(value), abs=1e-7)  # float32
    assert values["plain"] == values["once"]


def evaluate_here():
    """Evaluate as one of the processes that `torchrun` would have started."""
    warnings.simplefilter("ignore")
    rank, world = dist.get_rank(), dist.get_world_size()
    environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    with mock.patch.dict(os.environ, {name: str(value) for name, value in environment.items()}):
        strategy = DDPStrategy(cluster_environment=TorchElasticEnvironment(), process_group_backend="gloo")
        return evaluate(devices=world, strategy=strategy)


@pytest.mark.distributed
def test_two_processes_with_the_padded_sampler_give_the_value_of_one(run_processes):
    for values in run_processes(2, evaluate_here):
        # 45 queries on 2 processes: the sampler repeats one.
        assert values["once"] == float(expected()["once"])
        assert values["plain"] == pytest.approx(values["once"], abs=1 / QUERIES)  # that one counts twice
        assert values["plain"] != values["once"]
