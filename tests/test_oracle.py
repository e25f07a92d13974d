"""Thousands of random small batches of every input form, and examples done by hand, against `oracle.py`."""

import itertools
import math
import random
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import oracle
import pytest
import torch

from mrr_torch import (
    HitRate,
    MeanReciprocalRank,
    NormalizedDCG,
    Ranks,
    mean_reciprocal_rank,
    rank_retrieved,
    reciprocal_rank,
)

TIES = ["expected", "optimistic", "pessimistic", "realistic"]
BATCHES, QUERIES = 50, 40  # 2,000 queries for each form and tie rule
# float64 throughout: a handful of roundings of numbers up to 1, each below 1e-15.
CLOSE = 1e-12


pytestmark = pytest.mark.usefixtures("float64")


class Batch(NamedTuple):
    """One call of ``update``, and how the oracle ranks its queries under a tie rule."""

    preds: torch.Tensor | Ranks
    target: torch.Tensor | None
    inputs: dict[str, torch.Tensor]
    settings: dict[str, Any]
    standings: Callable[[str], list[oracle.Standing]]


def some_scores(rng: random.Random, number: int) -> list[float]:
    """Draw scores that tie often, of any sign, some of them infinite or NaN; now and then all of them the same."""
    levels = rng.choice([[0.0], [-1.0, 2.5], [-2.0, -1.0, 0.0, 1.0, 2.0], [rng.gauss(0, 1) for _ in range(9)]])
    special = rng.choice([[], [math.nan], [math.inf, -math.inf], [math.nan, math.inf, -math.inf]])
    return [rng.choice(special if special and rng.random() < 0.25 else levels) for _ in range(number)]


def some_bools(rng: random.Random, number: int) -> list[bool]:
    return [rng.random() < 0.7 for _ in range(number)]


def some_options(rng: random.Random, labels: list[list[int]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Draw candidates, mask and exclude, each given or not: as rows for the package, and what the oracle takes."""
    width = len(labels[0])
    rows: dict[str, Any] = {}
    known: list[dict[str, Any]] = [{} for _ in labels]
    if rng.random() < 0.5:
        # Ids repeat and collide; -1 is padding, where there is nothing relevant.
        rows["candidates"] = [[rng.randrange(0 if label else -1, width + 2) for label in row] for row in labels]
    if rng.random() < 0.4:
        rows["mask"] = [some_bools(rng, width) for _ in labels]
    for name, values in rows.items():
        known = [{**options, name: value} for options, value in zip(known, values, strict=True)]
    last = width + 3 if "candidates" in rows else width - 1  # an excluded id need not be among the candidates
    form = rng.choice(["none", "own ids", "shared ids", "columns"])
    if form == "own ids":
        lists = [[rng.randint(-2, last) for _ in range(rng.randint(1, 5))] for _ in labels]
        rows["exclude"] = [ids + [-1] * (5 - len(ids)) for ids in lists]
        known = [{**options, "exclude": [i for i in ids if i >= 0]} for options, ids in zip(known, lists, strict=True)]
    elif form == "shared ids":
        ids = [rng.randint(0, last) for _ in range(rng.randint(0, 3))]
        rows["exclude"] = torch.tensor(ids, dtype=torch.long)
        known = [{**options, "exclude": ids} for options in known]
    elif form == "columns":
        rows["exclude"] = [some_bools(rng, width) for _ in labels]
        known = [{**o, "exclude_mask": row} for o, row in zip(known, rows["exclude"], strict=True)]
    return rows, known


def tensors(rng: random.Random, **rows: Any) -> dict[str, torch.Tensor]:
    """Make tensors of rows, one for each query; the queries get one to three dimensions, the same in all."""
    queries = rng.choice([(QUERIES,), (QUERIES // 8, 8), (2, QUERIES // 8, 4)])
    made = {name: row if isinstance(row, torch.Tensor) else torch.tensor(row) for name, row in rows.items()}
    return {
        name: tensor if tensor is rows[name] else tensor.reshape(*queries, *tensor.shape[1:])
        for name, tensor in made.items()
    }


def by_target(rng: random.Random, width: int, targets: list[int], leave_out_target: bool, **settings: Any) -> Batch:
    scores = [some_scores(rng, width) for _ in targets]
    options, known = some_options(rng, [[int(c == target) for c in range(width)] for target in targets])
    inputs = tensors(rng, preds=scores, target=targets, **options)
    preds, target = inputs.pop("preds"), inputs.pop("target")

    def standings(ties: str) -> list[oracle.Standing]:
        ignore = settings.get("ignore_index")
        return [
            oracle.by_target(*query, ties, ignore_index=ignore, **more)
            for *query, more in zip(scores, targets, known, strict=True)
        ]

    return Batch(preds, None if leave_out_target else target, inputs, settings, standings)


def target_column(rng: random.Random) -> Batch:
    width = rng.randint(1, 8)
    ignore = rng.choice([None, -100, 0])
    targets = [
        rng.choice([-100, rng.randrange(width)]) if ignore == -100 else rng.randrange(width) for _ in range(QUERIES)
    ]
    return by_target(rng, width, targets, False, ignore_index=ignore)


def sampled(rng: random.Random) -> Batch:
    negatives = rng.randint(1, 7)
    first = rng.random() < 0.7
    targets = [0 if first else rng.randrange(1 + negatives) for _ in range(QUERIES)]
    return by_target(rng, 1 + negatives, targets, first, num_negatives=negatives)


def some_labels(rng: random.Random, number: int, levels: list[int]) -> list[int]:
    return [rng.choice(levels) for _ in range(number)]


def relevance_row(rng: random.Random) -> Batch:
    width = rng.randint(1, 7)
    ignore = rng.choice([None, None, -100, 0, 2])
    levels = rng.choice([[0, 1], [0, 0, 0, 1, 2]]) + ([ignore] if ignore is not None else [])
    labels = [some_labels(rng, width, levels) for _ in range(QUERIES)]
    scores = [some_scores(rng, width) for _ in range(QUERIES)]
    options, known = some_options(rng, labels)
    inputs = tensors(rng, preds=scores, target=labels, **options)
    preds, target = inputs.pop("preds"), inputs.pop("target")
    if set(levels) == {0, 1} and ignore is None:
        target = target.to(rng.choice([torch.bool, torch.uint8, torch.int32]))
    settings = {"ignore_index": ignore, "empty_target_action": rng.choice(["neg", "pos", "skip"])}

    def standings(ties: str) -> list[oracle.Standing]:
        return [
            oracle.by_relevance(*query, ties, ignore_index=ignore, **more)
            for *query, more in zip(scores, labels, known, strict=True)
        ]

    return Batch(preds, target, inputs, settings, standings)


def flat_with_ids(rng: random.Random) -> Batch:
    ids = rng.sample(range(-50, 200), QUERIES)
    longest = rng.randint(1, 7)
    even = rng.random() < 0.3
    indexes = [i for i in ids for _ in range(longest if even else rng.randint(1, longest))]
    if rng.random() < 0.7:
        rng.shuffle(indexes)
    ignore = rng.choice([None, None, -100, 0])
    labels = some_labels(rng, len(indexes), [0, 0, 0, 1, 2] + ([ignore] if ignore is not None else []))
    scores = some_scores(rng, len(indexes))
    options: dict[str, list[bool]] = {}
    if rng.random() < 0.4:
        options["mask"] = some_bools(rng, len(indexes))
    if rng.random() < 0.4:
        options["exclude"] = some_bools(rng, len(indexes))
    inputs = {name: torch.tensor(flags) for name, flags in options.items()} | {"indexes": torch.tensor(indexes)}
    settings = {"ignore_index": ignore, "empty_target_action": rng.choice(["neg", "pos", "skip"])}

    def standings(ties: str) -> list[oracle.Standing]:
        known = {"mask": options.get("mask"), "exclude_mask": options.get("exclude")}
        return oracle.by_group(scores, labels, indexes, ties, ignore_index=ignore, **known)

    return Batch(torch.tensor(scores), torch.tensor(labels), inputs, settings, standings)


def retrieved_ids(rng: random.Random) -> Batch:
    lists = [[rng.randrange(9) for _ in range(rng.randint(0, 6))] for _ in range(QUERIES)]
    wanted = [[rng.randrange(9) for _ in range(rng.randint(0, 3))] for _ in range(QUERIES)]
    form = rng.choice(["tensor", "strings", "one id"])
    if form == "one id":
        wanted = [[rng.randrange(9)] for _ in range(QUERIES)]
        one = {"target": [ids[0] for ids in wanted]}
    if form == "strings":
        names = "abcdefghi"
        ranks = rank_retrieved([[names[i] for i in row] for row in lists], [{names[i] for i in row} for row in wanted])
    else:
        padding = rng.choice([-1, 99])
        columns = {"retrieved": [row + [padding] * (6 - len(row)) for row in lists]}
        relevant = one if form == "one id" else {"target": [ids + [padding] * (3 - len(ids)) for ids in wanted]}
        given = tensors(rng, **columns, **relevant)
        ranks = rank_retrieved(given["retrieved"], given["target"], padding=padding)
    settings = {"empty_target_action": rng.choice(["neg", "pos", "skip"])}
    return Batch(
        ranks, None, {}, settings, lambda ties: [oracle.by_retrieval(*q, ties) for q in zip(lists, wanted, strict=True)]
    )


def computed(metric: torch.nn.Module, standings: list[oracle.Standing]) -> dict[str, torch.Tensor]:
    """Compute, and check that NaN targets are warned of with their number; another warning would be an error."""
    nan = sum(standing == oracle.NAN for standing in standings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        values = metric.compute()
    told = f"NaN in {nan} {'query' if nan == 1 else 'queries'};"
    assert [told in str(w.message) for w in caught] == ([True] if nan else [])
    return values


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("form", [target_column, sampled, relevance_row, flat_with_ids, retrieved_ids])
def test_every_form_and_tie_rule_agrees_with_the_oracle(form: Callable[[random.Random], Batch], ties: str):
    for seed in range(BATCHES):
        rng = random.Random(f"{form.__name__} {seed}")
        batch = form(rng)
        standings = batch.standings(ties)
        action = batch.settings.get("empty_target_action", "neg")
        k = rng.randint(1, 8)

        def expected(gain: Callable, top_k: int | None, action: str = action, standings=standings) -> list:
            return [oracle.value(standing, gain, top_k, action) for standing in standings]

        settings = {**batch.settings, "ties": ties}
        for top_k in (None, k):
            wanted = expected(oracle.reciprocal, top_k)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of NaN targets; checked below, where the metrics compute
                values = reciprocal_rank(batch.preds, batch.target, top_k, **settings, **batch.inputs)
                mean = mean_reciprocal_rank(batch.preds, batch.target, top_k, **settings, **batch.inputs)
            numbers = [math.nan if v is None else float(v) for v in wanted]
            assert values.flatten().tolist() == pytest.approx(numbers, rel=0, abs=CLOSE, nan_ok=True), f"seed {seed}"
            assert mean.item() == pytest.approx(float(oracle.mean(wanted)), rel=0, abs=CLOSE), f"seed {seed}"

        cuts: list[int | None] = [1] if k == 1 else [k, 1]
        for metric, gain, top_k in [
            (MeanReciprocalRank([None, *cuts], **settings), oracle.reciprocal, [None, *cuts]),
            (HitRate(cuts, **settings), oracle.hit, cuts),
            (NormalizedDCG(cuts, **settings), oracle.discount, cuts),
        ]:
            metric.update(batch.preds, batch.target, **batch.inputs)
            several = sum(number > 1 for number in batch.standings(oracle.COUNT) if number != oracle.SKIPPED)
            if several and isinstance(metric, NormalizedDCG):  # of these the state knows the first relevant item only
                quantity = "1 query" if several == 1 else f"{several} queries"
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    with pytest.raises(ValueError, match=f"RetrievalNormalizedDCG.*{quantity}"):
                        metric.compute()
                continue
            values = list(computed(metric, standings).values())
            means = [float(oracle.mean(expected(gain, cut))) for cut in top_k]
            assert [v.item() for v in values] == pytest.approx(means, rel=0, abs=CLOSE), f"{metric}, seed {seed}"


def test_ranks_beyond_any_table_agree_with_the_oracle_too():
    # The metrics keep ranks up to about a thousand one by one; a tie may start before that place and end behind it.
    counts = [*itertools.product([0, 1000, 1023, 1024, 1025, 3000], [0, 1, 2, 33], [1, 2])]
    ranks = Ranks(*torch.tensor([(h, t, m, h + t + m) for h, t, m in counts]).T)
    queries = [[(2, False)] * h + [(1, False)] * t + [(1, True)] * m for h, t, m in counts]
    for ties in TIES:
        standings = [oracle.standing(query, ties) for query in queries]
        for top_k in (None, 1, 1024, 1030, 5000):
            wanted = [oracle.value(standing, top_k=top_k) for standing in standings]
            values = reciprocal_rank(ranks, top_k=top_k, ties=ties).tolist()
            assert values == pytest.approx([float(v) for v in wanted], rel=0, abs=CLOSE), (ties, top_k)
            metric = MeanReciprocalRank(top_k, ties=ties)
            metric.update(ranks)
            assert metric.compute().item() == pytest.approx(float(oracle.mean(wanted)), rel=0, abs=CLOSE), (ties, top_k)


NAN, INF = math.nan, math.inf
THREE = [[0.1, 0.9, 0.5], [0.9, 0.1, 0.5], [0.9, 0.5, 0.1]], [2, 0, 2]  # ranks 2, 1, 3
TIED = [[2, 1, 1, 1, 0]], [3]  # one above, two tied with it
RELEVANT = [[4, 3, 3, 3, 3, 2]], [[0, 1, 0, 1, 0, 1]]  # two of four tied at ranks 2 to 5: first at 2 in 3 of 6 orders
HISTORY = [[5, 4, 3, 2, 1]], [3]
CONSTANT = sum(1 / r for r in range(1, 101)) / 100
# name: (scores and target, what else is given, by hand)
BY_HAND = {
    "ranks 2, 1, 3": (THREE, {}, (1 / 2 + 1 + 1 / 3) / 3),
    "cut at the last rank": (THREE, {"top_k": 3}, (1 / 2 + 1 + 1 / 3) / 3),
    "cut at 2": (THREE, {"top_k": 2}, (1 / 2 + 1) / 3),
    "cut at 1": (THREE, {"top_k": 1}, 1 / 3),
    "cut beyond the candidates": (THREE, {"top_k": 99}, (1 / 2 + 1 + 1 / 3) / 3),
    "tie, expected": (TIED, {}, (1 / 2 + 1 / 3 + 1 / 4) / 3),
    "tie, expected, cut": (TIED, {"top_k": 3}, (1 / 2 + 1 / 3) / 3),
    "tie, optimistic": (TIED, {"ties": "optimistic"}, 1 / 2),
    "tie, pessimistic": (TIED, {"ties": "pessimistic"}, 1 / 4),
    "tie, pessimistic, cut": (TIED, {"ties": "pessimistic", "top_k": 3}, 0),
    "tie, realistic": (TIED, {"ties": "realistic"}, 1 / 3),
    "tie, realistic, mean rank at the cut": (TIED, {"ties": "realistic", "top_k": 3}, 1 / 3),
    "tie, realistic, mean rank beyond the cut": (TIED, {"ties": "realistic", "top_k": 2}, 0),
    "tie of two, realistic": (([[1, 1]], [0]), {"ties": "realistic"}, 1 / 1.5),
    "tie of two, realistic, half a rank beyond the cut": (([[1, 1]], [0]), {"ties": "realistic", "top_k": 1}, 0),
    "constant scorer, target first": (([[7] * 100], [0]), {}, CONSTANT),
    "constant scorer, target last": (([[7] * 100], [99]), {}, CONSTANT),
    "several, expected": (RELEVANT, {}, (3 * 1 / 2 + 2 * 1 / 3 + 1 * 1 / 4) / 6),
    "several, expected, cut": (RELEVANT, {"top_k": 3}, (3 * 1 / 2 + 2 * 1 / 3) / 6),
    "several, optimistic": (RELEVANT, {"ties": "optimistic"}, 1 / 2),
    "several, pessimistic": (RELEVANT, {"ties": "pessimistic"}, 1 / 4),
    "several, realistic": (RELEVANT, {"ties": "realistic"}, 1 / 3),
    "relevant items tied with each other only": (([[2, 1, 1]], [[0, 1, 1]]), {}, 1 / 2),
    "NaN target": (([[NAN, 1], [1, 0]], [0, 0]), {}, (0 + 1) / 2),
    "NaN of others": (([[NAN, 1, NAN, 2]], [1]), {}, 1 / 2),
    "NaN of one relevant item": (([[NAN, 1, 2]], [[1, 1, 0]]), {}, 1 / 2),
    "infinite scores tie": (([[INF, INF, -INF]], [0]), {}, (1 + 1 / 2) / 2),
    "minus infinity ties": (([[0, -INF, -INF]], [1]), {}, (1 / 2 + 1 / 3) / 2),
    "minus zero is zero": (([[0.0, -0.0]], [1]), {}, (1 + 1 / 2) / 2),
    "excluded ids": (HISTORY, {"exclude": [[0, 2]]}, 1 / 2),
    "excluded ids, repeated and padded": (HISTORY, {"exclude": [[0, 0, -1]]}, 1 / 3),
    "excluded target": (HISTORY, {"exclude": [[3, 0]]}, 1 / 3),
    "excluded for all": (HISTORY, {"exclude": [0]}, 1 / 3),
    "excluded columns": (HISTORY, {"exclude": [[True, True, False, True, False]]}, 1 / 2),
    "nothing excluded": (HISTORY, {"exclude": []}, 1 / 4),
    "collision with the target": (([[3, 1, 3]], [0]), {"candidates": [[7, 8, 7]]}, 1),
    "repeated candidates": (([[1, 3, 3, 0]], [0]), {"candidates": [[7, 8, 8, 9]]}, 1 / 2),
    "of repeated candidates the first counts": (([[1, 0, 3]], [0]), {"candidates": [[7, 8, 8]]}, 1),
    "a masked copy of a candidate is none": (
        ([[1, 2, 3]], [0]),
        {"candidates": [[7, 8, 8]], "mask": [[True, False, True]]},
        1 / 2,
    ),
    "padded candidates": (([[1, 3, 2]], [0]), {"candidates": [[7, -1, 9]]}, 1 / 2),
    "relevant columns of padding": (([[3, 2, 1]], [[1, 1, 0]]), {"candidates": [[-1, -2, 4]]}, 0),
    "excluded candidates": (([[1, 3, 2]], [0]), {"candidates": [[7, 8, 9]], "exclude": [[8, 1]]}, 1 / 2),
    "masked columns": (([[3, 2, 1]], [[1, 0, 1]]), {"mask": [[False, True, True]]}, 1 / 2),
    "ignored labels": (([[3, 2, 1]], [[-1, 0, 1]]), {"ignore_index": -1}, 1 / 2),
    "ignored target": (([[2, 1], [2, 1]], [-100, 1]), {"ignore_index": -100}, 1 / 2),
    "all ignored": (([[2, 1]], [-100]), {"ignore_index": -100}, 0),
    "nothing relevant": (([[2, 1], [2, 1]], [[0, 0], [0, 1]]), {}, (0 + 1 / 2) / 2),
    "nothing relevant, counted 1": (
        ([[2, 1], [2, 1]], [[0, 0], [0, 1]]),
        {"empty_target_action": "pos"},
        (1 + 1 / 2) / 2,
    ),
    "nothing relevant, skipped": (([[2, 1], [2, 1]], [[0, 0], [0, 1]]), {"empty_target_action": "skip"}, 1 / 2),
}


def by_oracle(scores: list, target: list, given: dict[str, Any]) -> Fraction:
    given = dict(given)
    top_k, ties = given.pop("top_k", None), given.pop("ties", "expected")
    action, ignore = given.pop("empty_target_action", "neg"), given.pop("ignore_index", None)
    standings = []
    for q, (row, wanted) in enumerate(zip(scores, target, strict=True)):
        more = {name: value[q] if value and isinstance(value[0], list) else value for name, value in given.items()}
        if any(isinstance(item, bool) for item in more.get("exclude", [])):
            more["exclude_mask"] = more.pop("exclude")
        form = oracle.by_relevance if isinstance(wanted, list) else oracle.by_target
        standings.append(form(row, wanted, ties, ignore_index=ignore, **more))
    return oracle.mean([oracle.value(standing, oracle.reciprocal, top_k, action) for standing in standings])


@pytest.mark.filterwarnings("ignore:The score of the relevant item was NaN")
@pytest.mark.parametrize("name", BY_HAND)
def test_examples_done_by_hand(name: str):
    (scores, target), given, by_hand = BY_HAND[name]
    assert float(by_oracle(scores, target, given)) == pytest.approx(by_hand, rel=0, abs=CLOSE)
    tensors = {
        k: torch.tensor(v, dtype=None if v else torch.long) if isinstance(v, list) else v for k, v in given.items()
    }
    value = mean_reciprocal_rank(torch.tensor(scores), torch.tensor(target), **tensors)
    assert value.item() == pytest.approx(by_hand, rel=0, abs=CLOSE)


def test_gains_of_ranks_2_1_3_by_hand():
    scores, target = map(torch.tensor, THREE)
    log = math.log2
    for metric, by_hand in [
        (MeanReciprocalRank([1, 2, None]), {"mrr@1": 1 / 3, "mrr@2": (1 / 2 + 1) / 3, "mrr": 11 / 18}),
        (HitRate([1, 2, 3]), {"hit_rate@1": 1 / 3, "hit_rate@2": 2 / 3, "hit_rate@3": 1}),
        (NormalizedDCG([1, 2, 3]), {"ndcg@1": 1 / 3, "ndcg@2": (1 / log(3) + 1) / 3, "ndcg@3": (1 / log(3) + 1.5) / 3}),
    ]:
        metric.update(scores, target)
        assert {name: value.item() for name, value in metric.compute().items()} == pytest.approx(by_hand, abs=CLOSE)


def test_positions_in_a_retrieved_list_by_hand():
    lists, relevant = [["a", "b"], ["b", "b", "a"], ["b"], ["b"], []], [["b", "a"], ["a"], ["a"], [], ["a"]]
    by_hand = [1, 1 / 3, 0, 0, 0]
    assert [float(oracle.value(oracle.by_retrieval(*q))) for q in zip(lists, relevant, strict=True)] == by_hand
    assert reciprocal_rank(rank_retrieved(lists, relevant)).tolist() == by_hand


def test_queries_of_a_flat_list_by_hand():
    scores, labels, indexes = [0.5, 0.9, 0.5, 0.3, 0.5], [1, 0, 0, 1, 0], [7, 7, 3, 3, 7]
    by_hand = [1 / 2, (1 / 2 + 1 / 3) / 2]  # of query 3, then of query 7
    standings = oracle.by_group(scores, labels, indexes, "expected")
    assert [float(oracle.value(s)) for s in standings] == pytest.approx(by_hand, rel=0, abs=CLOSE)
    values = reciprocal_rank(torch.tensor(scores), torch.tensor(labels), indexes=torch.tensor(indexes))
    assert values.tolist() == pytest.approx(by_hand, rel=0, abs=CLOSE)
