"""Bad input is refused with a message that names the argument, what was expected and what came; nothing changes."""

import functools
import re

import numpy as np
import pytest
import torch

from mrr_torch import (
    HitRate,
    MeanReciprocalRank,
    NormalizedDCG,
    Ranks,
    mean_reciprocal_rank,
    rank_target,
    reciprocal_rank,
)

SCORES = torch.tensor([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]])
TARGET = torch.tensor([0, 1])
IDS = torch.tensor([[5, 6, 7], [7, 8, 9]])
MASK = torch.ones(2, 3, dtype=torch.bool)
LABELS = torch.tensor([[0, 1, 0], [1, 0, 0]])
FLAT = {"indexes": torch.tensor([0, 0, 1])}
NUMBERS = [0, -1, 2.5, True]
BETWEEN = "expected a number between 0 and 1, or None"
LEVELS = [0, 1, 95, -0.5, float("nan"), "0.95", True]
SETTINGS_OF_FUNCTIONS = ("top_k", "ties", "empty_target_action", "ignore_index", "num_negatives")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"top_k": 0}, ValueError, "top_k: expected a positive int, got 0"),
        ({"top_k": -1}, ValueError, "top_k: expected a positive int, got -1"),
        ({"top_k": 2.5}, TypeError, "top_k: expected a positive int, got 2.5"),
        ({"top_k": float("nan")}, TypeError, "top_k: expected a positive int, got nan"),
        ({"top_k": True}, TypeError, "top_k: expected a positive int, got True"),
        ({"top_k": "10"}, TypeError, "top_k: expected a positive int, got '10'"),
        ({"top_k": [5, 0]}, ValueError, "top_k: expected a positive int, got 0"),
        ({"top_k": []}, ValueError, "top_k: expected one or more different cut-offs, got []"),
        ({"top_k": [3, 3]}, ValueError, "top_k: expected one or more different cut-offs, got [3, 3]"),
        ({"ties": "average"}, ValueError, "ties: expected one of 'expected', 'optimistic', 'pessimistic'"),
        ({"ties": None}, ValueError, "ties: expected one of"),
        ({"empty_target_action": "drop"}, ValueError, "empty_target_action: expected one of 'neg', 'pos'"),
        ({"ignore_index": 1.5}, TypeError, "ignore_index: expected an int or None, got 1.5"),
        ({"num_negatives": 0}, ValueError, "num_negatives: expected a positive int, got 0"),
        ({"num_negatives": True}, TypeError, "num_negatives: expected a positive int, got True"),
        ({"top_k": float("inf")}, TypeError, "top_k: expected a positive int, got inf"),
        ({"top_k": [5, 2.5]}, TypeError, "top_k: expected a positive int, got 2.5"),
        ({"ties": "random"}, ValueError, "ties: expected one of"),
        ({"ties": 1}, ValueError, "ties: expected one of"),
        ({"empty_target_action": "zero"}, ValueError, "empty_target_action: expected one of"),
        ({"empty_target_action": None}, ValueError, "empty_target_action: expected one of"),
        ({"empty_target_action": 0}, ValueError, "empty_target_action: expected one of"),
        ({"ignore_index": "-100"}, TypeError, "ignore_index: expected an int or None, got '-100'"),
        ({"ignore_index": True}, TypeError, "ignore_index: expected an int or None, got True"),
        ({"num_negatives": -1}, ValueError, "num_negatives: expected a positive int, got -1"),
        ({"num_negatives": 2.5}, TypeError, "num_negatives: expected a positive int, got 2.5"),
        *(({"num_queries": n}, (TypeError, ValueError), "num_queries: expected a positive int") for n in NUMBERS),
        *(
            ({"confidence": c}, (TypeError, ValueError), "confidence: expected a number between 0 and 1")
            for c in LEVELS
        ),
        ({"catalogue_size": 100}, ValueError, "catalogue_size: expected None without num_negatives, got 100"),
        ({"catalogue_size": 99, "num_negatives": 99}, ValueError, "catalogue_size: expected at least 1 "),
        ({"catalogue_size": -1, "num_negatives": 99}, ValueError, "catalogue_size: expected a positive int, got -1"),
        ({"no_such_argument": 1}, ValueError, "no_such_argument"),
    ],
    ids=str,
)
def test_settings_are_checked_when_the_metric_is_made(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)) as caught:
        MeanReciprocalRank(**arguments)
    assert "no_such" in message or re.match(r"^\w+: expected .*, got ", str(caught.value))
    name, value = next(iter(arguments.items()))
    if name in SETTINGS_OF_FUNCTIONS and not isinstance(value, list):  # functions take one cut-off
        for function in (reciprocal_rank, mean_reciprocal_rank):
            with pytest.raises(error, match=rf"^{name}: expected .*, got "):
                function(SCORES, TARGET, **arguments)


@pytest.mark.parametrize("metric", [HitRate, NormalizedDCG])
def test_hit_rate_and_ndcg_ask_for_a_cut_off(metric):
    for arguments in ((), (None,), ([10, None],)):
        with pytest.raises(ValueError, match="top_k: expected a positive int or a sequence of them"):
            metric(*arguments)


def test_integers_of_numpy_are_integers():
    assert MeanReciprocalRank(np.int64(2))(SCORES, TARGET) == 1 / 4


BAD_UPDATES = [
    ((SCORES, torch.tensor([0, 1, 2])), {}, ValueError, "target: expected shape (2,) (a column per query) or (2, 3)"),
    ((SCORES, torch.tensor([[0], [1]])), {}, ValueError, "target: expected shape (2,)"),
    ((SCORES, torch.tensor([0.0, 1.0])), {}, TypeError, "target: expected integer ids"),
    ((SCORES, MASK.float()), {}, TypeError, "target: expected bool or integer relevance, got torch.float32"),
    ((SCORES, torch.tensor([True, False])), {}, TypeError, "target: expected integer ids"),
    ((SCORES, [0, 1]), {}, TypeError, "target: expected a tensor, got list"),
    ((SCORES,), {}, ValueError, "target: expected the column of each query's relevant item"),
    ((SCORES.tolist(), TARGET), {}, TypeError, "preds: expected a tensor of scores, got list"),
    (
        (SCORES.to(torch.complex64), TARGET),
        {},
        TypeError,
        "preds: expected real scores, of a type that torch compares, got torch.complex64",
    ),
    ((SCORES.to(torch.float8_e4m3fn), TARGET), {}, TypeError, "preds: expected real scores, of a type that torch"),
    ((torch.tensor([[1, 2]], dtype=torch.uint16), TARGET[:1]), {}, TypeError, "preds: expected real scores, of a"),
    ((torch.zeros(2, 0), TARGET), {}, ValueError, "preds: expected at least one score per query"),
    ((torch.tensor(1.0), torch.tensor(0)), {}, ValueError, "preds: expected at least one score per query"),
    ((SCORES, torch.tensor([0, 3])), {}, ValueError, "target: expected ids in 0..2, got 3"),
    ((SCORES, torch.tensor([-1, 0])), {}, ValueError, "target: expected ids in 0..2, got -1"),
    ((SCORES, torch.tensor([[0, -1, 1], [0, 0, 1]])), {}, ValueError, "target: expected relevance >= 0"),
    ((SCORES, TARGET), {"exclude": torch.tensor([0.5])}, TypeError, "exclude: expected a tensor of integer ids or"),
    ((SCORES, TARGET), {"exclude": torch.tensor([3])}, ValueError, "exclude: expected ids in 0..2"),
    ((SCORES, TARGET), {"exclude": torch.zeros(3, 1).long()}, ValueError, "exclude: expected shape (2, 'H'), (H,)"),
    ((SCORES, TARGET), {"exclude": MASK[:1]}, ValueError, "exclude: expected shape (2, 3), got shape (1, 3)"),
    ((SCORES, TARGET), {"mask": MASK.long()}, TypeError, "mask: expected a bool tensor, got torch.int64"),
    ((SCORES, TARGET), {"mask": MASK[:, :2]}, ValueError, "mask: expected shape (2, 3), got shape (2, 2)"),
    ((SCORES, TARGET), {"candidates": IDS.float()}, TypeError, "candidates: expected a tensor of integer ids"),
    ((SCORES, TARGET), {"candidates": IDS[:, :2]}, ValueError, "candidates: expected shape (2, 3), got shape (2, 2)"),
    ((SCORES, MASK), {"indexes": IDS}, ValueError, "preds: expected shape (T,) with indexes, got shape (2, 3)"),
    ((SCORES[0], MASK[0]), {"indexes": IDS[0, :2]}, ValueError, "indexes: expected shape (3,), got shape (2,)"),
    ((SCORES[0], MASK[0]), {"indexes": IDS[0].float()}, TypeError, "indexes: expected a tensor of integer ids"),
    ((SCORES[0], MASK[0]), {"indexes": IDS[0], "candidates": IDS[0, :2]}, ValueError, "candidates: expected sh"),
    ((SCORES[0],), {"indexes": IDS[0]}, TypeError, "target: expected bool or integer relevance, got NoneType"),
    ((rank_target(SCORES, TARGET), TARGET), {}, ValueError, "target: expected None, since preds are already ranks"),
    ((Ranks(TARGET, TARGET, TARGET, TARGET[:1]),), {}, ValueError, "preds.candidates: expected shape (2,)"),
    ((Ranks(TARGET, -TARGET, TARGET, TARGET),), {}, ValueError, "preds.tied: expected counts >= 0, got -1"),
    (
        (Ranks(TARGET, TARGET, -50 * TARGET, TARGET),),
        {},
        ValueError,
        "preds.relevant: expected counts or the codes 0..-10",
    ),
    ((Ranks(TARGET.float(), *[TARGET] * 3),), {}, TypeError, "preds.higher: expected an integer tensor"),
]


# The same with settings of the metric.
BAD_UPDATES_OF_SETTINGS = [
    (*row, {})
    for row in [
        *BAD_UPDATES,
        ((SCORES, torch.tensor([0])), {}, ValueError, "target: expected shape (2,) (a column per query)"),
        ((SCORES, LABELS[:, :2]), {}, ValueError, "target: expected shape (2,) (a column per query) or (2, 3)"),
        ((SCORES, LABELS.float()), {}, TypeError, "target: expected bool or integer relevance, got torch.float32"),
        ((SCORES[:1], torch.tensor([[-1, 1, 0]])), {}, ValueError, "target: expected relevance >= 0"),
        ((SCORES[0], torch.tensor([0, 1, -1])), FLAT, ValueError, "target: expected relevance >= 0"),
        ((SCORES[0], LABELS[0]), {"indexes": torch.tensor([0, 0])}, ValueError, "indexes: expected shape (3,)"),
        ((SCORES, LABELS), {"mask": torch.tensor([True, False, True])}, ValueError, "mask: expected"),
        ((SCORES, LABELS), {"mask": torch.ones(2, 3)}, TypeError, "mask: expected a bool tensor, got torch.float32"),
        ((SCORES, TARGET), {"exclude": torch.tensor([[0], [1], [2]])}, ValueError, "exclude: expected shape"),
        ((SCORES, TARGET), {"exclude": torch.tensor([[0], [3]])}, ValueError, "exclude: expected ids in 0..2"),
        (
            (SCORES, TARGET),
            {"exclude": torch.tensor([True, False, True])},
            ValueError,
            "exclude: expected shape (2, 3)",
        ),
        (
            (SCORES, TARGET),
            {"query_ids": TARGET},
            ValueError,
            "query_ids: expected None without num_queries, got Tensor",
        ),
    ]
]
BAD_UPDATES_OF_SETTINGS += [
    (arguments, options, error, message, settings)
    for settings, arguments, options, error, message in [
        ({"ignore_index": -100}, (SCORES, torch.tensor([-100, -1])), {}, ValueError, "target: expected ids in 0..2"),
        (
            {"ignore_index": -1},
            (SCORES, torch.tensor([[0, 1, 0], [1, 0, -2]])),
            {},
            ValueError,
            "target: expected relevance >= 0",
        ),
        (
            {"empty_target_action": "error"},
            (SCORES, torch.tensor([[0, 0, 0], [0, 1, 0]])),
            {},
            ValueError,
            "target: expected a relevant item in every query",
        ),
        (
            {"num_negatives": 3},
            (SCORES, TARGET),
            {},
            ValueError,
            "preds: expected at least 4 columns with num_negatives=3",
        ),
        (
            {"num_negatives": 1},
            (SCORES,),
            {},
            ValueError,
            "target: expected the target's column, unless preds has exactly 2 columns",
        ),
        *(
            (
                {"num_queries": 5},
                (SCORES, TARGET),
                {} if ids is None else {"query_ids": ids},
                error,
                f"query_ids: {text}",
            )
            for ids, error, text in [
                (None, ValueError, "expected the ids of the queries, with num_queries, got NoneType"),
                (torch.tensor([0, 5]), ValueError, "expected ids in 0..4 (num_queries=5)"),
                (torch.tensor([0, -1]), ValueError, "expected ids in 0..4 (num_queries=5)"),
                (torch.tensor([0]), ValueError, "expected shape (2,), got shape (1,)"),
                (torch.tensor([0.0, 1.0]), TypeError, "expected a tensor of integer ids"),
            ]
        ),
    ]
]


def good(settings):
    """Return a valid update for a metric of these settings."""
    scores = torch.tensor([[0.3, 0.2, 0.1, 0.0], [0.0, 0.3, 0.2, 0.1]])
    return {"preds": scores, "target": TARGET} | ({"query_ids": TARGET} if "num_queries" in settings else {})


@pytest.mark.filterwarnings("ignore:Only 2 of 5 queries")
@pytest.mark.parametrize(
    ("arguments", "options", "error", "message", "settings"),
    BAD_UPDATES_OF_SETTINGS,
    ids=lambda case: str(case)[:60],
)
def test_a_bad_update_names_the_argument_and_changes_nothing(arguments, options, error, message, settings):
    metric = MeanReciprocalRank(**settings)
    metric.update(**good(settings))
    value, state = metric.compute(), {name: tensor.clone() for name, tensor in metric.metric_state.items()}
    calls = [metric.update, metric.forward]
    if "num_queries" not in settings and "query_ids" not in options:
        calls += [functools.partial(function, **settings) for function in (reciprocal_rank, mean_reciprocal_rank)]
    for call in calls:
        with pytest.raises(error, match=re.escape(message)) as caught:
            call(*arguments, **options)
        assert re.match(r"^[\w.]+: expected .*, got ", str(caught.value))
        assert str(caught.value).startswith(message.split(":")[0])
        assert all(torch.equal(metric.metric_state[name], tensor) for name, tensor in state.items())
        assert metric.update_count == 1
        assert torch.equal(metric.compute(), value)
    metric.update(**good(settings))
    assert metric.compute() == value  # twice the same queries: it still works


def test_sampled_mode_asks_for_the_target_and_its_negatives():
    metric = MeanReciprocalRank(num_negatives=3)
    with pytest.raises(ValueError, match=re.escape("preds: expected at least 4 columns with num_negatives=3")):
        metric.update(SCORES, TARGET)
    with pytest.raises(ValueError, match="target: expected the target's column, unless preds has exactly 4 columns"):
        metric.update(torch.zeros(2, 5))


def test_empty_queries_are_refused_where_they_are_errors():
    metric = MeanReciprocalRank(empty_target_action="error")
    with pytest.raises(ValueError, match=r"target: expected a relevant item in every query .* got none in 1 query"):
        metric.update(SCORES, torch.tensor([[0, 0, 0], [0, 1, 0]]))
    assert metric.update_count == 0
    with pytest.raises(ValueError, match="none in 1 query"):
        reciprocal_rank(SCORES, torch.tensor([[0, 0, 0], [0, 1, 0]]), empty_target_action="error")
