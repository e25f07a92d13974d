"""Counts that wait to be added up: bounded, in memory of their own, and in no value or checkpoint to be told."""

import copy
import pickle
import random

import pytest
import torch
from torchmetrics.wrappers import Running

from mrr_torch import MeanReciprocalRank, RankMetric, Ranks, _synchronise, ranking_metrics, state

SETTINGS = [{}, {"cohorts": 2}, {"weighted": True}, {"cohorts": 2, "weighted": True}, {"num_negatives": 5}]


def batch(seed, settings, queries=7, columns=30):
    generator = torch.Generator().manual_seed(seed)
    given = {
        "preds": torch.randint(0, 12, (queries, columns), generator=generator),
        "target": torch.randint(0, columns, (queries,), generator=generator),
    }
    if "cohorts" in settings:
        given["cohort"] = torch.randint(0, 2, (queries,), generator=generator)
    if "weighted" in settings:
        given["weights"] = torch.rand(queries, generator=generator, dtype=torch.float64)
    return given


def waiting(metric):
    (name,) = (name for name in metric._lists if name.startswith("waiting"))
    return getattr(metric, name)


def updated(metric, settings, batches):
    for seed in range(batches):
        metric.update(**batch(seed, settings))
    return metric


def close(left, right):
    assert left.keys() == right.keys()
    return all(float(left[name]) == pytest.approx(float(right[name]), rel=1e-12) for name in left)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_what_waits_has_the_values_of_what_is_added_at_once(settings, monkeypatch, float64):
    metric = updated(MeanReciprocalRank([3, None], **settings), settings, 10)
    assert len(waiting(metric)) == 10
    monkeypatch.setattr(state, "READABLE_WAITING", 0)
    at_once = updated(MeanReciprocalRank([3, None], **settings), settings, 10)
    assert not waiting(at_once)
    assert close(metric.compute(), at_once.compute())
    assert metric.describe() == at_once.describe()


@pytest.mark.parametrize("call", ["update", "forward"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_however_many_batches_came_few_wait(settings, call, monkeypatch, float64):
    monkeypatch.setattr(state, "PARTS", 4)
    expected = updated(MeanReciprocalRank([3, None], **settings), settings, 30)
    for numbers in (300, 10**9):
        monkeypatch.setattr(state, "READABLE_WAITING", numbers)
        metric, after = MeanReciprocalRank([3, None], **settings), []
        for seed in range(30):
            getattr(metric, call)(**batch(seed, settings))
            assert len(waiting(metric)) <= 4
            assert sum(part.numel() for part in waiting(metric)) <= numbers
            after.append(getattr(metric, metric._names[0]))
        assert after[0].any()  # the first batch is added at once
        assert torch.equal(after[0], after[-1]) == (numbers != 300)
        assert close(metric.compute(), expected.compute())


def test_of_no_queries_nothing_waits():
    metric = MeanReciprocalRank()
    metric.update(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    metric.update(torch.zeros(0), torch.zeros(0, dtype=torch.int64), indexes=torch.zeros(0, dtype=torch.int64))
    assert not waiting(metric)
    assert metric.compute() == 0


def test_a_collection_lets_one_batch_wait_once():
    metrics = ranking_metrics([1, 5])
    updated(metrics, {}, 3)
    parts = [waiting(metric) for metric in metrics.values(copy_state=False)]
    assert len(parts) == 6
    assert all(part is parts[0] for part in parts)
    assert len(parts[0]) == 3


def test_the_ranks_that_were_given_may_change_afterwards():
    ranks, weights = Ranks(*torch.tensor([[1, 3], [0, 0], [1, 1], [9, 9]])), torch.tensor([1.0, 3.0])
    metric = MeanReciprocalRank(weighted=True)
    for _ in range(2):  # the first is added, the second waits
        metric.update(ranks, weights=weights)
    for field in (*ranks, weights):
        field.zero_()
    assert metric.compute() == (1 / 2 + 3 / 4) / 4


def test_weights_that_need_a_gradient_are_numbers():
    metric = MeanReciprocalRank(weighted=True)
    for _ in range(2):
        metric.update(torch.eye(2), torch.tensor([0, 0]), weights=torch.tensor([1.0, 3.0], requires_grad=True))
    assert metric.compute() == (1 + 3 / 2) / 4
    weights = torch.tensor([1.0, 3.0], requires_grad=True)
    of_batch = ranking_metrics(1, weighted=True)(torch.eye(2), torch.tensor([0, 0]), weights=weights)["mrr@1"]
    assert of_batch == 1 / 4
    assert not of_batch.requires_grad


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_checkpoint_holds_nothing_that_waits_and_replaces_what_does(settings):
    metric, other = MeanReciprocalRank(10, **settings), MeanReciprocalRank(10, **settings)
    metric.persistent(True)
    updated(metric, settings, 3)
    before = copy.deepcopy(metric).compute()
    checkpoint = metric.state_dict()
    assert all(isinstance(value, torch.Tensor) for value in checkpoint.values())
    assert all(
        isinstance(value, torch.Tensor) for value in updated(copy.deepcopy(metric), settings, 1).metric_state.values()
    )
    assert metric.compute() == before
    updated(other, settings, 5)
    assert waiting(other)
    other.load_state_dict(checkpoint)
    assert other.compute() == before
    assert updated(other, settings, 1).compute() == updated(metric, settings, 1).compute()


def test_a_checkpoint_replaces_the_flat_lists_that_came_before():
    saved, other = MeanReciprocalRank(split_queries="gather"), MeanReciprocalRank(split_queries="gather")
    saved.persistent(True)
    saved.update(torch.eye(3), torch.tensor([0, 1, 0]))
    other.update(torch.tensor([0.1, 0.2]), torch.tensor([1, 0]), indexes=torch.tensor([0, 0]))
    other.load_state_dict(saved.state_dict())
    assert other.compute() == saved.compute()


def test_a_window_keeps_the_items_of_flat_lists():
    running = Running(MeanReciprocalRank(split_queries="gather"), window=2)
    for labels in ([1, 0, 0], [0, 1, 0], [0, 0, 1]):
        running(torch.tensor([0.9, 0.8, 0.7]), torch.tensor(labels), indexes=torch.tensor([sum(labels[:2])] * 3))
    assert running.compute() == (1 / 2 + 1 / 3) / 2


def course_of(seed, settings):
    """Return what a random course of calls gives; two metrics take turns, and are saved, copied and merged."""
    drawn, found = random.Random(seed), []
    metric, other = (MeanReciprocalRank([3, None], **settings) for _ in range(2))
    for step in range(25):
        call = drawn.choice(
            ["update"] * 5 + ["forward", "compute", "load", "copy", "merge", "reset", "look", "swap", "refuse"]
        )
        given = batch(1000 * seed + step, settings, drawn.choice([1, 8] if call == "refuse" else [0, 1, 8]))
        if call == "load":
            loaded = MeanReciprocalRank([3, None], **settings)
            for each in (metric, loaded):
                each.persistent(True)
            loaded.load_state_dict(metric.state_dict())
            metric = loaded
        elif call == "copy":
            metric = pickle.loads(pickle.dumps(copy.deepcopy(metric).half()))
        elif call == "merge":
            metric.merge_state(other)
        elif call == "swap":
            metric, other = other, metric
        elif call == "look":
            found.append(len(metric.metric_state))
        elif call == "refuse":
            with pytest.raises(ValueError, match="target: expected ids"):
                metric.update(**given | {"target": given["target"] + 99})
        else:
            value = getattr(metric, call)(**given if call in ("update", "forward") else {})
            found += [] if value is None else [float(number) for number in value.values()]
    return [*found, *map(float, metric.compute().values())]


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_any_course_of_calls_has_the_same_values_however_much_waits(settings, monkeypatch, float64):
    expected = [course_of(seed, settings) for seed in range(12)]
    for numbers, parts in ((0, 1), (200, 3)):
        monkeypatch.setattr(state, "READABLE_WAITING", numbers)
        monkeypatch.setattr(state, "PARTS", parts)
        for seed, values in enumerate(expected):
            assert course_of(seed, settings) == pytest.approx(values, rel=1e-12)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_first_batch_after_a_reading_is_added_and_those_after_it_wait(settings, float64):
    metric = MeanReciprocalRank([3, None], **settings)
    for seed in (0, 3):
        metric.update(**batch(seed, settings))
        added = getattr(metric, metric._names[0])
        assert not sum(part.numel() for part in waiting(metric))
        for later in (1, 2):
            metric.update(**batch(seed + later, settings))
            assert len([part for part in waiting(metric) if part.numel()]) == later
            assert getattr(metric, metric._names[0]) is added
        assert close(metric.compute(), updated(MeanReciprocalRank([3, None], **settings), settings, seed + 3).compute())
        assert waiting(metric) == []


@pytest.mark.parametrize("form", ["target", "labels", "relevant"])
@pytest.mark.parametrize("columns", [30, 1024, 1025, 3000])  # ranks beyond 1024 have no place of their own
@pytest.mark.parametrize("settings", SETTINGS[:4], ids=str)
def test_what_is_known_before_the_ranks_are_read_changes_no_bit(settings, columns, form, float64):
    given = batch(0, settings, queries=40, columns=columns)
    if form == "labels":
        given["target"] = torch.nn.functional.one_hot(given["target"], columns)
    elif form == "relevant":
        given["relevant"] = given.pop("target")

    def state_of(**options):
        metric = MeanReciprocalRank(split_queries="separate", **settings)
        metric.update(**given, **options)
        return metric.describe(), metric.metric_state

    told, states = state_of()
    for options in ({"mask": torch.ones(columns, dtype=torch.bool)}, {"candidates": torch.arange(columns)}):
        again, same = state_of(**options)
        assert again == told
        assert all(torch.equal(states[name], same[name]) for name in states)
    real = torch.ones(40, columns, dtype=torch.bool)
    for mask in (real, real.index_put((torch.tensor(0), torch.tensor([3, 4])), torch.tensor(False))):
        one_by_one = MeanReciprocalRank(split_queries="separate", **settings)
        for i in range(40):
            one_by_one.update(**{name: value[i : i + 1] for name, value in given.items()}, mask=mask[i : i + 1])
        assert one_by_one.describe() == state_of(mask=mask)[0]


def test_items_that_a_function_of_the_users_own_gathered_are_ranked(float64):
    given = {"dist_sync_fn": lambda state, group=None: [state, state], "distributed_available_fn": lambda: True}
    metric = MeanReciprocalRank(split_queries="gather", **given)
    metric.update(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1, 0, 0]), indexes=torch.tensor([0, 0, 1]))
    # Each item twice: 1 / 3 of the first query, 0 of the second.
    assert metric.compute() == pytest.approx(1 / 6)


def test_a_merge_leaves_few_parts():
    metric = MeanReciprocalRank()
    for _ in range(300):
        other = MeanReciprocalRank()
        other.update(torch.eye(3), torch.arange(3))
        metric.merge_state(other)
    assert len(waiting(metric)) <= state.PARTS


@pytest.mark.parametrize("gain", [torch.ones(1), torch.tensor(1.0), 1.0], ids=str)
def test_a_gain_may_be_one_for_all_ranks(gain):
    class Found(RankMetric):
        key = "found"

        def gain(self, ranks):
            return gain

    metric = Found(10)
    metric.update(torch.eye(4), torch.tensor([0, 0, 0, 1]))
    assert metric.compute() == 1


def test_a_synchronisation_that_is_interrupted_at_its_end_changes_nothing(monkeypatch):
    given = {"dist_sync_fn": lambda state, group=None: [state, state], "distributed_available_fn": lambda: True}
    metric = MeanReciprocalRank(10, **given)
    metric.update(torch.eye(3), torch.arange(3))

    def interrupted(states):
        raise KeyboardInterrupt

    for _ in range(2):  # while the states of all are kept, and when they are taken from there
        with monkeypatch.context() as patch:
            patch.setattr(_synchronise, "_own_lists", interrupted)
            with pytest.raises(KeyboardInterrupt):
                metric.describe()
        assert metric._cache is None
        assert "; 6 queries;" in metric.describe()
    metric.update(torch.eye(3), torch.arange(3))
    assert "; 12 queries;" in metric.describe()
