"""Ranks of runs and qrels against `oracle.py`, and what is refused."""

import math
import random
import re
import warnings
from collections import OrderedDict
from decimal import Decimal
from types import MappingProxyType

import numpy as np
import oracle
import pytest
import torch

from mrr_torch import MeanReciprocalRank, Outcome, rank_run, reciprocal_rank

# float64: sums of a handful of fractions up to 1, each rounded by less than 1e-15.
CLOSE = 1e-12
RUN = {"q1": {"d1": 0.9, "d2": 0.5, "d3": 0.1}, "q2": {"d1": 0.3}}
QRELS = {"q1": {"d2": 1}, "q2": {"d1": 1}}


def random_case(rng: random.Random) -> tuple[dict, dict]:
    levels = rng.choice([[0], [-2, -1, 0, 3], [-0.5, 0.0, 0.25, np.float32(0.25)], [2**53, 2**53 + 1]])
    special = [] if max(levels) > 9 else rng.choice([[], [math.nan], [math.inf, -math.inf, math.nan]])
    name = rng.choice([str, int, np.int64, lambda i: (i, "x"), lambda i: f"d{i}".encode()])
    documents = [name(i) for i in range(8)]

    def score() -> float:
        return rng.choice(special if special and rng.random() < 0.3 else levels)

    queries = range(rng.choice([1, 5, 130]))  # in one block, and in several
    run = {q: {d: score() for d in rng.sample(documents, rng.randint(0, 8))} for q in queries if rng.random() < 0.8}
    grades = [0, 0, 1, 2, True, np.int64(1)]
    qrels = {q: {d: rng.choice(grades) for d in rng.sample(documents, rng.randint(0, 5))} for q in queries}
    left_out = rng.sample(list(queries), len(queries) // 4)
    qrels = {q: judged for q, judged in qrels.items() if q not in left_out}
    return run, dict(rng.sample(list(qrels.items()), len(qrels)))  # in an order of its own


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("ties", ["expected", "optimistic", "pessimistic", "realistic"])
def test_runs_agree_with_the_oracle(ties: str):
    queries = 0
    for seed in range(150):
        rng = random.Random(f"{ties} {seed}")
        run, qrels = random_case(rng)
        level = rng.choice([1, 1, 2])
        ranks = rank_run(run, qrels, relevance_level=level)
        standings = [oracle.by_run(run, judged, query, level, ties) for query, judged in qrels.items()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of NaN; tested below
            values = reciprocal_rank(ranks, ties=ties).tolist()
        assert values == pytest.approx([float(oracle.value(s)) for s in standings], rel=0, abs=CLOSE), seed
        codes = {oracle.EMPTY: Outcome.EMPTY, oracle.NOT_RETRIEVED: Outcome.MISSED, oracle.NAN: Outcome.NAN}
        assert ranks.relevant.clamp(max=1).tolist() == [codes.get(s, 1) if isinstance(s, str) else 1 for s in standings]
        assert ranks.num_candidates.tolist() == [len(run.get(query, {})) for query in qrels]
        wanted = [sum(grade >= level for grade in judged.values()) for judged in qrels.values()]
        assert ranks.several.tolist() == [number > 1 for number in wanted]
        assert all(field.dtype == torch.int64 and field.shape == (len(qrels),) for field in ranks)
        queries += len(qrels)
    assert queries >= 2000


def test_runs_by_hand():
    run = {
        "second": {"a": 0.2, "b": 0.7, "c": -1.0},
        "tied": {"a": 1.0, "b": 1.0, "c": 0.0},
        "graded": {"a": 3.0, "b": 2.0, "c": 1.0},
        "not judged": {"a": 1.0},
        "not found": {"a": 1.0},
    }
    qrels = {
        "not found": {"z": 1},
        "no results": {"a": 1},
        "graded": {"b": 1, "c": 2, "z": 2},
        "tied": {"a": 1},
        "second": {"a": 1, "b": 0},
        "nothing relevant": {"a": 0},
        "nothing at all": {},
    }
    ranks = rank_run(run, qrels)
    assert reciprocal_rank(ranks).tolist() == [0, 0, 1 / 2, (1 + 1 / 2) / 2, 1 / 2, 0, 0]
    assert reciprocal_rank(ranks, ties="pessimistic").tolist() == [0, 0, 1 / 2, 1 / 2, 1 / 2, 0, 0]
    missed, empty = Outcome.MISSED, Outcome.EMPTY
    assert ranks.relevant.tolist() == [missed, missed, 1, 1, 1, empty, empty]
    assert ranks.several.tolist() == [False, False, True, False, False, False, False]
    assert reciprocal_rank(rank_run(run, qrels, relevance_level=2))[2] == torch.tensor(1 / 3)
    metric = MeanReciprocalRank(empty_target_action="skip")
    metric.update(ranks)
    assert metric.compute() == torch.tensor((1 / 2 + 3 / 4 + 1 / 2) / 5)


def test_a_nan_is_never_above_and_warned_of_where_it_is_the_relevant_one():
    run = {1: {1: math.nan, 2: 0.5}, 2: {1: math.nan, 2: 0.5}, 3: {1: math.nan, 2: 0.5, 3: 0.6}}
    ranks = rank_run(run, {1: {1: 1}, 2: {2: 1}, 3: {1: 1, 2: 1}})
    with pytest.warns(UserWarning, match="NaN in 1 query"):
        assert reciprocal_rank(ranks).tolist() == [0, 1, 1 / 2]


def test_integer_scores_are_compared_exactly():
    ranks = rank_run({"q": {"a": 2**53, "b": 2**53 + 1, "c": 2**53}}, {"q": {"a": 1}})
    assert (ranks.higher.item(), ranks.tied.item()) == (1, 1)


def test_numbers_and_mappings_of_all_kinds():
    scores = {"a": np.float32(0.5), "b": np.float64(0.25), "c": True, "d": np.int64(0), "e": np.True_}
    ranks = rank_run(MappingProxyType({"q": OrderedDict(scores)}), OrderedDict(q={"a": np.True_, "b": np.int8(0)}))
    assert (ranks.higher.item(), ranks.tied.item(), ranks.num_candidates.item()) == (2, 0, 5)


def test_no_queries_are_no_ranks():
    for run in ({}, RUN):
        ranks = rank_run(run, {})
        assert [field.shape for field in ranks] == [(0,)] * 4
    assert rank_run({}, QRELS).relevant.tolist() == [Outcome.MISSED] * 2


def test_what_is_returned_is_memory_of_its_own():
    ranks = rank_run(RUN, QRELS)
    for i, field in enumerate(ranks):
        field[0] = 70 + i
    assert [field[0].item() for field in ranks] == [70, 71, 72, 73]
    assert [field[1].item() for field in ranks] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("run", "qrels", "error", "message"),
    [
        ([RUN], QRELS, TypeError, "run: expected a dictionary {query: {document: number}}, got list"),
        (RUN, None, TypeError, "qrels: expected a dictionary {query: {document: number}}, got NoneType"),
        ({"q1": ["d1", "d2"]}, QRELS, TypeError, "run['q1']: expected {document: number}, got list"),
        ({"q1": None}, QRELS, TypeError, "run['q1']: expected {document: number}, got NoneType"),
        (RUN, {"q1": {"d1", "d2"}}, TypeError, "qrels['q1']: expected {document: number}, got set"),
        (RUN, {1: {"d1": 1}}, TypeError, "run: expected int query ids, as qrels, got str"),
        ({1: {"d1": 0.5}}, QRELS, TypeError, "run: expected str query ids, as qrels, got int"),
        (RUN, {"q1": {}, 2: {}}, TypeError, "qrels: expected query ids of one type, got int, str"),
        (RUN, {"q1": {2: 1}}, TypeError, "run: expected int document ids, as qrels, got str"),
        ({"q1": {2: 0.5}}, QRELS, TypeError, "run: expected str document ids, as qrels, got int"),
        ({"q1": {"d1": 0.5, 2: 0.5}}, QRELS, TypeError, "run: expected str document ids, as qrels, got int, str"),
        (RUN, {"q1": {"d1": 1, 2: 1}}, TypeError, "qrels: expected document ids of one type, got int, str"),
        ({"q1": {"d1": "0.5"}}, QRELS, TypeError, "run: expected scores that are real numbers, got str"),
        ({"q1": {"d1": 0.5, "d2": None}}, QRELS, TypeError, "run: expected scores that are real numbers, got NoneType"),
        ({"q1": {"d1": 1, "d2": "2"}}, QRELS, TypeError, "run: expected scores that are real numbers, got str"),
        ({"q1": {"d1": 0.5j}}, QRELS, TypeError, "run: expected scores that are real numbers, got complex"),
        ({"q1": {"d1": 10**400}}, QRELS, ValueError, "run: expected scores within int64 or float64, got larger ones"),
        (RUN, {"q1": {"d1": 1.0}}, TypeError, "qrels: expected integer grades, got float"),
        (RUN, {"q1": {"d1": "1"}}, TypeError, "qrels: expected integer grades, got str"),
        (RUN, {"q1": {"d1": Decimal(1)}}, TypeError, "qrels: expected integer grades, got Decimal"),
        (RUN, {"q1": {"d1": 1, "d2": -2}}, ValueError, "qrels: expected grades >= 0 (0 for not relevant), got -2"),
    ],
    ids=lambda case: case[:50] if isinstance(case, str) else "",
)
def test_runs_are_checked(run, qrels, error, message):
    with pytest.raises(error, match="^" + re.escape(message)):
        rank_run(run, qrels)


@pytest.mark.parametrize(("level", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_the_relevance_level_is_checked(level, error):
    with pytest.raises(error, match=r"^relevance_level: expected a positive int, got "):
        rank_run(RUN, QRELS, relevance_level=level)
