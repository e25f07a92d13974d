"""Intervals, chance, the rank distribution, its plot, and the line that says how a value was computed."""

import re
from fractions import Fraction

import pytest
import torch
import torch.distributed as dist
from torchmetrics import MetricCollection

from mrr_torch import (
    HitRate,
    MeanReciprocalRank,
    NormalizedDCG,
    RankDistribution,
    Ranks,
    rank_catalogue,
    rank_relevant,
    rank_retrieved,
)


def at_ranks(ranks, candidates=60):
    """Ranks without ties, each among ``candidates``."""
    places = torch.as_tensor(ranks)
    return Ranks(places - 1, torch.zeros_like(places), torch.ones_like(places), torch.full_like(places, candidates))


class TestIntervals:
    def test_they_are_added_to_the_result(self):
        metric = MeanReciprocalRank([5, None], confidence=0.95)
        metric.update(at_ranks([1, 2, 9] * 40))
        result = metric.compute()
        assert list(result) == ["mrr@5", "mrr@5_low", "mrr@5_high", "mrr", "mrr_low", "mrr_high"]
        for name in ("mrr@5", "mrr"):
            assert 0 < result[f"{name}_low"] < result[name] < result[f"{name}_high"] < 1
        single = HitRate(5, confidence=0.9)
        single.update(at_ranks([1, 2, 9]))
        assert list(single.compute()) == ["hit_rate@5", "hit_rate@5_low", "hit_rate@5_high"]

    def test_the_standard_error_is_that_of_the_queries_values(self, float64):
        ranks = [1, 3, 2000, 7, 1, 1500, 2, 60] * 30  # some beyond the ranks of the state
        metric = MeanReciprocalRank(confidence=0.95)
        metric.update(at_ranks(ranks, 5000))
        result = metric.compute()
        values = 1 / torch.tensor(ranks)
        error = values.std() / len(ranks) ** 0.5
        assert float((result["mrr_high"] - result["mrr_low"]) / 2) == pytest.approx(float(1.959963984540054 * error))

    def test_hit_rate_has_wilsons_interval(self, float64):
        # Agresti and Coull's example (1998) has no hits among 10: an upper end of 0.278.
        metric = HitRate(1, confidence=0.95)
        metric.update(at_ranks([2] * 10))
        result = metric.compute()
        assert result["hit_rate@1_low"] == 0
        assert float(result["hit_rate@1_high"]) == pytest.approx(1.959964**2 / (10 + 1.959964**2), abs=1e-6)

    def test_a_higher_level_and_fewer_queries_are_wider(self):
        def width(level, repeats):
            metric = NormalizedDCG(10, confidence=level)
            metric.update(at_ranks([1, 4, 30] * repeats))
            result = metric.compute()
            return result["ndcg@10_high"] - result["ndcg@10_low"]

        assert width(0.99, 50) > width(0.95, 50) > width(0.95, 500)

    def test_no_query_and_one_query_say_nothing(self):
        metric = MeanReciprocalRank(confidence=0.95)
        metric.update(at_ranks([1]))
        result = metric.compute()
        assert (result["mrr_low"], result["mrr_high"]) == (0, 1)

    @pytest.mark.slow
    @pytest.mark.parametrize("metric", [MeanReciprocalRank, HitRate, NormalizedDCG])
    def test_they_cover_the_truth_as_often_as_they_say(self, metric, float64, capsys):
        generator = torch.Generator().manual_seed(0)
        places = torch.arange(1, 201, dtype=torch.float64)
        chance = places**-1.2 / (places**-1.2).sum()
        gain = {MeanReciprocalRank: 1 / places, HitRate: torch.ones(200), NormalizedDCG: 1 / (1 + places).log2()}
        truth = float((chance * gain[metric] * (places <= 10)).sum())
        inside, evaluations = 0, 2000
        draws = torch.multinomial(chance, evaluations * 1000, replacement=True, generator=generator) + 1
        one = metric(10, confidence=0.95)
        for ranks in draws.view(evaluations, 1000):
            one.reset()
            one.update(at_ranks(ranks, 200))
            _name, low, high = one.compute().values()
            inside += bool(low <= truth <= high)
        with capsys.disabled():
            print(f"\n{metric.__name__}@10: {inside / evaluations:.1%} of {evaluations} intervals cover the truth")
        assert 0.93 <= inside / evaluations <= 0.97


class TestDescribe:
    def test_full_catalogue(self):
        metric = MeanReciprocalRank(10)
        metric.update(torch.eye(200), torch.arange(200))
        assert metric.describe() == (
            "mrr@10 1.0000 (95% 1.0000 to 1.0000, chance 0.0146); 200 queries; all of 200 candidates; ties: expected"
        )

    def test_sampled_observed_and_expected(self):
        metric = HitRate(10, num_negatives=99, ties="pessimistic", confidence=0.9)
        metric.update(torch.rand(1000, 100))
        line = metric.describe()
        assert "; 1,000 queries; target + 99 sampled negatives; ties: pessimistic" in line
        assert re.match(r"hit_rate@10 0\.\d{4} \(90% 0\.\d{4} to 0\.\d{4}, chance 0\.1000\)", line)
        metric.reset()
        metric.update(torch.rand(5, 3706), torch.arange(5))
        assert "target + 99 sampled negatives (expected over draws from 3,706 candidates)" in metric.describe()

    def test_different_numbers_of_candidates(self):
        metric = MeanReciprocalRank([1, 5])
        metric.update(torch.rand(3, 50), torch.arange(3))
        metric.update(torch.rand(3, 20), torch.arange(3), exclude=torch.tensor([19]))
        line = metric.describe()
        assert "all of 19 to 50 candidates" in line
        assert line.count("chance") == 2

    def test_collisions_leave_fewer_negatives_and_the_line_says_so(self):
        metric = MeanReciprocalRank(num_negatives=3)
        metric.update(torch.rand(1, 4), candidates=torch.tensor([[7, 7, 2, 3]]))
        assert "target + 3 sampled negatives (3 candidates)" in metric.describe()

    def test_retrieved_lists_have_no_chance_level(self):
        metric = MeanReciprocalRank(10)
        metric.update(rank_retrieved([["a", "b"], ["c"]], [["b"], ["x"]]))
        line = metric.describe()
        assert "; candidates unknown; " in line
        assert "chance" not in line

    def test_candidates_of_some_queries_may_be_unknown(self):
        metric = MeanReciprocalRank()
        metric.update(rank_retrieved([[1, 2]] * 99, [[9]] * 99))
        metric.update(torch.rand(1, 4), torch.tensor([0]))
        assert "all of up to 4 candidates, unknown for some" in metric.describe()

    def test_ignored_queries_have_no_candidates(self):
        metric = MeanReciprocalRank(5, ignore_index=-1)
        metric.update(torch.rand(2, 50), torch.tensor([-1, -1]))
        metric.update(torch.rand(2, 4), torch.tensor([0, 1]))
        assert "2 queries; all of 4 candidates;" in metric.describe()

    def test_what_was_left_out_is_told(self):
        metric = MeanReciprocalRank(10, ignore_index=-100, empty_target_action="skip")
        metric.update(torch.tensor([[torch.nan, 1.0], [2.0, 1.0], [2.0, 1.0]]), torch.tensor([0, 0, -100]))
        metric.update(torch.rand(2, 2), torch.tensor([[0, 0], [0, 1]]))
        with pytest.warns(UserWarning, match="NaN in 1 query"):
            line = metric.describe()
        assert line.endswith("1 NaN target counts 0; 1 without a relevant item left out; 1 ignored")
        assert "; 3 queries;" in line

    def test_catalogue_ranks_are_told_like_full_scores(self):
        metric = MeanReciprocalRank(10)
        metric.update(rank_catalogue(torch.eye(5), torch.eye(5), torch.arange(5), exclude=torch.tensor([0])))
        assert "all of 4 to 5 candidates" in metric.describe()  # a target is not excluded from its own query


def chance_of(candidates, gain, cut):
    """The mean gain of a random order, in fractions."""
    per_query = [sum(gain(r) for r in range(1, min(c, cut or c) + 1)) / Fraction(c) for c in candidates]
    return float(sum(per_query) / len(per_query))


def told_chance(metric):
    return [float(value) for value in re.findall(r"chance ([\d.]+)", metric.describe())]


class TestChance:
    def test_of_one_hundred_candidates(self):
        metric = MeanReciprocalRank([None, 10])
        metric.update(torch.rand(7, 100), torch.arange(7))
        assert told_chance(metric) == [0.0519, 0.0293]

    def test_of_mixed_and_many_candidates_equals_fractions(self):
        numbers = [3, 3, 100, 1, 1500, 4000]
        metrics = [MeanReciprocalRank([5, None]), HitRate([5]), NormalizedDCG([5])]
        ranks = Ranks(torch.zeros(6), torch.zeros(6), torch.ones(6), torch.tensor(numbers))
        for metric in metrics:
            metric.update(Ranks(*(field.long() for field in ranks)))
        expected = [chance_of(numbers, lambda r: Fraction(1, r), 5), chance_of(numbers, lambda r: Fraction(1, r), None)]
        assert told_chance(metrics[0]) == pytest.approx(expected, abs=5e-5)  # four digits are told
        assert told_chance(metrics[1]) == pytest.approx([chance_of(numbers, lambda r: Fraction(1), 5)], abs=5e-5)
        discount = chance_of(numbers, lambda r: Fraction(float(1 / torch.tensor(1.0 + r).log2())), 5)
        assert told_chance(metrics[2]) == pytest.approx([discount], abs=5e-5)

    def test_it_is_what_random_scores_get(self):
        generator = torch.Generator().manual_seed(0)
        metric = MeanReciprocalRank(10)
        metric.update(torch.rand(20_000, 30, generator=generator), torch.zeros(20_000, dtype=torch.long))
        # The standard error of 20,000 queries is 0.0021.
        assert told_chance(metric) == pytest.approx([float(metric.compute())], abs=4 * 0.0021)

    def test_several_relevant_items_have_none(self):
        scores, relevance = torch.rand(3, 10), torch.zeros(3, 10, dtype=torch.long)
        relevance[:, [2, 5]] = 1
        metric = MeanReciprocalRank(10)
        metric.update(scores, relevance)
        assert told_chance(metric) == []
        metric.reset()
        metric.update(rank_relevant(scores, relevance))
        assert told_chance(metric) == []


class TestRankDistribution:
    def test_mass_quantiles_and_misses(self):
        metric = RankDistribution(3)
        metric.update(at_ranks([1, 1, 2, 3, 3, 8]))
        metric.update(rank_retrieved([["a"], ["b"]], [["x"], ["y"]]))
        assert metric.compute().tolist() == [2, 1, 2, 1]
        assert metric.missed() == 2
        assert metric.quantile(0.5) == 3
        assert metric.quantile([0, 0.25, 0.375, 0.75, 0.76]).tolist() == [1, 1, 2, 8, torch.inf]

    def test_ties_are_spread(self, float64):
        metric = RankDistribution(2)
        metric.update(torch.zeros(3, 3), torch.arange(3))
        assert torch.allclose(metric.compute(), torch.ones(3))
        assert metric.quantile(1 / 3) == 1
        assert metric.quantile(0.5) == 2
        realistic = RankDistribution(2, ties="realistic")
        realistic.update(torch.zeros(1, 2), torch.tensor([0]))  # rank 1.5 is within 2, not within 1
        assert realistic.compute().tolist() == [0, 1, 0]

    def test_queries_that_count_one_stand_at_rank_one(self):
        metric = RankDistribution(3, empty_target_action="pos")
        metric.update(torch.rand(4, 5), torch.zeros(4, 5, dtype=torch.bool))
        assert metric.compute().tolist() == [4, 0, 0, 0]
        assert metric.quantile([0.5, 1]).tolist() == [1, 1]

    def test_nothing_seen(self):
        metric = RankDistribution(2)
        metric.update(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
        assert metric.compute().tolist() == [0, 0, 0]
        assert bool(metric.quantile(0.5).isnan())

    def test_it_shares_the_group_of_the_other_metrics(self):
        collection = MetricCollection([MeanReciprocalRank(10), HitRate(10), RankDistribution(10)])
        collection.update(at_ranks([1, 2, 50]))
        assert len(collection.compute_groups) == 1
        assert collection.compute()["RankDistribution"].tolist() == [1, 1, *[0] * 8, 1]

    def test_one_cut_off_is_asked_for_and_quantiles_are_checked(self):
        for top_k in (None, [1, 2], 0):
            with pytest.raises((TypeError, ValueError), match="top_k: expected a positive int"):
                RankDistribution(top_k)
        with pytest.raises(ValueError, match=r"q: expected numbers within 0\.\.1, got 1\.5"):
            RankDistribution(3).quantile(1.5)


@pytest.fixture
def axes():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    yield plt
    plt.close("all")


class TestPlots:
    def test_scalars_sequences_and_dicts_as_in_torchmetrics(self, axes):
        metric = MeanReciprocalRank([1, 5])
        values = [metric(at_ranks(ranks)) for ranks in ([1, 2], [3, 4])]
        for figure, drawn in (metric.plot(), metric.plot(values), HitRate(3).plot(torch.tensor(0.4))):
            assert figure.axes
            assert drawn.has_data()

    def test_the_bars_of_a_distribution_have_the_shares_as_heights(self, axes):
        first, second = RankDistribution(3), RankDistribution(3)
        first.update(at_ranks([1, 1, 2, 9]))
        second.update(at_ranks([3, 3, 3, 1]))
        _figure, drawn = first.plot({"SASRec": first, "popularity": second})
        heights = [[bar.get_height() for bar in bars] for bars in drawn.containers]
        assert heights == [[0.5, 0.25, 0, 0.25, 0], [0.25, 0, 0.75, 0, 0]]
        assert [text.get_text() for text in drawn.get_legend().get_texts()] == ["SASRec", "popularity"]
        assert [label.get_text() for label in drawn.get_xticklabels()] == ["1", "2", "3", "> 3", "missed"]
        assert drawn.get_xlabel()
        assert drawn.get_ylabel()
        assert "4 queries; all of 60 candidates" in drawn.get_title()
        bars = [bars[0].get_facecolor() for bars in drawn.containers]
        grey = [0.299 * r + 0.587 * g + 0.114 * b for r, g, b, _ in bars]
        assert abs(grey[0] - grey[1]) > 0.2  # told apart in print

    def test_it_draws_into_axes_that_are_given(self, axes):
        figure, place = axes.subplots()
        metric = RankDistribution(3)
        metric.update(at_ranks([1]))
        assert metric.plot(ax=place) == (figure, place)

    def test_other_protocols_are_not_drawn_side_by_side(self, axes):
        metric = RankDistribution(3)
        with pytest.raises(ValueError, match="val: expected metrics with Settings"):
            metric.plot({"full": metric, "sampled": RankDistribution(3, num_negatives=99)})

    def test_without_matplotlib_only_plots_fail(self, monkeypatch):
        import torchmetrics.utilities.plot

        monkeypatch.setattr(torchmetrics.utilities.plot, "_MATPLOTLIB_AVAILABLE", False)
        metric, scalar = RankDistribution(3), MeanReciprocalRank()
        metric.update(at_ranks([1]))
        scalar.update(at_ranks([1]))
        for each in (metric, scalar):
            with pytest.raises(ModuleNotFoundError, match="matplotlib"):
                each.plot()
        assert metric.compute().tolist() == [1, 0, 0, 0]
        assert "mrr 1.0000" in scalar.describe()


def describe_in_parts():
    torch.manual_seed(0)
    scores = torch.rand(30, 40, dtype=torch.float64)
    rank, world = dist.get_rank(), dist.get_world_size()
    metric, spread = MeanReciprocalRank(10), RankDistribution(5)
    for each in (metric, spread):
        each.update(scores[rank::world], torch.arange(30)[rank::world])
        if rank == 1:
            each.update(scores[:3, :7], torch.arange(3))
    sharded, items = MeanReciprocalRank(10), embeddings()
    part = [items[:13], items[13:]][rank]  # each process holds a part of the items, and has queries of its own
    own = torch.arange(40)[rank::world]
    sharded.update(rank_catalogue(items[own], part, own, group=dist.group.WORLD))
    told = metric.describe(), metric.describe(), sharded.describe()
    return *told, spread.quantile(0.5), spread.missed(), metric.compute()


def embeddings():
    return torch.randint(-2, 3, (40, 6), generator=torch.Generator().manual_seed(0)).double()


@pytest.mark.distributed
def test_two_processes_tell_the_line_of_one(run_processes):
    torch.manual_seed(0)
    scores = torch.rand(30, 40, dtype=torch.float64)
    metric, spread = MeanReciprocalRank(10), RankDistribution(5)
    for each in (metric, spread):
        each.update(scores, torch.arange(30))
        each.update(scores[:3, :7], torch.arange(3))
    whole = MeanReciprocalRank(10)
    whole.update(rank_catalogue(embeddings(), embeddings(), torch.arange(40)))
    for line, again, sharded, median, missed, value in run_processes(2, describe_in_parts):
        assert line == again == metric.describe()
        assert sharded == whole.describe()
        assert "40 queries; all of 40 candidates" in sharded
        assert "33 queries; all of 7 to 40 candidates" in line
        assert median == spread.quantile(0.5)
        assert missed == 0
        assert value == metric.compute()
