"""Faults that people reported of other implementations of MRR, each as a small input with the right answer.

Each table holds the reported inputs and a few more of the same kind: the kind must be impossible, not the one input.
"""

import copy
import io
import itertools
import pickle
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torchmetrics import MetricCollection

from mrr_torch import HitRate, MeanReciprocalRank, mean_reciprocal_rank, rank_retrieved, reciprocal_rank

pytestmark = pytest.mark.usefixtures("float64")
# Results of float64: a handful of roundings of numbers up to 1, each below 1e-15.
CLOSE = 1e-12
NAN, INF = float("nan"), float("inf")


def close(values: Any) -> Any:
    return pytest.approx(values, rel=0, abs=CLOSE)


def harmonic(n: int) -> float:
    return sum(1 / r for r in range(1, n + 1))


@dataclass
class Case:
    """Scores and target; the values by hand, None where the report gives none; what else goes into the call."""

    scores: list
    target: list | None
    expected: float | list[float]
    optimistic: float | None = None
    pessimistic: float | None = None
    per_query: list[float] | None = None
    top_k: int | list[int] | None = None
    dtype: torch.dtype | None = None
    nan: int = 0  # targets without a score, to be warned of
    settings: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, list] = field(default_factory=dict)


def untied(scores: list, target: list, expected: float, **more: Any) -> Case:
    """Make a case where the tie rule makes no difference."""
    return Case(scores, target, expected, expected, expected, **more)


def sampled(positive: list, negatives: list, expected: float, *values: float, **more: Any) -> Case:
    """Make a case of sampled mode: the positive in column 0, its column not told."""
    scores = [[score, *row] for score, row in zip(positive, negatives, strict=True)]
    settings = {"num_negatives": len(negatives[0])}
    return Case(scores, None, expected, *values, settings=settings, inputs=more)


TIES = {
    "constant scorer, target listed first": Case([[0.25] * 5], [0], harmonic(5) / 5, 1, 1 / 5, top_k=10),
    "constant scorer, target in the middle": Case([[0.25] * 5], [2], harmonic(5) / 5, 1, 1 / 5, top_k=10),
    "constant scorer, cut inside the tie": Case([[0.25] * 5], [4], harmonic(3) / 5, 1, 0, top_k=3),
    "constant scorer, zeros": Case([[0.0] * 6], [4], harmonic(6) / 6, 1, 1 / 6),
    "constant scorer, minus infinity": Case([[-INF] * 6], [4], harmonic(6) / 6, 1, 1 / 6),
    "constant scorer, 99 negatives": sampled([0.0], [[0.0] * 99], harmonic(100) / 100, 1, 1 / 100),
    "constant scorer, several relevant": Case(  # first of 3 in 5 places: 6, 3 and 1 of 10 draws
        [[1] * 5], [[0, 0, 1, 1, 1]], (6 * 1 + 3 * 1 / 2 + 1 * 1 / 3) / 10, 1, 1 / 3
    ),
    "several relevant tied, with a cut": Case(  # first of 2 in places 2 to 5: 3, 2 and 1 of 6 draws, the last one cut
        [[0.9, 0.4, 0.4, 0.4, 0.4]], [[0, 1, 1, 0, 0]], (3 * 1 / 2 + 2 * 1 / 3) / 6, 1 / 2, 0, top_k=3
    ),
    "renamed document": Case([[0.5] * 3] * 2, [[1, 0, 0], [0, 0, 1]], 1 / 3, 1, 0, [1 / 3, 1 / 3], top_k=1),
    "mean of 1 / rank is not 1 / mean rank": Case([[2.0, 2.0, -1.0]], [0], (1 + 1 / 2) / 2, 1, 1 / 2),
    "tie below the top": Case([[0.9, 0.8, 0.3, 0.3, 0.3]], [3], (1 / 3 + 1 / 4 + 1 / 5) / 3, 1 / 3, 1 / 5),
    "saturated output": Case([[1.0, 1.0, 1.0, 2.0]], [0], (1 / 2 + 1 / 3 + 1 / 4) / 3, 1 / 2, 1 / 4, top_k=20),
    "saturated output, infinite": Case([[1.0, 1.0, 1.0, INF]], [1], (1 / 2 + 1 / 3 + 1 / 4) / 3, 1 / 2, 1 / 4),
}
NANS = {
    "only NaN": untied([[NAN] * 4, [0.1, 0.9, 0.2, 0.3]], [2, 1], (0 + 1) / 2, per_query=[0, 1], nan=1),
    "only NaN, sampled": Case([[NAN] * 4], None, 0, 0, 0, nan=1, settings={"num_negatives": 3}),
    "NaN target among minus infinities": untied([[NAN, -INF, -INF]], [0], 0, nan=1),
    "NaN of others sorted first": untied([[NAN, NAN, 0.5, 0.1]], [[0, 0, 1, 0]], 1, top_k=1),
    "NaN of others and a target of minus infinity": untied([[NAN, NAN, -INF]], [2], 1),
    "one relevant item of two is NaN": untied([[NAN, 0.2, 0.6]], [[1, 1, 0]], 1 / 2),
    "all relevant items NaN are a miss, not an empty query": untied(
        [[NAN, NAN, 0.6], [1, 0, 0]], [[1, 1, 0], [1, 0, 0]], 1 / 2, nan=1, settings={"empty_target_action": "skip"}
    ),
    "NaN in a flat list": untied([NAN, 0.5, NAN, 0.1], [0, 1, 1, 0], 1 / 2, nan=1, inputs={"indexes": [0, 0, 1, 1]}),
}
OFF_BY_ONE = {
    "value at k is not that at k + 1": Case([[0.1, 0.8, 0.5]], [2], [0, 1 / 2], top_k=[1, 2]),
    "rank at the cut counts": untied([[3.0, 2.0, 1.0]], [2], 1 / 3, top_k=3),
    "rank 1 at k = 1": untied([[3.0, 2.0, 1.0]], [0], 1, top_k=1),
    "rank one beyond the cut": untied([[3.0, 2.0, 1.0]], [2], 0, top_k=2),
    "last possible rank of a tie at the cut": Case([[3, 2, 2]], [1], [1 / 4, (1 / 2 + 1 / 3) / 2], top_k=[2, 3]),
}
AGGREGATION = {
    "not label ranking average precision": untied([[0.9, 0.8, 0.7, 0.2, 0.1]], [[0, 1, 1, 0, 0]], 1 / 2),
    "hits are not added up": untied([[5.0, 4.0, 3.0]], [[1, 1, 1]], 1),
    "only the first hit moves the curve": Case(
        [[0.9, 0.8, 0.7, 0.6]], [[0, 1, 0, 1]], [0, 1 / 2, 1 / 2, 1 / 2], top_k=[1, 2, 3, 4]
    ),
    "not 1 / mean rank": untied([[0.9, 0.5, 0.1]] * 2, [0, 2], (1 + 1 / 3) / 2, per_query=[1, 1 / 3]),
    "nothing relevant is not rank 1": untied(
        [[0.9, 0.1], [0.3, 0.2]], [[0, 0], [0, 1]], (0 + 1 / 2) / 2, per_query=[0, 1 / 2]
    ),
    "nothing relevant in a flat list": untied(
        [0.3, 0.2, 0.9], [0, 1, 0], (1 / 2 + 0) / 2, per_query=[1 / 2, 0], inputs={"indexes": [0, 0, 1]}
    ),
    "a query counts once, however many items it has": untied(
        [3, 2, 1, 2, 1], [0, 0, 1, 1, 0], (1 / 3 + 1) / 2, inputs={"indexes": [4, 4, 4, 9, 9]}
    ),
    "a query without a hit stays in the mean": untied([[2, 1, 0]] * 3, [2, 0, 2], 1 / 3, top_k=2),
}
LABELS = {
    "ignored positions": Case([[0.9, 0.1], [0.7, 0.2]], [-100, 1], 1 / 2, settings={"ignore_index": -100}),
    "ignored positions of sequences": Case(
        [[[0.9, 0.1], [0.7, 0.2]], [[1, 2], [3, 4]]], [[-100, 1], [1, -100]], 3 / 4, settings={"ignore_index": -100}
    ),
    "ignored position with NaN scores": Case([[NAN, NAN], [2, 1]], [-1, 1], 1 / 2, settings={"ignore_index": -1}),
    "graded labels": untied([[0.9, 0.5, 0.1]], [[0, 2, 1]], 1 / 2),
    "grade of 2 only": untied([[0.9, 0.5, 0.1]], [[0, 0, 2]], 1 / 3),
}
PRECISION = {
    "bfloat16 collapses scores": Case([[1.002, 1.0]], [0], (1 + 1 / 2) / 2, 1, 1 / 2, dtype=torch.bfloat16),
    "the same in float32": untied([[1.002, 1.0]], [0], 1, dtype=torch.float32),
    "float64 differences": untied([[0.3, 0.300000000001, 0.1]], [1], 1, dtype=torch.float64),
    "float64 differences, the other way": untied([[0.3, 0.300000000001, 0.1]], [0], 1 / 2, dtype=torch.float64),
    "float16": untied([[0.9, 0.1], [0.2, 0.7]], [0, 0], (1 + 1 / 2) / 2, per_query=[1, 1 / 2], dtype=torch.float16),
    "integer scores": Case(
        [[1, 1, 0], [0, 1, 1]], [0, 0], 13 / 24, 2 / 3, 5 / 12, [(1 + 1 / 2) / 2, 1 / 3], dtype=torch.int64
    ),
    "integers that floats do not tell apart": untied([[2**53, 2**53 + 1]], [0], 1 / 2, dtype=torch.int64),
    "bytes": untied([[200, 100, 255]], [0], 1 / 2, dtype=torch.uint8),
    "bool scores": Case([[True, True, False]], [0], (1 + 1 / 2) / 2, 1, 1 / 2, dtype=torch.bool),
}
SAMPLING = {
    "the target among the negatives": sampled([0.8], [[0.8, 0.1, 0.2]], 1, candidates=[[7, 7, 3, 5]]),
    "the target among the negatives, scored above itself": sampled([0.8], [[0.9, 0.1]], 1, candidates=[[7, 7, 3]]),
    "without ids it is an honest tie": sampled([0.8], [[0.8, 0.1, 0.2]], (1 + 1 / 2) / 2, 1, 1 / 2),
    "repeated negatives": sampled([0.5], [[0.7, 0.7, 0.7, 0.1]], 1 / 2, candidates=[[4, 9, 9, 9, 2]]),
    "repeated negatives tied": sampled([0.5], [[0.5, 0.5, 0.1]], 3 / 4, 1, 1 / 2, candidates=[[4, 9, 9, 2]]),
    "repeats without ids": sampled([0.5], [[0.7, 0.7, 0.7, 0.1]], 1 / 4),
    "known positives among the negatives": sampled(
        [0.5], [[0.9, 0.3, 0.2]], 1, candidates=[[20, 21, 22, 23]], exclude=[[21]]
    ),
    "known positives that list the target": sampled(
        [0.5], [[0.9, 0.6, 0.2]], 1 / 2, candidates=[[20, 21, 22, 23]], exclude=[[20, 21, 21, -1]]
    ),
    "known positives kept": sampled([0.5], [[0.9, 0.3, 0.2]], 1 / 2, candidates=[[20, 21, 22, 23]]),
}
MASKING = {
    "padding item": untied([[9.0, 0.1, 0.5, 0.3]], [2], 1, inputs={"exclude": [0]}),
    "history": untied([[0.9, 0.8, 0.7, 0.1]], [2], 1, inputs={"exclude": [[0, 1]]}),
    "history as a mask": untied([[0.9, 0.8, 0.7, 0.1]], [2], 1, inputs={"exclude": [[True, True, False, False]]}),
    "target in the history": untied([[2.0, 1.0, 3.0, 0.5]], [2], 1, inputs={"exclude": [[2, 3]]}),
    "target in the mask": untied([[2.0, 1.0, 3.0, 0.5]], [2], 1, inputs={"exclude": [[False, False, True, True]]}),
    "target is the padding item": untied([[2.0, 3.0]], [0], 1 / 2, inputs={"exclude": [0]}),
    "relevant items in the history": untied([[4, 3, 2, 1]], [[0, 1, 0, 1]], 1 / 2, inputs={"exclude": [[1, 3]]}),
    "union of two filters": untied([[0.9, 0.8, 0.7, 0.6]], [3], 1 / 2, inputs={"exclude": [[0, 1]]}),
    "one filter of two": untied([[0.9, 0.8, 0.7, 0.6]], [3], 1 / 3, inputs={"exclude": [[0, -1]]}),
    "negative logits": untied([[-3.0, -1.0, -2.0], [0.0, -5.0, -1.0]], [1, 0], 1, per_query=[1, 1]),
    "negative logits, relevance": untied([[-3.0, -1.0, -2.0]], [[1, 0, 1]], 1 / 2),
    "negative logits, flat": untied([-3.0, -1.0, -2.0], [0, 0, 1], 1 / 2, inputs={"indexes": [0, 0, 0]}),
    "padded lists": untied([[0.0, -1.0, 0.0]], [[0, 1, 0]], 1 / 2, inputs={"mask": [[True, True, False]]}),
}
API = {
    "values of queries, not only a mean": untied(
        [[4, 3, 2, 1]] * 3, [0, 1, 3], (1 + 1 / 2 + 1 / 4) / 3, per_query=[1, 1 / 2, 1 / 4]
    ),
}
TABLES = {
    "ties": TIES,
    "nan": NANS,
    "off by one": OFF_BY_ONE,
    "aggregation": AGGREGATION,
    "labels": LABELS,
    "precision": PRECISION,
    "sampling": SAMPLING,
    "masking": MASKING,
    "api": API,
}
CASES = [pytest.param(case, id=f"{kind}: {name}") for kind, table in TABLES.items() for name, case in table.items()]


def warned_of_nan(case: Case, function: Callable[[], Any]) -> Any:
    """Call, and check that targets without a score are warned of with their number, and nothing else is."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function()
    assert len(caught) == (case.nan > 0)
    told = f"NaN in {case.nan} {'query' if case.nan == 1 else 'queries'};"
    assert all(told in str(warning.message) for warning in caught)
    return result


@pytest.mark.parametrize("case", CASES)
def test_reported_scores_have_the_value_by_hand(case: Case):
    scores = torch.tensor(case.scores, dtype=case.dtype)
    target = None if case.target is None else torch.tensor(case.target)
    inputs = {name: torch.tensor(value) for name, value in case.inputs.items()}
    single = case.top_k if isinstance(case.top_k, int) else None

    def function_of(function: Callable, top_k: int | None = single, **more: Any) -> Any:
        return warned_of_nan(case, lambda: function(scores, target, top_k, **case.settings, **more, **inputs).tolist())

    def metric_of(**more: Any) -> Any:
        metric = MeanReciprocalRank(case.top_k, **case.settings, **more)
        metric.update(scores, target, **inputs)
        return warned_of_nan(case, metric.compute)

    if isinstance(case.top_k, list):
        values = dict(zip(case.top_k, case.expected, strict=True))
        assert {k: function_of(mean_reciprocal_rank, k) for k in values} == close(values)
        assert {name: value.item() for name, value in metric_of().items()} == close(
            {f"mrr@{k}": value for k, value in values.items()}
        )
        return
    for ties, value in [
        ("expected", case.expected),
        ("optimistic", case.optimistic),
        ("pessimistic", case.pessimistic),
    ]:
        if value is not None:
            assert metric_of(ties=ties).item() == close(value)
            assert function_of(mean_reciprocal_rank, ties=ties) == close(value)
    if case.per_query is not None:
        assert function_of(reciprocal_rank) == close(case.per_query)


# retrieved, relevant, top_k, reciprocal rank of each query
RETRIEVED = {
    "positions count from 1, and an absent document counts 0": (
        [["x", "a", "y"], ["b", "c"]],
        [["y"], ["y"]],
        None,
        [1 / 3, 0],
    ),
    "the last position is within a cut of the length": ([["x", "a", "y"]], [["y"]], 3, [1 / 3]),
    "the position after the cut is not": ([["x", "a", "y"]], [["y"]], 2, [0]),
    "repeats use up positions": ([["n3", "n3", "n1"]], [["n1"]], None, [1 / 3]),
    "of a repeated hit the first counts": ([["n3", "n1", "n1"]], [["n1"]], None, [1 / 2]),
    "hits are not added up": ([["u", "v", "w", "x"]], [["v", "x"]], None, [1 / 2]),
    "the order of the relevant ids is nothing": ([["u", "v", "w", "x"]], [["x", "v"]], None, [1 / 2]),
    "misses stay in the mean": ([["a"], ["b"], ["c"]], [["a"], ["x"], ["y"]], None, [1, 0, 0]),
    "an empty list is a miss": ([["a"], []], [["a"], ["a"]], None, [1, 0]),
    "a miss is exactly 0": ([["e1", "e2"]], [["e9"]], None, [0]),
    "item 0 is not retrieved by padding": ([[5, 3]], [[0]], 4, [0]),
    "item 0 is not retrieved by a longer list beside it": ([[5], [5, 3, 0]], [[0], [0]], None, [0, 1 / 3]),
}


@pytest.mark.parametrize("name", RETRIEVED)
def test_reported_lists_have_the_value_by_hand(name: str):
    retrieved, relevant, top_k, per_query = RETRIEVED[name]
    ids = {item: number for number, item in enumerate(sorted({*itertools.chain(*retrieved, *relevant)}))}
    padded = [
        torch.tensor([[ids[i] for i in row] + [-1] * (4 - len(row)) for row in lists])
        for lists in (retrieved, relevant)
    ]
    for ranks in (rank_retrieved(retrieved, relevant), rank_retrieved(*padded)):
        assert reciprocal_rank(ranks, top_k=top_k).tolist() == per_query  # single divisions, zeros: exact
        metric = MeanReciprocalRank(top_k)
        metric.update(ranks)
        assert metric.compute().item() == close(sum(per_query) / len(per_query))
        assert (metric.compute() == 0) == (sum(per_query) == 0)


def test_ids_of_numpy_or_one_id_a_query_are_ids():
    numpy = pytest.importorskip("numpy")
    for retrieved, relevant in [
        ([[8, 3]], [3]),
        ([numpy.array([8, 3])], [[3]]),
        ([[8, 3]], [numpy.int64(3)]),
        ([[8, 3]], numpy.array([[3]]).tolist()),
    ]:
        assert reciprocal_rank(rank_retrieved(retrieved, relevant)).tolist() == [1 / 2]


def test_per_query_values_can_be_aggregated_in_any_way():
    values = reciprocal_rank(torch.tensor([[4, 3, 2, 1]] * 3), torch.tensor([0, 1, 3])).tolist()
    assert (sum(values) / 3, statistics.median(values), min(values), max(values)) == (7 / 12, 1 / 2, 1 / 4, 1)


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda", marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
        ),
    ],
)
def test_everything_made_inside_is_on_the_device_of_the_scores(device: str):
    metric = MeanReciprocalRank([1, 2, 3]).to(device)
    scores, target = torch.tensor([[0.1, 0.9, 0.4], [0.8, 0.2, 0.5]]), torch.tensor([2, 1])
    metric.update(scores.to(device), target.to(device))
    values = metric.compute()
    assert {value.device.type for value in values.values()} == {device}
    by_hand = {"mrr@1": 0, "mrr@2": (1 / 2) / 2, "mrr@3": (1 / 2 + 1 / 3) / 2}
    assert {name: value.item() for name, value in values.items()} == close(by_hand)


def test_many_queries_of_a_flat_list():
    queries, documents = 20_000, 5  # the relevant document of query q is at rank 1 + q mod 5
    labels = torch.arange(documents).expand(queries, -1) == (torch.arange(queries) % documents)[:, None]
    scores = -torch.arange(documents).repeat(queries)
    indexes = torch.arange(queries).repeat_interleave(documents)
    for ties in ("expected", "optimistic", "pessimistic"):
        metric = MeanReciprocalRank(ties=ties)
        metric.update(scores, labels.flatten(), indexes=indexes)
        assert metric.compute().item() == close(harmonic(5) / 5)


def falling(columns: int, rows: int) -> torch.Tensor:
    """Scores where the rank of column c is c + 1."""
    return -torch.arange(columns, dtype=torch.float32).expand(rows, columns)


def seen(*batches: list[int], columns: int = 5, **settings: Any) -> MeanReciprocalRank:
    """Return a metric after an update for each batch of target columns."""
    metric = MeanReciprocalRank(**settings)
    for target in batches:
        metric.update(falling(columns, len(target)), torch.tensor(target, dtype=torch.long))
    return metric


@pytest.mark.parametrize("columns", [100, 2000])
def test_the_state_does_not_grow(columns: int):
    metric = MeanReciprocalRank()
    size = {name: state.shape for name, state in metric.metric_state.items()}
    stored = len(pickle.dumps(metric))
    for _ in range(50):
        metric.update(falling(columns, 8), torch.tensor([0, 1, 2, 3] * 2))
        assert {name: state.shape for name, state in metric.metric_state.items()} == size
    assert len(pickle.dumps(metric)) <= stored + 16  # nor does anything else: the count of updates is a larger number
    assert metric.compute().item() == close((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)


def test_forward_gives_the_value_of_the_batch_and_compute_that_of_all_queries():
    metric = MeanReciprocalRank()
    assert metric(falling(3, 2), torch.tensor([0, 1])).item() == close((1 + 1 / 2) / 2)
    assert metric(falling(3, 1), torch.tensor([2])).item() == close(1 / 3)
    assert metric.compute().item() == close((1 + 1 / 2 + 1 / 3) / 3)
    assert metric(falling(9, 1), torch.tensor([8])).item() == close(1 / 9)
    assert metric.compute().item() == close((1 + 1 / 2 + 1 / 3 + 1 / 9) / 4)


@pytest.mark.parametrize("compute_groups", [True, False])
def test_members_of_a_collection_keep_their_own_values(compute_groups: bool):
    members = {"all": MeanReciprocalRank(), "at 2": MeanReciprocalRank(2), "hits": HitRate(3)}
    collection = MetricCollection(members, compute_groups=compute_groups)
    collection.update(falling(3, 1), torch.tensor([2]))
    for _ in range(2):
        values = {name: value.item() for name, value in collection.compute().items()}
        assert values == close({"all": 1 / 3, "at 2": 0, "hits": 1})
    collection.update(falling(3, 1), torch.tensor([1]))
    values = {name: value.item() for name, value in collection.compute().items()}
    assert values == close({"all": (1 / 3 + 1 / 2) / 2, "at 2": (0 + 1 / 2) / 2, "hits": 1})


def test_tie_rules_of_a_collection_stay_apart_where_the_first_batch_has_no_ties():
    collection = MetricCollection({ties: MeanReciprocalRank(ties=ties) for ties in ("optimistic", "pessimistic")})
    collection.update(falling(3, 1), torch.tensor([1]))
    collection.update(torch.zeros(1, 3), torch.tensor([1]))
    values = {name: value.item() for name, value in collection.compute().items()}
    assert values == close({"optimistic": (1 / 2 + 1) / 2, "pessimistic": (1 / 2 + 1 / 3) / 2})


def test_reset_forgets_the_epoch_before():
    metric = seen([0], columns=2)
    assert metric.compute() == 1
    metric.reset()
    metric.update(falling(4, 1), torch.tensor([3]))
    assert metric.compute() == 1 / 4
    metric.reset()
    metric.update(torch.full((1, 2), NAN), torch.tensor([0]))
    metric.reset()
    metric.update(falling(4, 1), torch.tensor([1]))
    assert metric.compute() == 1 / 2  # and no warning of the NaN


@pytest.mark.parametrize("top_k", [None, 10, [1, None]])
def test_compute_before_update_is_0_with_a_warning(top_k: Any):
    for metric in (MeanReciprocalRank(top_k), seen([0], top_k=top_k)):
        metric.reset()
        with pytest.warns(UserWarning, match="was called before the ``update`` method"):
            value = metric.compute()
        assert all(v == 0 for v in (value.values() if isinstance(value, dict) else [value]))


def pickled(metric: MeanReciprocalRank) -> MeanReciprocalRank:
    return pickle.loads(pickle.dumps(metric))


def saved(metric: MeanReciprocalRank) -> MeanReciprocalRank:
    file = io.BytesIO()
    torch.save(metric, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [pickled, saved, copy.deepcopy, MeanReciprocalRank.clone], ids=lambda f: f.__name__)
def test_a_copy_goes_on_where_the_original_was(copied: Callable):
    metric = seen([1], columns=2)
    other = copied(metric)
    other.update(falling(2, 1), torch.tensor([0]))
    assert other.compute() == (1 / 2 + 1) / 2
    assert metric.compute() == 1 / 2


# The target columns of each update of each process, all of rank column + 1; the mean of all queries.
PROCESSES = {
    "different numbers of updates": ([[[0], [1]], [[3]]], (1 + 1 / 2 + 1 / 4) / 3),
    "a process without updates": ([[[0], [1]], []], (1 + 1 / 2) / 2),
    "an empty batch": ([[[0], []], [[3]]], (1 + 1 / 4) / 2),
    "last batches of different size": ([[[1, 1, 1]], [[0]]], (3 * 1 / 2 + 1) / 4),
    "batches of different size and number": ([[[1, 1, 1], [4]], [[0]], [[2, 2]]], (3 / 2 + 1 / 5 + 1 + 2 / 3) / 7),
    "each process holds all queries": ([[[0, 2]], [[0, 2]]], (1 + 1 / 3) / 2),
    "each of three processes holds all queries": ([[[0, 2]]] * 3, (1 + 1 / 3) / 2),
}


@pytest.mark.parametrize("name", PROCESSES)
def test_processes_add_up_to_the_mean_over_queries(name: str):
    processes, by_hand = PROCESSES[name]
    for order in itertools.permutations(processes):
        first, *others = [seen(*batches) for batches in order]
        for other in others:
            if first.update_count:
                first.compute()  # a value computed before must not stay
            first.merge_state(other)
        assert first.update_count == sum(map(len, processes))
        assert first.compute().item() == close(by_hand)
