"""Bad input is refused with a message that names the argument, what was expected and what came; nothing changes."""

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
    rank_catalogue,
    rank_grouped,
    rank_relevant,
    rank_target,
    reciprocal_rank,
)

SCORES = torch.tensor([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]])
TARGET = torch.tensor([0, 1])
IDS = torch.tensor([[5, 6, 7], [7, 8, 9]])
MASK = torch.ones(2, 3, dtype=torch.bool)


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
        ({"no_such_argument": 1}, ValueError, "no_such_argument"),
    ],
    ids=str,
)
def test_settings_are_checked_when_the_metric_is_made(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        MeanReciprocalRank(**arguments)


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


@pytest.mark.parametrize(("arguments", "options", "error", "message"), BAD_UPDATES, ids=lambda case: str(case)[:60])
def test_a_bad_update_names_the_argument_and_changes_nothing(arguments, options, error, message):
    metric = MeanReciprocalRank()
    metric.update(SCORES, TARGET)
    value, state = metric.compute(), next(iter(metric.metric_state.values())).clone()
    with pytest.raises(error, match=re.escape(message)):
        metric.update(*arguments, **options)
    assert torch.equal(next(iter(metric.metric_state.values())), state)
    assert metric.update_count == 1
    assert torch.equal(metric.compute(), value)


@pytest.mark.parametrize(("arguments", "options", "error", "message"), BAD_UPDATES[:8], ids=lambda case: str(case)[:60])
def test_the_functions_refuse_what_the_metric_refuses(arguments, options, error, message):
    for function in (reciprocal_rank, mean_reciprocal_rank):
        with pytest.raises(error, match=re.escape(message)):
            function(*arguments, **options)


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


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((torch.ones(2, 4), torch.ones(5, 3), TARGET), {}, ValueError, "query_embeddings: expected shape (..., 3)"),
        (
            (torch.ones(2, 3), torch.ones(0, 3), TARGET),
            {},
            ValueError,
            "item_embeddings: expected shape (N, D), N >= 1",
        ),
        ((torch.ones(2, 3), torch.ones(3), TARGET), {}, ValueError, "item_embeddings: expected shape (N, D), N >= 1"),
        ((torch.ones(2, 3), torch.ones(5, 3).int(), TARGET), {}, TypeError, "item_embeddings: expected a floating"),
        ((torch.ones(2, 3).int(), torch.ones(5, 3), TARGET), {}, TypeError, "query_embeddings: expected a floating"),
        ((torch.ones(2, 3), torch.ones(5, 3), torch.tensor([0, 5])), {}, ValueError, "target: expected ids in 0..4"),
        ((torch.ones(2, 3), torch.ones(5, 3), TARGET[:1]), {}, ValueError, "target: expected shape (2,)"),
        (
            (torch.ones(2, 3), torch.ones(5, 3), TARGET),
            {"bias": torch.ones(4)},
            ValueError,
            "bias: expected shape (5,)",
        ),
        ((torch.ones(2, 3), torch.ones(5, 3), TARGET), {"exclude": torch.tensor([5])}, ValueError, "exclude: expected"),
    ],
    ids=lambda case: str(case)[:50],
)
def test_embeddings_are_checked(arguments, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        rank_catalogue(*arguments, **options)


def test_scores_on_another_device_than_the_metric_are_refused():
    with pytest.raises(ValueError, match="preds: expected a tensor on cpu, as the metric, got meta"):
        MeanReciprocalRank().update(SCORES.to("meta"), TARGET.to("meta"))
    for rank, labels in ((rank_target, TARGET), (rank_relevant, MASK)):
        with pytest.raises(ValueError, match="target: expected a tensor on meta, where the scores are, got cpu"):
            rank(SCORES.to("meta"), labels)
    with pytest.raises(ValueError, match="indexes: expected a tensor on cpu"):
        rank_grouped(SCORES[0], MASK[0], IDS[0].to("meta"))
