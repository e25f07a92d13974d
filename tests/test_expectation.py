"""Sampled mode on full scores: the exact expectation over draws, and the estimate of the full-catalogue value."""

from fractions import Fraction
from itertools import combinations

import pytest
import torch

from mrr_torch import (
    HitRate,
    MeanReciprocalRank,
    NormalizedDCG,
    Ranks,
    mean_reciprocal_rank,
    reciprocal_rank,
    sample_negatives,
)
from mrr_torch.sampling import estimate
from mrr_torch.sampling.estimate import full_catalogue_gain
from mrr_torch.sampling.expectation import hypergeometric

TIES = ["expected", "optimistic", "pessimistic", "realistic"]


def enumerated(higher, tied, lower, negatives, ties):
    """The reciprocal rank, averaged over every set of negatives and every order of the tied."""
    items = ["above"] * higher + ["tied"] * tied + ["below"] * lower
    drawn = list(combinations(items, min(negatives, len(items))))
    total = Fraction(0)
    for sample in drawn:
        above, beside = sample.count("above"), sample.count("tied")
        places = {
            "expected": [Fraction(above + 1 + i) for i in range(beside + 1)],
            "optimistic": [Fraction(above + 1)],
            "pessimistic": [Fraction(above + beside + 1)],
            "realistic": [above + 1 + Fraction(beside, 2)],
        }[ties]
        total += sum(1 / place for place in places) / len(places)
    return total / len(drawn)


@pytest.mark.parametrize("ties", TIES)
def test_every_small_case_equals_its_enumeration(ties, float64):
    for negatives in range(1, 7):
        cases = [(h, t, low) for h in range(4) for t in range(4) for low in range(3) if h + t + low > 0]
        ranks = Ranks(*torch.tensor([[h, t, 1, h + t + low + 1] for h, t, low in cases]).T)
        expected = torch.tensor([float(enumerated(*case, negatives, ties)) for case in cases])
        per_query = reciprocal_rank(ranks, ties=ties, num_negatives=negatives)
        assert torch.allclose(per_query, expected, rtol=0, atol=1e-12)
        metric = MeanReciprocalRank(ties=ties, num_negatives=negatives)
        metric.update(ranks)
        assert float(metric.compute()) == pytest.approx(float(expected.mean()), abs=1e-12)


@pytest.mark.parametrize("ties", TIES)
def test_several_cut_offs_hit_rate_and_ndcg_follow_from_the_same_distribution(ties, float64):
    scores = torch.randint(0, 30, (20, 60), generator=torch.Generator().manual_seed(0))
    target = torch.arange(20)
    cuts = [1, 2, 5, None]
    metric = MeanReciprocalRank(cuts, ties=ties, num_negatives=7)
    metric.update(scores, target)
    for k, value in zip(cuts, metric.compute().values(), strict=True):
        expected = reciprocal_rank(scores, target, k, ties=ties, num_negatives=7).mean()
        assert float(value) == pytest.approx(float(expected), abs=1e-14)
    hits, ndcg = (m([1, 8], ties=ties, num_negatives=7)(scores, target) for m in (HitRate, NormalizedDCG))
    assert torch.allclose(hits["hit_rate@1"], metric.compute()["mrr@1"], rtol=0, atol=1e-14)
    assert float(hits["hit_rate@8"]) == pytest.approx(1, abs=1e-14)
    assert hits["hit_rate@1"] < ndcg["ndcg@8"] < 1


@pytest.mark.parametrize("ties", TIES)
def test_all_items_as_negatives_equal_the_full_catalogue(ties, float64):
    scores = torch.randint(0, 40, (30, 50), generator=torch.Generator().manual_seed(1))
    target = torch.arange(30)
    full = mean_reciprocal_rank(scores, target, 10, ties=ties)
    for negatives in (49,):
        sampled = mean_reciprocal_rank(scores, target, 10, ties=ties, num_negatives=negatives)
        assert float(sampled) == pytest.approx(float(full), abs=1e-15)
    # More negatives than competitors, after exclusion: all of them.
    exclude = torch.arange(20, 30)
    full = mean_reciprocal_rank(scores, target, exclude=exclude, ties=ties)
    sampled = mean_reciprocal_rank(scores, target, exclude=exclude, ties=ties, num_negatives=45)
    assert float(sampled) == pytest.approx(float(full), abs=1e-15)


def test_excluded_items_are_not_in_the_population(float64):
    scores = torch.rand(10, 40, generator=torch.Generator().manual_seed(2))
    target, history = torch.arange(10), torch.arange(30, 40)
    left = mean_reciprocal_rank(scores, target, exclude=history, num_negatives=9)
    assert float(left) == pytest.approx(float(mean_reciprocal_rank(scores[:, :30], target, num_negatives=9)), abs=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("candidates", [3706, 1_000_000])
def test_monte_carlo_agrees(candidates, float64):
    generator = torch.Generator().manual_seed(0)
    higher, tied, draws, negatives = candidates // 60, candidates // 200, 100_000, 99
    ranks = Ranks(*torch.tensor([[higher], [tied], [1], [candidates]]))
    expected = float(reciprocal_rank(ranks, top_k=10, num_negatives=negatives))
    ids = sample_negatives(torch.full((draws,), candidates - 1), candidates, negatives, generator=generator)[:, 1:]
    observed = Ranks(
        (ids < higher).sum(1),
        ((ids >= higher) & (ids < higher + tied)).sum(1),
        torch.ones(draws, dtype=torch.long),
        torch.full((draws,), 1 + negatives),
    )
    values = reciprocal_rank(observed, top_k=10)
    assert abs(float(values.mean()) - expected) < 4 * float(values.std()) / draws**0.5


def test_a_constant_scorer_gets_the_chance_of_the_sample(float64):
    chance = sum(1 / r for r in range(1, 101)) / 100
    value = mean_reciprocal_rank(torch.zeros(3, 3706), torch.tensor([0, 5, 3705]), num_negatives=99)
    assert float(value) == pytest.approx(chance, abs=1e-13)


@pytest.mark.parametrize("population", [100, 10**7])
def test_probabilities_are_right_for_any_size(population):
    draws = 40
    successes = torch.tensor([0, 1, 50, population // 2, population - 3, population])
    chance = hypergeometric(
        *torch.tensor([population, 0, draws]).expand(6, 3).T.clone().index_copy(0, torch.tensor([1]), successes[None]),
        draws + 1,
    )
    for row, marked in zip(chance.tolist(), successes.tolist(), strict=True):
        exact = []
        for x in range(draws + 1):
            product = Fraction(1)
            for i in range(x):
                product *= Fraction(marked - i, population - i) * Fraction(draws - i, i + 1)
            for i in range(draws - x):
                product *= Fraction(population - marked - i, population - x - i)
            exact.append(float(product) if x <= marked and draws - x <= population - marked else 0.0)
        # Products of some hundred ratios, each rounded once.
        assert row == pytest.approx(exact, rel=1e-12, abs=1e-300)


def test_several_relevant_items_with_more_candidates_than_sampled_are_refused():
    metric = MeanReciprocalRank(num_negatives=3)
    with pytest.raises(ValueError, match="preds: expected 4 columns with relevance and num_negatives=3"):
        metric.update(torch.zeros(1, 9), torch.tensor([[1, 1, 0, 0, 0, 0, 0, 0, 0]]))
    several = Ranks(*torch.tensor([[0], [0], [2], [9]]))
    with pytest.raises(ValueError, match="preds: expected one relevant item, or 4 candidates with num_negatives=3"):
        metric.update(several)
    assert metric.update_count == 0


class TestEstimate:
    """Krichene and Rendle's estimate of the full-catalogue value from observed sampled ranks."""

    def test_the_solution_solves_the_equations_of_the_paper(self):
        size, negatives, gamma = 40, 6, estimate.SMOOTHNESS
        ranks = torch.arange(1, size + 1, dtype=torch.float64)
        chance = hypergeometric(
            torch.full((size,), size - 1), torch.arange(size), torch.full((size,), negatives), negatives + 1
        )
        gain = (ranks <= 10) / ranks
        f = full_catalogue_gain(lambda r: 1 / r, size, negatives, 10)

        def loss(f):
            mean = chance @ f
            return ((mean - gain) ** 2 + gamma * (chance @ f**2 - mean**2)).sum()

        best = loss(f)
        for step in torch.eye(negatives + 1, dtype=torch.float64):
            assert loss(f + 1e-3 * step) > best
            assert loss(f - 1e-3 * step) > best

    @pytest.mark.parametrize("top_k", [None, 10, 700])
    def test_quadrature_equals_the_sum_over_every_rank(self, top_k, monkeypatch):
        every = full_catalogue_gain(lambda r: 1 / r, 3000, 9, top_k)  # a small catalogue is summed rank by rank
        monkeypatch.setattr(estimate, "EDGE", 64)
        assert torch.allclose(full_catalogue_gain(lambda r: 1 / r, 3000, 9, top_k), every, rtol=0, atol=1e-12)

    def test_it_comes_nearer_to_the_full_value_than_the_sampled_one(self, float64):
        generator = torch.Generator().manual_seed(0)
        queries, items = 4000, 1500
        scores = torch.rand(queries, items, generator=generator)
        target = torch.arange(queries) % items
        lift = torch.rand(queries, 1, generator=generator) ** 0.05
        scores.scatter_(1, target[:, None], lift)
        ids = sample_negatives(target, items, 99, generator=generator)
        metric = MeanReciprocalRank(10, num_negatives=99, catalogue_size=items)
        metric.update(scores.gather(1, ids))
        result = metric.compute()
        full = float(mean_reciprocal_rank(scores, target, 10))
        assert list(result) == ["mrr@10", "mrr@10_full_estimate"]
        assert float(result["mrr@10"]) > 3 * full
        assert float(result["mrr@10_full_estimate"]) == pytest.approx(full, rel=0.25)  # an estimate, biased to a prior

    def test_it_is_exact_where_everything_is_sampled_and_nothing_smoothed(self, monkeypatch, float64):
        monkeypatch.setattr(estimate, "SMOOTHNESS", 0.0)
        scores = torch.rand(50, 30, generator=torch.Generator().manual_seed(3))
        metric = HitRate([1, 5], num_negatives=29, catalogue_size=30)
        metric.update(scores, torch.arange(50) % 30)
        result = metric.compute()
        for k in (1, 5):
            assert torch.allclose(result[f"hit_rate@{k}"], result[f"hit_rate@{k}_full_estimate"])

    def test_it_shares_the_group_of_the_sampled_metric(self):
        from torchmetrics import MetricCollection

        collection = MetricCollection(
            {
                "plain": MeanReciprocalRank(10, num_negatives=9),
                "estimate": HitRate(10, num_negatives=9, catalogue_size=50),
            }
        )
        collection.update(torch.rand(5, 10))
        assert len(collection.compute_groups) == 1
