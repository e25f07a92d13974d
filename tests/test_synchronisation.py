"""Synchronising costs two small collectives, which all processes enter or none; read-outs after it are local."""

import copy
import warnings
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torchmetrics import MetricCollection
from torchmetrics.utilities.distributed import gather_all_tensors

from mrr_torch import HitRate, MeanReciprocalRank, NormalizedDCG, RankDistribution, Ranks, kernels, ranking_metrics

pytestmark = pytest.mark.distributed

COLLECTIVES = ("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "broadcast", "barrier")
CUTS = (1, 5, 10)


def ranks(*numbers):
    """The ranks of queries among 100 candidates."""
    higher = torch.tensor(numbers, dtype=torch.long) - 1
    return Ranks(higher, torch.zeros_like(higher), torch.ones_like(higher), torch.full_like(higher, 100))


def mine():
    """The ranks that this process sees: its number + 1, and 3; the last process sees nothing."""
    number = dist.get_rank()
    return [] if number == dist.get_world_size() - 1 else [number + 1, 3]


def everyone(world):
    return [rank for number in range(world - 1) for rank in (number + 1, 3)]


def add(metric, numbers):
    if numbers:
        metric.update(ranks(*numbers))


def mrr(numbers):
    # Two additions in another order than the metric's.
    return pytest.approx(sum(1 / rank for rank in numbers) / len(numbers), abs=1e-15)


def nine():
    kinds = {"mrr": MeanReciprocalRank, "hit": HitRate, "ndcg": NormalizedDCG}
    return MetricCollection({f"{name}@{k}": kind(k) for name, kind in kinds.items() for k in CUTS})


@contextmanager
def counted():
    """Collect the names and the bytes of the collectives that this process enters."""
    seen, original = [], {name: getattr(dist, name) for name in COLLECTIVES}

    def counting(name):
        def collective(*args, **kwargs):
            tensors = [item for arg in args for item in (arg if isinstance(arg, list) else [arg])]
            seen.append((name, sum(item.nbytes for item in tensors if isinstance(item, torch.Tensor))))
            return original[name](*args, **kwargs)

        return collective

    for name in COLLECTIVES:
        setattr(dist, name, counting(name))
    try:
        yield seen
    finally:
        for name in COLLECTIVES:
            setattr(dist, name, original[name])


def in_processes(world, worker, run_processes, *arguments):
    return run_processes(world, quiet, worker, arguments)


def quiet(worker, arguments):
    """Run a worker with float64 results; a process without data is warned that it has seen none."""
    torch.set_default_dtype(torch.float64)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*before the ``update``")
        warnings.filterwarnings("ignore", message="Only .* queries have been seen")
        return worker(*arguments)


def waits(metric):
    return any(part.numel() for name in metric._lists for part in getattr(metric, name))


def cost(types):
    """Return values and collectives, where counts wait to be added up; ``types`` of devices are read."""
    metric, collection = MeanReciprocalRank(), nine()
    with mock.patch.object(kernels, "HOST_TYPES", frozenset(types)):
        for rank in mine():  # the first on a host does not wait
            add(metric, [rank])
            add(collection, [rank])
        assert waits(metric) == bool(mine())
        with counted() as alone:
            value = metric.compute()
        with counted() as together:
            values = collection.compute()
        assert waits(metric) == bool(mine())
    return value, alone, values, together


@pytest.mark.parametrize("types", [["cpu"], []], ids=["read", "not read"])
@pytest.mark.parametrize("world", [2, 4])
def test_a_metric_and_a_compute_group_cost_two_small_collectives_on_any_number_of_processes(
    world, types, run_processes, float64
):
    whole = nine()
    whole.update(ranks(*everyone(world)))
    expected = whole.compute()
    for value, alone, values, together in in_processes(world, cost, run_processes, types):
        assert value == mrr(everyone(world))
        assert values == expected
        assert [name for name, _ in alone] == ["all_reduce"] * 2
        assert alone == together
        assert sum(size for _, size in alone) < 20_000


def looked_at():
    """Return collectives where the states of one member were looked at, without and with counts that wait."""
    found = []
    for batches in (1, 2):
        collection = ranking_metrics(CUTS)
        for _ in range(batches):
            add(collection, [1, 2])
        members = list(collection.values(copy_state=False))
        _ = members[1].metric_state
        with counted() as entered:
            for member in members:
                member.compute()
        found.append([name for name, _ in entered])
    return found


def test_a_member_whose_states_were_looked_at_still_shares_them(run_processes):
    for found in in_processes(2, looked_at, run_processes):
        assert found == [["all_reduce"] * 2] * 2


def alone_after_compute():
    metric, shares, collection = MeanReciprocalRank([1, 10]), RankDistribution(10), nine()
    fixed = MeanReciprocalRank([1, None], num_queries=8)
    for each in (metric, shares, collection):
        add(each, mine())
    number = dist.get_rank()
    fixed.update(ranks(number + 1), query_ids=torch.tensor([number]))
    for each in (metric, shares, collection):
        each.compute()
    with counted() as of_table:
        fixed.compute()
    told = {}
    with counted() as entered:
        if dist.get_rank() == 0:
            told = {
                "describe": metric.describe(),
                "member": collection["hit@5"].describe(),
                "clone": copy.deepcopy(metric).describe(),
                "moved": metric.to(torch.float32).describe(),
                "missed": shares.missed(),
                "quantile": shares.quantile(1.0),
                "per_query": fixed.per_query()["mrr"][:2],
                "again": collection.compute()["hit@5"],
            }
            shares.plot()
            metric.plot()
    # The states are those of this process again.
    return told, entered, metric.metric_state[metric.settings.state_name].sum(), len(of_table)


def test_every_read_out_after_compute_is_local_to_the_process_that_calls_it(run_processes):
    results = in_processes(3, alone_after_compute, run_processes)
    told = results[0][0]
    assert all(not entered for _, entered, _, _ in results)
    assert all(of_table == 2 for *_, of_table in results)
    assert "; 4 queries;" in told["describe"]
    assert told["describe"] == told["clone"] == told["moved"]
    assert told["member"].startswith("hit_rate@5 1.0000")
    assert "; 4 queries;" in told["member"]
    assert told["missed"] == 0
    assert told["quantile"] == 3
    assert told["per_query"].tolist() == [1, 1 / 2]
    assert told["again"] == 1
    assert results[0][2] != 0
    assert results[2][2] == 0


def changes():
    """What is kept is dropped by every change, on each process, and the members of a group take part."""
    values = {}
    other = MeanReciprocalRank()
    other.update(ranks(1))
    other.persistent(True)
    ways = {
        "update": lambda metric: metric.update(ranks(1)),
        "forward": lambda metric: metric(ranks(1)),
        "reset": lambda metric: (metric.reset(), metric.update(ranks(1))),
        "load": lambda metric: metric.load_state_dict(other.state_dict()),
        "merge": lambda metric: metric.merge_state(other),
    }
    for way, change in ways.items():
        metric = MeanReciprocalRank()
        metric.update(ranks(2))
        before = metric.describe(), metric.compute()
        change(metric)
        values[way] = before, metric.describe(), metric.compute()
    collection = nine()
    for _ in range(2):
        collection.update(ranks(2))
        collection.compute()
    with counted() as entered:
        collection.update(ranks(1))
        again = collection.compute()["mrr@5"]
    refused = MeanReciprocalRank()
    refused.update(ranks(2))
    refused.compute()
    with counted() as after_refusal:
        try:
            refused.update(torch.zeros(2, 3), torch.tensor([0, 9]))
        except ValueError:
            refused.describe()
    uncached = MeanReciprocalRank(compute_with_cache=False)
    uncached.update(ranks(2))
    with counted() as each_time:
        uncached.compute()
        uncached.compute()
    return values, again, len(entered), len(after_refusal), len(each_time)


def test_what_is_kept_lives_as_long_as_the_value_that_torchmetrics_keeps(run_processes):
    for values, again, entered, after_refusal, each_time in in_processes(2, changes, run_processes):
        for way, (before, told, value) in values.items():
            assert before[0].startswith("mrr 0.5000")
            assert before[1] == 1 / 2
            expected = 1 if way in {"reset", "load"} else 3 / 4
            assert value == expected
            assert told.startswith(f"mrr {expected:.4f}")
        assert again == pytest.approx(2 / 3, abs=1e-15)  # (1/2 + 1/2 + 1) / 3
        assert entered == 2
        assert after_refusal == 0
        assert each_time == 4


def collections_that_differ():
    """On each process another history: the first has looked at its members, the last has no data."""
    looked_at = nine()
    add(looked_at, mine())
    if dist.get_rank() == 0:
        assert len(list(looked_at.values())) == 9  # torchmetrics copies the states of the group
    with counted() as copied:
        first = looked_at.compute()["ndcg@10"]
    apart = MetricCollection({"a": MeanReciprocalRank(), "b": MeanReciprocalRank()})
    if dist.get_rank() == 1:
        apart["b"].update(ranks(4))  # on its own
    add(apart, mine())
    second = apart.compute()
    kinds = MetricCollection({"full": MeanReciprocalRank(), "ties": MeanReciprocalRank(ties="optimistic")})
    if mine():
        kinds.update(Ranks(*torch.tensor([[0], [1], [1], [5]])))
    return first, len(copied), second, kinds.compute()


def test_members_share_only_what_is_the_same_on_every_process(run_processes):
    for first, copied, second, kinds in in_processes(3, collections_that_differ, run_processes):
        expected = NormalizedDCG(10)
        expected.update(ranks(*everyone(3)))
        assert first == pytest.approx(float(expected.compute()), abs=1e-6)  # float32 here
        assert copied == 2
        assert second["a"] == mrr([1, 3, 2, 3])
        assert second["b"] == mrr([1, 3, 4, 2, 3])
        assert kinds == {"full": 3 / 4, "ties": 1}


class Failing(MeanReciprocalRank):
    fails = True

    def compute(self):
        value = super().compute()
        if self.fails:
            raise RuntimeError("in compute")
        return value


def failures():
    metric = Failing()
    add(metric, mine())
    outcomes = []
    for call in (metric.compute, metric.compute):
        with pytest.raises(RuntimeError, match="in compute"):
            call()
        outcomes.append(metric._is_synced)
    metric.fails = False
    metric.update(ranks(1))
    value = metric.compute()
    # The network fails on every process, then comes back.
    metric.update(ranks(1))
    original, dist.all_reduce = dist.all_reduce, interrupted
    with pytest.raises(KeyboardInterrupt):
        metric.compute()
    dist.all_reduce = original
    return outcomes, value, metric.compute()


def interrupted(*_):
    raise KeyboardInterrupt


def test_a_compute_that_fails_leaves_each_process_with_its_own_state(run_processes):
    for outcomes, value, more in in_processes(2, failures, run_processes):
        assert outcomes == [False, False]
        assert value == mrr([1, 3, 1, 1])
        assert more == mrr([1, 3, 1, 1, 1, 1])


def gathered(tensor, group=None):
    gathered.calls += 1
    return gather_all_tensors(tensor, group)


gathered.calls = 0


def settings():
    """A user's own way to synchronise; steps; groups of processes."""
    own = MeanReciprocalRank(dist_sync_fn=gathered)
    local = MeanReciprocalRank(sync_on_compute=False)
    step = MeanReciprocalRank(dist_sync_on_step=True)
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    paired = MeanReciprocalRank(process_group=pairs[dist.get_rank() // 2])
    number = dist.get_rank()
    for metric in (own, local, paired):
        metric.update(ranks(number + 1))
    with counted() as by_own:
        value = own.compute()
        told = own.describe()
    with counted() as by_local:
        lonely = local.compute()
    manual = MeanReciprocalRank(sync_on_compute=False)
    manual.update(ranks(number + 1))
    manual.sync()
    by_hand = manual.compute()
    manual.update(ranks(number + 1))
    again = manual.compute()
    steps = [step(ranks(number + 1)), step(ranks(1)), step.compute()]
    return value, told, gathered.calls, by_own, lonely, by_local, by_hand, again, steps, paired.compute()


def test_the_settings_of_torchmetrics_keep_working(run_processes):
    every = mrr([1, 2, 3, 4])
    for number, result in enumerate(in_processes(4, settings, run_processes)):
        value, told, calls, by_own, lonely, by_local, by_hand, again, steps, paired = result
        assert value == every
        assert told.startswith("mrr 0.5208")
        assert calls == 4  # one a state, and none for the read-out
        assert "all_reduce" not in dict(by_own)
        assert lonely == again == 1 / (number + 1)
        assert not by_local
        assert by_hand == every
        assert steps == [every, 1, mrr([1, 2, 3, 4, 1, 1, 1, 1])]
        assert paired == mrr([1, 2] if number < 2 else [3, 4])


class Watching(MeanReciprocalRank):
    """A subclass with states of its own, of every kind of reduction."""

    def __init__(self):
        super().__init__()
        self.add_state("seen", [], "cat")
        self.add_state("number", torch.zeros((), dtype=torch.int64), "sum")
        self.add_state("largest", torch.zeros((), dtype=torch.int64), "max")
        self.add_state("wide", torch.zeros(20, 20, dtype=torch.float64), "max")
        self.add_state("few", torch.zeros((), dtype=torch.int32), "sum")
        self.add_state("average", torch.zeros(2), "mean")
        self.add_state("fewest", torch.full((), 1000.0), "min")

    def update(self, preds):
        super().update(preds)
        self.seen.append(preds.higher + 1)
        self.number = self.number + preds.higher.numel()
        self.largest = self.largest.maximum(2**60 + preds.higher.max())
        self.wide = self.wide.maximum(preds.higher.max() * torch.eye(20))
        self.few = self.few + 1
        self.average = self.average + 4.0
        self.fewest = self.fewest.minimum(preds.higher.min() + 1)


def subclass():
    metric = Watching()
    number = dist.get_rank()
    metric.update(ranks(number + 1, *[5] * number))
    with metric.sync_context():
        states = dict(metric.metric_state)
    return states, metric.compute(), metric.metric_state


def test_states_of_a_subclass_are_reduced_as_torchmetrics_does(run_processes):
    for number, (states, value, own) in enumerate(in_processes(2, subclass, run_processes)):
        assert sorted(torch.cat([states["seen"]]).tolist()) == [1, 2, 5]
        assert states["number"] == 3
        assert int(states["largest"]) == 2**60 + 4
        assert torch.equal(states["wide"], 4 * torch.eye(20))
        assert states["few"] == 2
        assert states["few"].dtype == torch.int64  # torch.sum of int32, which torchmetrics takes
        assert states["average"].tolist() == [4, 4]
        assert states["fewest"] == 1
        assert value == mrr([1, 2, 5])
        assert own["number"] == number + 1


def sizes():
    """The processes have made metrics whose states differ in size."""
    errors = []
    makes = [
        lambda number: MeanReciprocalRank(2000 if number else 10),
        lambda number: MeanReciprocalRank(num_queries=5 + number),
        lambda number: MeanReciprocalRank(ignore_index=number),
    ]
    for make in makes:
        metric = make(dist.get_rank())
        ids = {} if metric.num_queries is None else {"query_ids": torch.tensor([0])}
        metric.update(ranks(2), **ids)
        with pytest.raises(ValueError, match="states: expected the same names and shapes on all processes") as caught:
            metric.compute()
        errors.append(str(caught.value))
        metric.update(ranks(2), **ids)
        metric.sync_on_compute = metric._to_sync = False
        assert metric.compute() == 1 / 2
    return errors


def test_states_of_different_sizes_are_refused_on_all_processes(run_processes):
    first, second = in_processes(2, sizes, run_processes)
    assert len(first) == len(second) == 3
    assert "(2075,)" in first[0]
