"""Cohorts: a value for each beside the overall one; weights: the weighted mean and its interval."""

import copy
import re
import warnings
from fractions import Fraction

import oracle
import pytest
import torch
from accelerator import DEVICE

from mrr_torch import (
    HitRate,
    MeanReciprocalRank,
    NormalizedDCG,
    RankDistribution,
    Ranks,
    rank_retrieved,
    rank_target,
)
from mrr_torch._synchronise import same

TIES = ["expected", "optimistic", "pessimistic", "realistic"]
pytestmark = pytest.mark.usefixtures("float64")


def batch(seed, queries=30, columns=12):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 4, (queries, columns), generator=generator).float()  # nearly all of them tied
    return scores, torch.randint(0, columns, (queries,), generator=generator), generator


def quietly(function, *arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments, **options)


# How an update is made of some rows, so that it can be made of all and of each part.
FORMS = {
    "scores": lambda s, t, rows: ((s[rows], t[rows]), {}),
    "relevance": lambda s, t, rows: ((s[rows], s[rows] == 2), {}),
    "relevant ids": lambda s, t, rows: ((s[rows],), {"relevant": torch.stack([t, (t + 1) % 12], 1)[rows]}),
    "ranks": lambda s, t, rows: ((Ranks(*(field[rows] for field in rank_target(s, t, exclude=t[:, None] - 3))),), {}),
    "retrieved": lambda s, t, rows: ((rank_retrieved(s.argsort(1)[:, :4][rows], t[rows]),), {}),
    "flat": lambda s, t, rows: (
        (s[rows].flatten(), (s == 2)[rows].flatten()),
        {"indexes": torch.arange(len(s))[rows].repeat_interleave(s.shape[1])},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ties", TIES)
def test_cohorts_equal_separate_metrics_on_the_parts_to_the_last_bit(form, ties):
    for seed in range(42):  # 24 forms and rules: 1,008 splits
        scores, target, generator = batch(seed)
        cohort = torch.randint(0, 3, (30,), generator=generator)
        settings = {"ties": ties, "confidence": 0.9} if form == "flat" else {"ties": ties}
        names = ["new", "regular", "gone"]
        metric = MeanReciprocalRank([3, None], cohorts=names, **settings)
        whole, parts = (
            MeanReciprocalRank([3, None], **settings),
            [MeanReciprocalRank([3, None], **settings) for _ in names],
        )
        for rows in (torch.arange(30) < 17, torch.arange(30) >= 17):
            given, options = FORMS[form](scores, target, rows)
            metric.update(*given, cohort=cohort[rows], **options)
            whole.update(*given, **options)
            for number, part in enumerate(parts):
                given, options = FORMS[form](scores, target, rows & (cohort == number))
                part.update(*given, **options)
        values, expected = metric.compute(), dict(whole.compute())
        for name, part in zip(names, parts, strict=True):
            for key, value in part.compute().items():
                base, end = re.fullmatch(r"(.*?)((?:_low|_high)?)", key).groups()
                expected[f"{base}/{name}{end}"] = value
        if "confidence" in settings:
            values = {re.sub(r"(_low|_high)(/\w+)", r"\2\1", key): value for key, value in values.items()}
        assert values == expected, seed


def test_each_cohort_has_a_line_and_read_outs_of_its_own():
    ranks = Ranks(*torch.tensor([[0, 3, 1, 0], [0, 0, 0, 0], [1, 1, 1, -1], [9, 9, 9, 0]]))
    cohort = torch.tensor([0, 1, 1, 1])
    metric, spread = MeanReciprocalRank(2, cohorts=["new", "old"]), RankDistribution(2, cohorts=["new", "old"])
    metric.update(ranks, cohort=cohort)
    spread.update(ranks, cohort=cohort)
    assert metric.compute() == {"mrr@2": 1.5 / 4, "mrr@2/new": 1, "mrr@2/old": 0.5 / 3}
    lines = metric.describe().split("\n")
    assert [line.split(" ")[0] for line in lines] == ["mrr@2", "mrr@2/new", "mrr@2/old"]
    assert ["; 4 queries;" in lines[0], "; 1 query;" in lines[1], "; 3 queries;" in lines[2]] == [True] * 3
    masses = {name: mass.tolist() for name, mass in spread.compute().items()}
    assert masses["rank_distribution/new"] == [1, 0, 0]
    assert masses["rank_distribution/old"] == [0, 1, 1]
    assert (spread.missed(), spread.missed(cohort="new"), spread.missed(cohort="old")) == (1, 0, 1)
    assert (spread.quantile(0.5), spread.quantile(0.3, cohort="old")) == (2, 2)
    with pytest.raises(ValueError, match="cohort: expected one of 'new', 'old', got 'newer'"):
        spread.missed(cohort="newer")


def test_cohorts_may_be_numbered_and_an_empty_one_is_0():
    metric = HitRate(1, cohorts=2)
    metric.update(torch.eye(3), torch.arange(3), cohort=torch.zeros(3, dtype=torch.int32))
    assert metric.compute() == {"hit_rate@1": 1, "hit_rate@1/0": 1, "hit_rate@1/1": 0}


def test_a_query_of_a_fixed_set_has_the_cohort_and_the_weight_that_it_came_with():
    scores, target, generator = batch(3)
    cohort, weights = torch.arange(30) % 2, torch.rand(30, generator=generator)
    table = MeanReciprocalRank(None, num_queries=30, cohorts=2, weighted=True, confidence=0.9)
    plain = MeanReciprocalRank(None, cohorts=2, weighted=True, confidence=0.9)
    plain.update(scores, target, cohort=cohort, weights=weights)
    for rows in (slice(0, 20), slice(10, 30), slice(0, 30)):  # again and again
        table.update(
            scores[rows], target[rows], cohort=cohort[rows], weights=weights[rows], query_ids=torch.arange(30)[rows]
        )
    assert table.compute() == plain.compute()


def weighted_mean(values, weights):
    return sum(Fraction(w) * Fraction(v) for v, w in zip(values, weights, strict=True)) / sum(map(Fraction, weights))


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize(("kind", "gain"), [(MeanReciprocalRank, oracle.reciprocal), (HitRate, oracle.hit)])
def test_the_weighted_mean_agrees_with_the_oracle(ties, kind, gain):
    for seed in range(20):
        scores, target, generator = batch(seed)
        weights = torch.rand(30, generator=generator) * 10 ** torch.randint(-3, 4, (30,), generator=generator)
        weights[torch.rand(30, generator=generator) < 0.1] = 0
        metric = kind(5, ties=ties, weighted=True)
        for rows in (slice(0, 11), slice(11, 30)):
            metric.update(scores[rows], target[rows], weights=weights[rows])
        rows = zip(scores.tolist(), target.tolist(), strict=True)
        values = [oracle.value(oracle.by_target(row, t, ties), gain, 5) for row, t in rows]
        # Sums of 30 float64, each off by a few parts in 1e16.
        assert float(metric.compute()) == pytest.approx(
            float(weighted_mean(values, weights.tolist())), rel=0, abs=1e-12
        )


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("kind", [MeanReciprocalRank, HitRate, NormalizedDCG])
def test_weights_of_1_change_nothing(ties, kind):
    for seed in range(20):
        scores, target, _ = batch(seed)
        weighted, plain = (kind(5, ties=ties, weighted=flag, confidence=0.9) for flag in (True, False))
        weighted.update(scores, target, weights=torch.ones(30))
        plain.update(scores, target)
        assert weighted.compute()[f"{kind.key}@5"] == plain.compute()[f"{kind.key}@5"]  # to the last bit
        for key, value in plain.compute().items():  # ends of the interval: the same formula in another form
            assert float(weighted.compute()[key]) == pytest.approx(float(value), rel=0, abs=1e-12)


def test_queries_that_count_without_a_rank_have_their_weight():
    scores = torch.tensor([[2.0, 1.0], [torch.nan, 1.0], [1.0, 2.0]])
    relevance = torch.tensor([[1, 0], [1, 0], [0, 0]])
    weights = torch.tensor([1, 2, 5])
    for action, expected in (("neg", 1 / 8), ("pos", 6 / 8), ("skip", 1 / 3)):
        metric = MeanReciprocalRank(empty_target_action=action, weighted=True)
        metric.update(scores, relevance, weights=weights)
        assert quietly(metric.compute) == expected
    assert "3 queries" not in quietly(metric.describe)  # the skipped one
    assert "2 queries, weighted;" in quietly(metric.describe)


def test_a_mean_over_users_is_a_mean_with_weights_of_1_by_their_queries():
    users, values = torch.tensor([0, 0, 0, 1, 2, 2]), torch.tensor([1, 1 / 2, 1 / 4, 1 / 8, 1.0, 1 / 2])
    ranks = (1 / values).long()
    ones = torch.ones_like(ranks)
    metric = MeanReciprocalRank(weighted=True)
    metric.update(Ranks(ranks - 1, 0 * ones, ones, 9 * ones), weights=1 / users.bincount()[users])
    by_user = [values[users == user].mean() for user in range(3)]
    assert float(metric.compute()) == pytest.approx(float(torch.stack(by_user).mean()), rel=0, abs=1e-15)


def test_the_interval_of_a_weighted_mean_covers_the_truth():
    generator = torch.Generator().manual_seed(0)
    evaluations, queries, places = 2000, 400, torch.arange(1, 101, dtype=torch.float64)
    chances = places**-1.2 / (places**-1.2).sum()
    truth = float((chances / places * (places <= 10)).sum())
    inside = 0
    for _ in range(evaluations):
        ranks = torch.multinomial(chances, queries, replacement=True, generator=generator)
        weights = torch.rand(queries, generator=generator) ** 2
        metric = MeanReciprocalRank(10, weighted=True, confidence=0.95)
        metric.update(Ranks(ranks, ranks * 0, ranks * 0 + 1, ranks * 0 + 100), weights=weights)
        values = metric.compute()
        inside += bool(values["mrr@10_low"] <= truth <= values["mrr@10_high"])
    assert 0.93 <= inside / evaluations <= 0.97


def reduce_in_parts(world, rank):
    scores, target, generator = batch(5)
    cohort, weights = torch.randint(0, 2, (30,), generator=generator), torch.randint(0, 9, (30,), generator=generator)
    metric = MeanReciprocalRank(None, ties="optimistic", cohorts=2, weighted=True)
    rows = torch.arange(30) % world == rank if rank is not None else slice(None)
    metric.update(scores[rows], target[rows], cohort=cohort[rows], weights=weights[rows])
    return metric.compute()


def reduced(world):
    import torch.distributed as dist

    torch.set_default_dtype(torch.float64)
    return reduce_in_parts(world, dist.get_rank())


@pytest.mark.distributed
def test_processes_and_merged_states_add_up(run_processes):
    whole = reduce_in_parts(1, None)
    for values in run_processes(3, reduced, 3):  # whole weights, no ties: exact
        assert values == whole
    scores, target, generator = batch(5)
    cohort, weights = torch.randint(0, 2, (30,), generator=generator), torch.randint(0, 9, (30,), generator=generator)
    merged = MeanReciprocalRank(None, ties="optimistic", cohorts=2, weighted=True)
    for rows in (slice(0, 9), slice(9, 30)):
        part = MeanReciprocalRank(None, ties="optimistic", cohorts=2, weighted=True)
        part.update(scores[rows], target[rows], cohort=cohort[rows], weights=weights[rows])
        merged.merge_state(part)
    assert merged.compute() == whole


def test_metrics_with_other_cohorts_never_share_a_state():
    names = [
        MeanReciprocalRank(5, **settings).settings.state_name
        for settings in (
            {},
            {"cohorts": 2},
            {"cohorts": ["0", "a"]},
            {"weighted": True},
            {"cohorts": 2, "weighted": True},
        )
    ]
    assert len(set(names)) == len(names)


BAD = [
    ({"cohorts": 2}, {}, "cohort: expected a tensor of the queries' shape, with cohorts=, got NoneType"),
    ({}, {"cohort": torch.zeros(2).long()}, "cohort: expected None without cohorts=, got Tensor"),
    ({"cohorts": 2}, {"cohort": torch.tensor([0, 2])}, "cohort: expected ids in 0..1, got 2"),
    ({"cohorts": 2}, {"cohort": torch.tensor([-1, 0])}, "cohort: expected ids in 0..1, got -1"),
    ({"cohorts": 2}, {"cohort": torch.zeros(3).long()}, "cohort: expected shape (2,), got shape (3,)"),
    ({"cohorts": 2}, {"cohort": torch.zeros(2)}, "cohort: expected a tensor of integer ids, got torch.float"),
    ({"weighted": True}, {}, "weights: expected a tensor of the queries' shape, with weighted=, got NoneType"),
    ({}, {"weights": torch.ones(2)}, "weights: expected None without weighted=, got Tensor"),
    (
        {"weighted": True},
        {"weights": torch.tensor([1.0, -1.0])},
        "weights: expected finite numbers >= 0, at most",
    ),
    (
        {"weighted": True},
        {"weights": torch.tensor([1.0, torch.nan])},
        "weights: expected finite numbers >= 0, at most 1e+100, got nan",
    ),
    (
        {"weighted": True},
        {"weights": torch.tensor([torch.inf, 1.0])},
        "weights: expected finite numbers >= 0, at most 1e+100, got inf",
    ),
    ({"weighted": True}, {"weights": torch.ones(2, 1)}, "weights: expected shape (2,), got shape (2, 1)"),
    (
        {"weighted": True},
        {"weights": torch.ones(2).bool()},
        "weights: expected a tensor of real numbers, got torch.bool",
    ),
    ({"weighted": True}, {"weights": [1.0, 1.0]}, "weights: expected a tensor of real numbers, got list"),
]


@pytest.mark.parametrize(("settings", "given", "message"), BAD, ids=[message[:60] for *_, message in BAD])
def test_bad_cohorts_and_weights_are_named_and_change_nothing(settings, given, message):
    metric = MeanReciprocalRank(**settings)
    right = {"cohort": torch.tensor([0, 1])} if "cohorts" in settings else {}
    right |= {"weights": torch.ones(2)} if "weighted" in settings else {}
    metric.update(torch.eye(2), torch.arange(2), **right)
    before = copy.deepcopy(metric.metric_state)
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        metric.update(torch.eye(2), torch.arange(2), **given)
    assert all(same(state, before[name]) for name, state in metric.metric_state.items())
    assert metric.update_count == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cohorts": 0}, "cohorts: expected a positive int, or a sequence of different names, got 0"),
        ({"cohorts": []}, "cohorts: expected a positive int, or a sequence of different names, got []"),
        ({"cohorts": ["a", "a"]}, "cohorts: expected a positive int, or a sequence of different names"),
        ({"cohorts": ["a", 1]}, "cohorts: expected a positive int, or a sequence of different names"),
        ({"cohorts": "ab"}, "cohorts: expected a positive int, or a sequence of different names"),
        ({"cohorts": True}, "cohorts: expected a positive int, or a sequence of different names"),
        ({"weighted": 1}, "weighted: expected a bool, got 1"),
    ],
    ids=str,
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        MeanReciprocalRank(**settings)


def test_on_an_accelerator_bad_values_are_raised_by_compute(accelerator):
    put = accelerator.put
    scores, target = put(torch.eye(3)), put(torch.arange(3))
    for settings, given, message in (
        ({"cohorts": 2}, {"cohort": put(torch.tensor([0, 5, -1]))}, "cohort: expected ids in .* in 2 queries"),
        (
            {"weighted": True},
            {"weights": put(torch.tensor([1.0, -1.0, 1.0]))},
            "weights: expected finite .* in 1 query",
        ),
    ):
        with accelerator.allowed():
            metric = MeanReciprocalRank(**settings).to(DEVICE)
        metric.update(scores, target, **given)
        with accelerator.allowed(), pytest.raises(ValueError, match=message):
            metric.compute()


def test_on_an_accelerator_values_are_the_same(accelerator):
    put = accelerator.put
    scores, target, generator = batch(0)
    cohort, weights = torch.randint(0, 2, (30,), generator=generator), torch.rand(30, generator=generator)
    for ties in TIES:
        here = MeanReciprocalRank([3, None], ties=ties, cohorts=2, weighted=True)
        here.update(scores, target, cohort=cohort, weights=weights)
        with accelerator.allowed():
            there = MeanReciprocalRank([3, None], ties=ties, cohorts=2, weighted=True).to(DEVICE)
        there.update(put(scores), put(target), cohort=put(cohort), weights=put(weights))
        with accelerator.allowed():
            values = {name: float(value) for name, value in there.compute().items()}
        # Sums of float64 in another order.
        assert values == pytest.approx({name: float(value) for name, value in here.compute().items()}, rel=0, abs=1e-14)
