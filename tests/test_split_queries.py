"""Queries of flat lists whose items come in several updates or processes, and flat lists of declared queries."""

import copy
import io
import os
import pickle
import random
import re
import warnings
from fractions import Fraction

import oracle
import pytest
import torch
import torch.distributed as dist
from helpers import quietly
from torchmetrics import MetricCollection
from torchmetrics.retrieval import RetrievalMRR

from mrr_torch import HitRate, MeanReciprocalRank, ranking_metrics
from mrr_torch._synchronise import same

TIES = ["expected", "optimistic", "pessimistic", "realistic"]
# Fractions of at most 40 queries and ranks, added in floats of float64.
ROUNDING = 1e-12

# Random cases on the imitated accelerator, where one takes a fifth of a second; on the CPU there are more.
CASES = int(os.environ.get("MRR_TORCH_SPLIT_CASES", "60"))
CPU_CASES = max(CASES, 500)


def random_case(seed):
    """Return the items of some queries, cut into updates anywhere, and the settings of a metric."""
    rng = random.Random(seed)
    items = rng.choice([0, 1, 5, 12, 40])
    ids = [rng.choice([-7, 0, 1, 2**50, 3]) for _ in range(items)]
    scores = [float(rng.randint(0, rng.choice([3, 100]))) for _ in range(items)]
    settings = {"ties": rng.choice(TIES), "top_k": rng.choice([None, 1, 3])}
    settings["empty_target_action"] = rng.choice(["neg", "pos", "skip"])
    labels = [rng.choice([0, 0, 1, 2]) for _ in range(items)]
    if rng.random() < 0.3:
        settings["ignore_index"] = -100
        labels = [rng.choice([label, label, -100]) for label in labels]
    options = {}
    if rng.random() < 0.3:
        options["mask"] = [rng.random() < 0.7 for _ in range(items)]
    if rng.random() < 0.3:
        options["exclude"] = [rng.random() < 0.3 for _ in range(items)]
    if rng.random() < 0.3:
        options["candidates"] = [rng.randint(-1, 6) for _ in range(items)]
    cuts = sorted(rng.randint(0, items) for _ in range(rng.randint(0, 3)))
    return scores, labels, ids, options, settings, list(zip([0, *cuts], [*cuts, items], strict=True))


def expected(scores, labels, ids, options, settings):
    known = {"exclude_mask" if name == "exclude" else name: values for name, values in options.items()}
    known["ignore_index"] = settings.get("ignore_index")
    standings = oracle.by_group(scores, labels, ids, settings["ties"], **known)
    action = settings["empty_target_action"]
    return [oracle.value(s, top_k=settings["top_k"], empty_target_action=action) for s in standings]


def tensors(scores, labels, ids, options, part):
    given = {"preds": scores, "target": labels, "indexes": ids, **options}
    floats = {"preds": torch.float32}
    bools = {"mask": torch.bool, "exclude": torch.bool}
    dtypes = {**dict.fromkeys(given, torch.int64), **floats, **bools}
    return {name: torch.tensor(values[part], dtype=dtypes[name]) for name, values in given.items()}


def check(seed, move, metric_of):
    """Compare the three ways with a query split over updates."""
    scores, labels, ids, options, settings, parts = random_case(seed)
    metrics = {way: metric_of(split_queries=way, **settings) for way in ("refuse", "gather", "separate")}
    for first, last in parts:
        given = tensors(scores, labels, ids, options, slice(first, last))
        for metric in metrics.values():
            metric.update(**{name: move(value) for name, value in given.items()})
    yield
    whole = expected(scores, labels, ids, options, settings)
    assert quietly(metrics["gather"].compute).item() == pytest.approx(float(oracle.mean(whole)), abs=ROUNDING)
    separate, seen, split = [], set(), set()
    for first, last in parts:
        part = slice(first, last)
        cut = {name: values[part] for name, values in options.items()}
        separate += expected(scores[part], labels[part], ids[part], cut, settings)
        split |= seen & set(ids[part])
        seen |= set(ids[part])
    assert quietly(metrics["separate"].compute).item() == pytest.approx(float(oracle.mean(separate)), abs=ROUNDING)
    if split:
        noun = "1 query in" if len(split) == 1 else f"{len(split)} queries in"
        with pytest.raises(ValueError, match=f"indexes: expected .*'gather'.*'separate'.*, got {noun} several"):
            quietly(metrics["refuse"].compute)
    else:
        assert quietly(metrics["refuse"].compute) == quietly(metrics["separate"].compute)
    return bool(split)


def finish(steps):
    try:
        next(steps)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("not at its end")


def test_random_splits_agree_with_the_oracle(float64):
    refused = 0
    for seed in range(CPU_CASES):
        steps = check(seed, lambda value: value, MeanReciprocalRank)
        next(steps)
        refused += finish(steps)
    assert CPU_CASES / 5 < refused < CPU_CASES * 4 / 5  # both ways were taken


def pairs(number=300, queries=20, seed=0):
    """Untied positive scores, shuffled."""
    generator = torch.Generator().manual_seed(seed)
    scores = (torch.randperm(number, generator=generator) + 1) / number
    relevant = torch.rand(number, generator=generator) < 0.2
    return scores, relevant, torch.randint(0, queries, (number,), generator=generator)


def enter(metric, items, rows):
    metric.update(items[0][rows], items[1][rows], indexes=items[2][rows])


@pytest.mark.parametrize("action", ["neg", "pos", "skip"])
def test_gather_is_equal_to_torchmetrics_for_any_split(action):
    for seed in range(20):
        items = pairs(seed=seed)
        theirs = RetrievalMRR(empty_target_action=action)
        enter(theirs, items, slice(None))
        metric = MeanReciprocalRank(empty_target_action=action, split_queries="gather")
        for rows in torch.arange(300).tensor_split(sorted(random.Random(seed).sample(range(300), 5))):
            enter(metric, items, rows)
        torch.testing.assert_close(metric.compute(), theirs.compute(), rtol=0, atol=1e-6)  # float32 sums of theirs


def on_processes():
    """The last process has no data; the parts of the others are cut anywhere."""
    number, items = dist.get_rank(), pairs()
    own = torch.arange(300)[torch.arange(300) % 7 % 2 == number]
    metrics = {way: MeanReciprocalRank([3, None], split_queries=way) for way in ("refuse", "gather", "separate")}
    metrics["whole"] = MeanReciprocalRank([3, None])
    mixed = MeanReciprocalRank(split_queries="gather")
    for rows in own.split(40) if number < 2 else ():
        for way in ("refuse", "gather", "separate"):
            enter(metrics[way], items, rows)
    enter(metrics["whole"], items, items[2] % 2 == number)  # each query on one process
    if number < 2:
        enter(mixed, (items[0].half() if number else items[0].double(), *items[1:]), own)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match=r"indexes: expected .*got 20 queries in several"):
            metrics["refuse"].compute()
        values = {way: metrics[way].compute() for way in ("gather", "whole", "separate")}
        told = metrics["gather"].describe()
        return values, told, mixed.compute()


@pytest.mark.distributed
def test_queries_split_over_processes(run_processes):
    one, theirs, items = MeanReciprocalRank([3, None]), RetrievalMRR(), pairs()
    for metric in (one, theirs):
        enter(metric, items, slice(None))
    for values, told, mixed in run_processes(3, on_processes):
        assert values["gather"] == values["whole"] == one.compute()
        assert values["gather"]["mrr"] == pytest.approx(theirs.compute().item(), abs=1e-6)  # float32 sums of theirs
        assert values["separate"] != one.compute()
        assert "; 20 queries;" in told
        # In half precision scores are other numbers, in the order of which ties are possible.
        assert mixed == pytest.approx(float(one.compute()["mrr"]), abs=0.05)


@pytest.mark.parametrize("way", ["refuse", "gather", "separate"])
def test_forward_reset_merge_checkpoints_and_copies(way, float64):
    items = pairs()
    first, second = items[2] < 10, items[2] >= 10
    whole = MeanReciprocalRank(split_queries="separate")
    enter(whole, items, slice(None))
    halves = [MeanReciprocalRank(split_queries=way) for _ in range(2)]
    for half, rows in zip(halves, (first, second), strict=True):
        alone = MeanReciprocalRank(split_queries="separate")
        enter(alone, items, rows)
        value = half(items[0][rows], items[1][rows], indexes=items[2][rows])
        assert value == alone.compute()
    halves[0].persistent(True)
    stored = io.BytesIO()
    torch.save(halves[0].state_dict(), stored)
    stored.seek(0)
    loaded = MeanReciprocalRank(split_queries=way)
    loaded.load_state_dict(torch.load(stored))
    for metric in (loaded, copy.deepcopy(halves[0]), pickle.loads(pickle.dumps(halves[0])), halves[0].clone()):
        metric.merge_state(halves[1])
        assert metric.compute() == pytest.approx(whole.compute().item(), abs=ROUNDING)
        enter(metric, items, first)
        if way == "refuse":
            with pytest.raises(ValueError, match="got 10 queries in several"):
                metric.compute()
        else:
            assert metric.compute() != whole.compute()
        metric.reset()
        enter(metric, items, first)
        assert metric.compute() == halves[0].compute()


@pytest.mark.parametrize("way", ["refuse", "gather", "separate"])
def test_collections(way):
    scores, _, ids = pairs()
    first = torch.tensor([bool((ids[:i] != query).all()) for i, query in enumerate(ids)])  # one relevant item each
    items = scores, first, ids
    settings = {"split_queries": way}
    metrics = [
        MetricCollection([MeanReciprocalRank(3, **settings), HitRate(3, **settings)]),
        ranking_metrics(3, **settings),
    ]
    for metric in metrics:
        for rows in (items[2] < 10, items[2] >= 10):
            metric(items[0][rows], items[1][rows], indexes=items[2][rows])
    alone = MeanReciprocalRank(3, split_queries="separate")
    enter(alone, items, slice(None))
    assert metrics[0].compute()["MeanReciprocalRank"] == metrics[1].compute()["mrr@3"] == alone.compute()


def test_memory():
    items = pairs()
    metrics = {way: MeanReciprocalRank(split_queries=way) for way in ("refuse", "gather", "separate")}
    fixed = {way: size(metric) for way, metric in metrics.items()}
    for metric in metrics.values():
        for rows in (items[2] < 10, items[2] >= 10):
            enter(metric, items, rows)
    assert size(metrics["refuse"]) - fixed["refuse"] == 8 * 20  # queries
    assert size(metrics["gather"]) - fixed["gather"] == 13 * 300  # items
    assert size(metrics["separate"]) == fixed["separate"]
    dense = MeanReciprocalRank()
    dense.update(torch.rand(9, 4), torch.zeros(9, dtype=torch.int64))
    assert size(dense) == fixed["refuse"]


def size(metric):
    states = metric.metric_state.values()
    return sum(item.nbytes for state in states for item in ([state] if isinstance(state, torch.Tensor) else state))


def test_what_the_caller_writes_later_changes_nothing():
    scores, labels, ids = torch.tensor([0.1, 0.2]), torch.tensor([1, 0]), torch.tensor([0, 0])
    metric = MeanReciprocalRank(split_queries="gather")
    metric.update(scores, labels, indexes=ids)
    scores.fill_(0)
    labels.fill_(0)
    ids[1] = 5
    assert metric.compute() == 1 / 2


def test_items_with_and_without_candidates_are_ranked_together():
    metric = MeanReciprocalRank(split_queries="gather")
    scores, ids = torch.tensor([3.0, 2.0, 1.0]), torch.zeros(3, dtype=torch.int64)
    metric.update(scores, torch.zeros(3, dtype=torch.int64), indexes=ids, candidates=torch.tensor([4, 4, 9]))
    metric.update(scores - 3, torch.tensor([0, 0, 1]), indexes=ids)
    assert metric.compute() == pytest.approx(1 / 5)  # below 4 and 9 once each, and two others


def random_declared(seed):
    rng = random.Random(seed)
    queries, items = rng.choice([1, 4, 9]), rng.choice([0, 1, 5, 12, 30])
    ids = [rng.randrange(queries) for _ in range(items)]
    scores, labels = [float(rng.randint(0, 5)) for _ in ids], [rng.choice([0, 0, 1]) for _ in ids]
    action = rng.choice(["neg", "pos", "skip"])
    return queries, scores, labels, ids, {"ties": rng.choice(TIES), "top_k": None, "empty_target_action": action}


def check_declared(seed, move, metric_of):
    queries, scores, labels, ids, settings = random_declared(seed)
    metrics = {unseen: metric_of(num_queries=queries, unseen=unseen, **settings) for unseen in ("skip", "neg")}
    middle = max(ids, default=0) // 2
    for part in ([i for i, q in enumerate(ids) if q <= middle], [i for i, q in enumerate(ids) if q > middle]):
        cut = [[values[i] for i in part] for values in (scores, labels, ids)]
        given = tensors(*cut, {}, slice(None))
        for metric in metrics.values():
            metric.update(**{name: move(value) for name, value in given.items()})
    yield
    values = expected(scores, labels, ids, {}, settings)
    never = [Fraction(0)] * (queries - len(set(ids)))
    assert quietly(metrics["skip"].compute).item() == pytest.approx(float(oracle.mean(values)), abs=ROUNDING)
    assert quietly(metrics["neg"].compute).item() == pytest.approx(float(oracle.mean(values + never)), abs=ROUNDING)


def test_declared_queries_agree_with_the_oracle(float64):
    for seed in range(CPU_CASES):
        steps = check_declared(seed, lambda value: value, MeanReciprocalRank)
        next(steps)
        finish(steps)


@pytest.mark.slow
@pytest.mark.parametrize("steps_of", [check, check_declared])
def test_split_and_declared_queries_agree_with_the_oracle_on_an_accelerator(steps_of, accelerator, float64):
    def metric_of(**settings):
        with accelerator.allowed():
            return MeanReciprocalRank(**settings).to("cuda:0")

    for seed in range(CASES):
        steps = steps_of(seed, accelerator.put, metric_of)
        next(steps)  # the updates, which do not synchronise
        with accelerator.allowed():
            finish(steps)


def test_a_query_that_was_only_skipped_is_not_unseen():
    metric = MeanReciprocalRank(num_queries=4, unseen="neg", ignore_index=-100)
    scores, target = torch.tensor([[0.1, 0.9], [0.1, 0.9], [0.1, 0.9]]), torch.tensor([1, -100, 0])
    assert metric(scores, target, query_ids=torch.arange(3)) == 3 / 4  # of the batch alone
    assert metric.compute() == 1 / 2  # 1, skipped, 1 / 2, 0


BAD = [
    ({"split_queries": "merge"}, "split_queries: expected one of 'refuse', 'gather', 'separate', got 'merge'"),
    ({"split_queries": None}, "split_queries: expected one of 'refuse', 'gather', 'separate', got None"),
    ({"split_queries": "gather", "cohorts": 2}, "split_queries: expected 'refuse' or 'separate' with cohorts"),
    ({"split_queries": "gather", "weighted": True}, "split_queries: expected 'refuse' or 'separate' with cohorts"),
    ({"split_queries": "gather", "num_queries": 3}, "split_queries: expected 'refuse' with num_queries"),
    ({"split_queries": "separate", "num_queries": 3}, "split_queries: expected 'refuse' with num_queries"),
    ({"unseen": "neg"}, "unseen: expected 'skip' without num_queries, got 'neg'"),
    ({"unseen": "pos", "num_queries": 3}, "unseen: expected one of 'skip', 'neg', got 'pos'"),
]


@pytest.mark.parametrize(("settings", "message"), BAD, ids=lambda case: str(case)[:50])
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        MeanReciprocalRank(**settings)


@pytest.mark.parametrize(
    ("settings", "given", "message"),
    [
        ({"num_queries": 3}, {"indexes": [0, 3]}, "indexes: expected ids in 0..2 (num_queries=3), got 3"),
        ({"num_queries": 3}, {"indexes": [-1, 0]}, "indexes: expected ids in 0..2 (num_queries=3), got -1"),
        ({"num_queries": 3}, {"indexes": [0, 0], "query_ids": [0]}, "query_ids: expected None with indexes"),
        ({"split_queries": "gather"}, {"indexes": [0]}, "indexes: expected shape (2,), got shape (1,)"),
        ({"split_queries": "gather"}, {"indexes": [0, 0], "target": [0, -2]}, "target: expected relevance >= 0"),
        ({"split_queries": "gather"}, {"indexes": [0, 0], "candidates": [1]}, "candidates: expected shape (2,)"),
    ],
)
def test_bad_updates_are_named_and_change_nothing(settings, given, message):
    metric = MeanReciprocalRank(**settings)
    metric.update(torch.tensor([0.2, 0.1]), torch.tensor([0, 1]), indexes=torch.tensor([1, 1]))
    before = copy.deepcopy(metric.metric_state)
    arguments = {"target": [0, 1], **given}
    for call in (metric.update, metric.forward):
        with pytest.raises(ValueError, match=re.escape(message)):
            call(torch.tensor([0.2, 0.1]), **{name: torch.tensor(ids) for name, ids in arguments.items()})
        assert all(same(metric.metric_state[name], state) for name, state in before.items())
        assert metric.update_count == 1
    assert quietly(metric.compute) == 1 / 2


def test_negative_relevance_on_an_accelerator_is_raised_by_compute(accelerator):
    with accelerator.allowed():
        metric = MeanReciprocalRank(split_queries="gather").to("cuda:0")
        given = [torch.tensor([0.2, 0.1, 0.3]), torch.tensor([1, -2, 1]), torch.tensor([0, 0, 1])]
    scores, labels, ids = map(accelerator.put, given)
    metric.update(scores, labels, indexes=ids)
    with accelerator.allowed(), pytest.raises(ValueError, match=r"target: expected relevance >= 0 .*in 1 query"):
        metric.compute()
