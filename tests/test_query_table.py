"""Queries of a fixed set count once, however often and wherever they are seen."""

import io
import multiprocessing
import os
import random
import signal
import warnings

import pytest
import torch
import torch.distributed as dist
from accelerator import DEVICE
from torchmetrics import MetricCollection

from mrr_torch import (
    HitRate,
    MeanReciprocalRank,
    NormalizedDCG,
    RankDistribution,
    Ranks,
    rank_retrieved,
    reciprocal_rank,
)

QUERIES, COLUMNS = 40, 25


def queries(tied=False):
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(QUERIES, COLUMNS, generator=generator, dtype=torch.float64)
    return (scores * 6).round() if tied else scores, torch.randint(0, COLUMNS, (QUERIES,), generator=generator)


def enter(metric, ids, tied=False):
    scores, target = queries(tied)
    ids = torch.as_tensor(ids, dtype=torch.long)
    metric.update(scores[ids], target[ids], query_ids=ids)


def state(metric):
    return next(iter(metric.metric_state.values()))


@pytest.mark.parametrize("tied", [False, True], ids=["no ties", "ties"])
def test_repeats_and_order_change_nothing(tied, float64):
    scores, target = queries(tied)
    plain = MeanReciprocalRank([3, None])
    plain.update(scores, target)
    once = MeanReciprocalRank([3, None], num_queries=QUERIES)
    enter(once, range(QUERIES), tied)
    again = MeanReciprocalRank([3, None], num_queries=QUERIES)
    for ids in ([7, 7, 3], range(20, 40), [3, 0, 39], range(25)):
        enter(again, ids, tied)
    assert torch.equal(state(again), state(once))
    for name, value in once.compute().items():
        assert value == again.compute()[name]
        assert float(value) == pytest.approx(float(plain.compute()[name]), abs=1e-15)  # sums of float64


def test_it_adds_nothing_to_metrics_without(float64):
    assert not any("queries" in name for name in MeanReciprocalRank().metric_state)


def test_missing_queries_are_told_and_do_not_count(float64):
    metric = MeanReciprocalRank(num_queries=QUERIES)
    enter(metric, [4, 9])
    scores, target = queries()
    with pytest.warns(UserWarning, match="Only 2 of 40 queries have been seen"):
        assert metric.compute() == reciprocal_rank(scores[[4, 9]], target[[4, 9]]).mean()


def test_a_query_seen_with_different_ranks_counts_the_worse_one_and_is_told():
    metric = MeanReciprocalRank(num_queries=2)
    first, second = torch.tensor([[3.0, 2.0, 1.0]] * 2), torch.tensor([[3.0, 5.0, 4.0]] * 2)
    for scores in (first, second, first):
        metric.update(scores[:1], torch.tensor([0]), query_ids=torch.tensor([0]))
        metric.update(first[:1], torch.tensor([1]), query_ids=torch.tensor([1]))
        metric._computed = None
    with pytest.warns(UserWarning, match="1 query was seen with different ranks; the worse ones count"):
        assert metric.compute() == torch.tensor((1 / 3 + 1 / 2) / 2)
    # In one batch too, in any order.
    for scores in (torch.stack([first[0], second[0]]), torch.stack([second[0], first[0]])):
        metric = MeanReciprocalRank(num_queries=1)
        metric.update(scores, torch.tensor([0, 0]), query_ids=torch.tensor([0, 0]))
        with pytest.warns(UserWarning, match="different ranks"):
            assert metric.compute() == torch.tensor(1 / 3)


@pytest.mark.filterwarnings("ignore:The score of the relevant item was NaN")
@pytest.mark.parametrize("turn", [False, True], ids=["worse last", "worse first"])
@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ((torch.tensor([[5.0, 1, 2]]), torch.tensor([0])), (torch.tensor([[torch.nan, 1, 2]]), torch.tensor([0]))),
        ((rank_retrieved([["a"]], ["a"]),), (rank_retrieved([["a"]], ["b"]),)),
        ((torch.tensor([[5.0, 1, 2]]), torch.tensor([[1, 0, 0]])), (torch.ones(1, 3), torch.tensor([[0, 0, 0]]))),
        ((torch.ones(1, 4), torch.tensor([[1, 1, 0, 0]])), (torch.ones(1, 4), torch.tensor([[1, 0, 0, 0]]))),
    ],
    ids=["NaN", "missed", "nothing relevant", "fewer relevant"],
)
def test_the_worse_sight_of_a_query_counts_in_any_order(better, worse, turn, float64):
    metric, alone = MeanReciprocalRank(num_queries=1), MeanReciprocalRank()
    for sight in (worse, better) if turn else (better, worse):
        metric.update(*sight, query_ids=torch.tensor([0]))
    alone.update(*worse)
    with pytest.warns(UserWarning, match="different ranks"):
        value = metric.compute()
    # Without the order of sights: never better than the worse one.
    assert value == alone.compute()


def test_fewer_candidates_above_the_same_are_worse():
    metric = MeanReciprocalRank(num_queries=1, num_negatives=2)
    for candidates in (4, 10):
        ranks = Ranks(*torch.tensor([[2], [0], [1], [candidates]]))
        metric.update(ranks, query_ids=torch.tensor([0]))
    alone = MeanReciprocalRank(num_negatives=2)
    alone.update(Ranks(*torch.tensor([[2], [0], [1], [4]])))
    with pytest.warns(UserWarning, match="different ranks"):
        assert metric.compute() == alone.compute()


def test_inference_mode_may_come_and_go():
    with torch.inference_mode():
        metric = MeanReciprocalRank(num_queries=QUERIES)
        enter(metric, range(5))
        metric.reset()
    enter(metric, range(20))
    with torch.inference_mode():
        enter(metric, range(20, QUERIES))
    scores, target = queries()
    assert torch.equal(metric.compute(), MeanReciprocalRank()(scores, target))


def test_reciprocal_ranks_by_id_are_there_for_paired_tests(float64):
    scores, target = queries(tied=True)
    metric = MeanReciprocalRank([2, None], num_queries=QUERIES + 1, ignore_index=-100)
    enter(metric, [5, 2, 30], tied=True)
    metric.update(scores[:1], torch.tensor([-100]), query_ids=torch.tensor([40]))  # skipped, so not seen
    with pytest.warns(UserWarning, match="Only 3 of 41"):
        values = metric.per_query()
    for k, name in ((2, "mrr@2"), (None, "mrr")):
        expected = torch.full((QUERIES + 1,), torch.nan)
        expected[[5, 2, 30]] = reciprocal_rank(scores[[5, 2, 30]], target[[5, 2, 30]], k)
        assert torch.allclose(values[name], expected, rtol=0, atol=0, equal_nan=True)
    with pytest.raises(ValueError, match="num_queries: expected the number of queries, for per_query, got None"):
        MeanReciprocalRank().per_query()


def test_forward_gives_the_batch_without_a_word_on_the_rest(float64):
    scores, target = queries()
    metric = MeanReciprocalRank(num_queries=QUERIES)
    for ids in torch.arange(QUERIES).split(15):
        assert metric(scores[ids], target[ids], query_ids=ids) == reciprocal_rank(scores[ids], target[ids]).mean()
    assert float(metric.compute()) == pytest.approx(float(reciprocal_rank(scores, target).mean()), abs=1e-15)


def test_the_other_metrics_share_the_table():
    collection = MetricCollection(
        [m(3, num_queries=QUERIES) for m in (MeanReciprocalRank, HitRate, NormalizedDCG, RankDistribution)]
    )
    scores, target = queries()
    plain = MetricCollection([m(3) for m in (MeanReciprocalRank, HitRate, NormalizedDCG, RankDistribution)])
    plain.update(scores, target)
    for ids in (range(30), range(10, 40)):
        ids = torch.tensor(ids)
        collection.update(scores[ids], target[ids], query_ids=ids)
    assert len(collection.compute_groups) == 1
    for name, value in plain.compute().items():
        assert torch.equal(collection.compute()[name], value)
    assert collection["MeanReciprocalRank"].describe() == plain["MeanReciprocalRank"].describe()


def test_an_evaluation_goes_on_from_a_checkpoint():
    whole = MeanReciprocalRank(num_queries=QUERIES)
    enter(whole, range(QUERIES))
    killed = MeanReciprocalRank(num_queries=QUERIES)
    killed.persistent(True)
    enter(killed, range(17))
    saved = io.BytesIO()
    torch.save(killed.state_dict(), saved)
    saved.seek(0)
    checkpoint = torch.load(saved)
    given = {name: value.clone() for name, value in checkpoint.items()}
    resumed = MeanReciprocalRank(num_queries=QUERIES)
    resumed.load_state_dict(checkpoint)
    enter(resumed, range(10, QUERIES))  # rerun from somewhere before
    assert torch.equal(resumed.compute(), whole.compute())
    assert all(torch.equal(given[name], saved) for name, saved in checkpoint.items())


def evaluate_until_killed(path):
    metric = MeanReciprocalRank(num_queries=QUERIES)
    metric.persistent(True)
    for number, ids in enumerate(torch.arange(QUERIES).split(7)):
        enter(metric, ids)
        torch.save(metric.state_dict(), path / "part")
        (path / "part").rename(path / "checkpoint")
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.distributed
def test_a_run_that_was_killed_and_resumed_gives_the_value_of_one_that_was_not(tmp_path):
    process = multiprocessing.get_context("spawn").Process(target=evaluate_until_killed, args=(tmp_path,))
    process.start()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL
    resumed = MeanReciprocalRank(num_queries=QUERIES)
    resumed.load_state_dict(torch.load(tmp_path / "checkpoint"))
    with pytest.warns(UserWarning, match="Only 21 of 40"):
        resumed.compute()
    for ids in torch.arange(QUERIES).split(7)[2:]:  # nobody knows how far it came
        enter(resumed, ids)
    whole = MeanReciprocalRank(num_queries=QUERIES)
    enter(whole, range(QUERIES))
    assert torch.equal(resumed.compute(), whole.compute())


def evaluate_in_groups():
    """Two groups of processes, each with metrics of its own."""
    groups = [dist.new_group([0, 1]), dist.new_group([2])]
    rank = dist.get_rank()
    mine = groups[rank // 2]
    scores, target = queries()
    plain = MeanReciprocalRank(process_group=mine)
    plain.update(scores[rank::3], target[rank::3])
    table = MeanReciprocalRank(process_group=mine, num_queries=QUERIES)
    enter(table, range(rank, QUERIES, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no group has seen all queries
        return plain.compute(), table.compute()


@pytest.mark.distributed
def test_groups_of_processes_have_values_of_their_own(run_processes):
    scores, target = queries()
    parts = [[i for i in range(QUERIES) if i % 3 < 2], list(range(2, QUERIES, 3))]
    for rank, values in enumerate(run_processes(3, evaluate_in_groups)):
        ids = parts[rank // 2]
        expected = MeanReciprocalRank()(scores[ids], target[ids])
        assert all(torch.equal(value, expected) for value in values)


def test_no_update_waits_for_the_device():
    metric = MeanReciprocalRank(num_queries=10).to("meta")
    scores = torch.rand(3, 5, device="meta")
    metric.update(scores, torch.zeros(3, dtype=torch.long, device="meta"), query_ids=torch.arange(3, device="meta"))
    assert metric.update_count == 1


def test_what_could_not_be_seen_is_raised_by_compute(accelerator):
    put = accelerator.put
    scores, ids = put(torch.rand(2, 3)), put(torch.tensor([0, 1]))

    def on_device():
        with accelerator.allowed():
            return MeanReciprocalRank(num_queries=2).to(DEVICE)

    metric = on_device()
    metric.update(scores, put(torch.tensor([0, 3])), query_ids=ids)
    metric.update(scores, put(torch.tensor([0, 1])), query_ids=ids)  # does not make it good
    with (
        accelerator.allowed(),
        pytest.warns(UserWarning, match="different"),
        pytest.raises(ValueError, match="target: expected ids"),
    ):
        metric.compute()
    metric = on_device()
    metric.update(scores, put(torch.tensor([0, 1])), query_ids=put(torch.tensor([0, 7])))
    with (
        accelerator.allowed(),
        pytest.warns(UserWarning, match="Only 1 of 2"),
        pytest.raises(ValueError, match="query_ids: expected ids"),
    ):
        metric.compute()


def evaluate_splits(seeds, tied):
    """Many evaluations, each with its own split over some of the processes, with repeats and empty processes."""
    torch.set_default_dtype(torch.float64)
    results = []
    for seed in seeds:
        rng = random.Random(seed)
        world = rng.randint(1, dist.get_world_size())
        ids = list(range(QUERIES)) + [rng.randrange(QUERIES) for _ in range(rng.randint(0, 30))]  # padding repeats
        rng.shuffle(ids)
        owners = [rng.randrange(world) if rng.random() < 0.9 else 0 for _ in ids]
        mine = [i for i, owner in zip(ids, owners, strict=True) if owner == dist.get_rank()]
        metric = MeanReciprocalRank([5, None], num_queries=QUERIES)
        while mine:
            size = rng.randint(1, 12)
            enter(metric, mine[:size], tied)
            mine = mine[size:]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a process that saw none is told so
            results.append((metric.compute(), metric.per_query()["mrr"]))
    return results


class Gathered:
    """Count what the synchronisation of a metric moves."""

    def __init__(self):
        self.calls, self.bytes = 0, 0

    def __call__(self, tensor, group=None):
        from torchmetrics.utilities.distributed import gather_all_tensors

        self.calls += 1
        self.bytes += tensor.numel() * tensor.element_size()
        return gather_all_tensors(tensor, group)


def sync_costs():
    costs = {}
    for name, settings in (("plain", {}), ("by query", {"num_queries": 1000})):
        gathered = Gathered()
        metric = MeanReciprocalRank(10, dist_sync_fn=gathered, **settings)
        ids = torch.arange(5)
        metric.update(torch.rand(5, 9), ids, **({"query_ids": ids} if settings else {}))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            metric.compute()
        costs[name] = gathered.calls, gathered.bytes
    return costs


@pytest.mark.distributed
@pytest.mark.parametrize("tied", [False, True], ids=["no ties", "ties"])
def test_any_split_over_processes_gives_the_value_of_one(tied, run_processes, float64):
    one = MeanReciprocalRank([5, None], num_queries=QUERIES)
    enter(one, range(QUERIES), tied)
    seeds = range(50)
    for results in run_processes(4, evaluate_splits, seeds, tied):
        assert len(results) == len(seeds)
        for values, per_query in results:
            assert torch.equal(per_query, one.per_query()["mrr"])
            for name, value in one.compute().items():
                assert value == values[name]  # to the last bit, ties or not: the table is the same


@pytest.mark.distributed
def test_synchronising_moves_what_the_documentation_says(run_processes):
    for costs in run_processes(2, sync_costs):
        # Two are of lists that are empty: counts that wait on an accelerator, and ids of flat lists.
        assert costs["plain"] == (4, 8 * 2075 + 16)
        assert costs["by query"] == (1, 32 * 1001)
