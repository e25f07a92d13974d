"""Several processes give the value of one: gloo, with unequal batches and processes that see nothing."""

import itertools
import warnings

import pytest
import torch
import torch.distributed as dist
from torchmetrics import MetricCollection

from mrr_torch import HitRate, MeanReciprocalRank, NormalizedDCG

pytestmark = pytest.mark.distributed

QUERIES, COLUMNS = 60, 40


def queries(tied):
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(QUERIES, COLUMNS, generator=generator, dtype=torch.float64)
    if tied:
        scores = (scores * 8).round()
    return scores, torch.randint(0, COLUMNS, (QUERIES,), generator=generator)


def split(world, uneven):
    """Batches per process: contiguous parts, the last process without any if ``uneven``."""
    ends = torch.linspace(0, QUERIES, (world - 1 if uneven else world) + 1).long().tolist()
    parts = [list(range(a, b)) for a, b in itertools.pairwise(ends)]
    # Unequal numbers of batches, of unequal sizes.
    batches = [[part[: 3 + 2 * i], part[3 + 2 * i :]] if i else [part] for i, part in enumerate(parts)]
    return [*batches, []] if uneven else batches


def evaluate(world, uneven, tied):
    """In each process: the values before, synchronised, and when updated once more."""
    torch.set_default_dtype(torch.float64)
    scores, target = queries(tied)
    mine = split(world, uneven)[dist.get_rank()]
    cuts = [1, 10, None]
    metric = MeanReciprocalRank(cuts)
    collection = MetricCollection({"mrr": MeanReciprocalRank(10), "hit": HitRate(10), "ndcg": NormalizedDCG(10)})
    local = MeanReciprocalRank(cuts, sync_on_compute=False)
    stepwise = MeanReciprocalRank(cuts, dist_sync_on_step=True)
    on_step = []
    for batch in mine:
        for each in (metric, collection, local):
            each.update(scores[batch], target[batch])
    for batch in split(world, False)[dist.get_rank()][:1]:  # a step is taken by all processes or by none
        on_step.append(stepwise(scores[batch], target[batch]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a process without queries is warned that it has seen none
        first = metric.compute(), collection.compute()
        again = metric.compute()
        metric.update(scores[:1], target[:1])
        return {
            "first": first,
            "again": again,
            "more": metric.compute(),
            "local": local.compute(),
            "on_step": on_step[0],
            "state": metric.metric_state,
        }


@pytest.mark.parametrize("tied", [False, True], ids=["no ties", "ties"])
@pytest.mark.parametrize(("world", "uneven"), [(2, False), (3, True)], ids=["2", "3, one empty"])
def test_processes_together_give_the_value_of_one(world, uneven, tied, run_processes, float64):
    results = run_processes(world, evaluate, world, uneven, tied)
    scores, target = queries(tied)

    def alone(make, *batches):
        metric = make()
        for batch in batches:
            metric.update(scores[batch], target[batch])
        return metric.compute()

    def close(left, right):
        # Whole numbers add up exactly in any order; masses of tied queries in float64.
        tolerance = 1e-15 if tied else 0
        return all(abs(left[key] - right[key]) <= tolerance for key in right) and left.keys() == right.keys()

    everything = list(range(QUERIES))
    for rank, result in enumerate(results):
        whole = alone(lambda: MeanReciprocalRank([1, 10, None]), everything)
        assert close(result["first"][0], whole)
        assert close(result["again"], whole)
        assert close(result["more"], alone(lambda: MeanReciprocalRank([1, 10, None]), everything, *[[0]] * world))
        assert close(
            result["first"][1],
            MetricCollection({"mrr": MeanReciprocalRank(10), "hit": HitRate(10), "ndcg": NormalizedDCG(10)})(
                scores, target
            ),
        )
        mine = split(world, uneven)[rank]
        if mine:
            assert close(result["local"], alone(lambda: MeanReciprocalRank([1, 10, None]), *mine))
        steps = [parts[0] for parts in split(world, False)]
        assert close(result["on_step"], alone(lambda: MeanReciprocalRank([1, 10, None]), *steps))
    # Synchronising leaves each process with its own queries only.
    metric = MeanReciprocalRank([1, 10, None])
    for batch in (everything, *[[0]] * world):
        metric.update(scores[batch], target[batch])
    name = metric.settings.state_name
    together = sum(result["state"][name] for result in results)
    assert torch.allclose(together, metric.metric_state[name], rtol=0, atol=1e-12 if tied else 0)
