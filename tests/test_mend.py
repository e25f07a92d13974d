"""What was wrong in silence once: each case with its value by hand, on the CPU and where no value can be read."""

import math
from fractions import Fraction

import pytest
import torch
from helpers import made_by_hand, quietly
from torchmetrics.retrieval import RetrievalNormalizedDCG

from mrr_torch import (
    MeanReciprocalRank,
    NormalizedDCG,
    Outcome,
    RankDistribution,
    RankMetric,
    Ranks,
    mean_reciprocal_rank,
    rank_grouped,
    rank_relevant,
    rank_retrieved,
    rank_target,
    reciprocal_rank,
)


def value_of(metric, *arguments, **options):
    metric.update(*arguments, **options)
    return metric.compute()


class TestSeveralRelevantItems:
    """Queries of which the state knows the first relevant item only."""

    @pytest.mark.parametrize(
        "arguments",
        [
            ((torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[1, 0, 1]])), {}),
            ((torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 0, 1])), {"indexes": torch.tensor([4, 4, 4])}),
            ((torch.tensor([[3.0, 2.0, 1.0]]),), {"relevant": torch.tensor([[0, 2]])}),
        ],
        ids=["rows", "flat", "ids"],
    )
    def test_ndcg_refuses_them_with_their_number_and_says_what_takes_them(self, arguments, path):
        metric = NormalizedDCG(10)
        metric.update(*arguments[0], **arguments[1])
        with pytest.raises(ValueError, match=f"{RetrievalNormalizedDCG.__name__} takes several.*several in 1 query"):
            metric.compute()

    def test_ndcg_refuses_retrieved_lists_of_them(self, path):
        metric = NormalizedDCG(10)
        metric.update(rank_retrieved([["a", "x", "y"]], [["a", "b", "c"]]))
        with pytest.raises(ValueError, match="several in 1 query"):
            metric.compute()

    def test_a_tie_of_them_far_down_does_not_leave_the_mean(self, path):
        ranks = Ranks(*torch.tensor([[2000, 0], [1, 0], [2, 1], [3000, 10]]))
        assert value_of(MeanReciprocalRank(10), ranks) == 1 / 2

    def test_they_keep_their_number_of_candidates_where_each_query_counts_once(self):
        # Rank 2 of 3 candidates: as many as the target and 2 negatives, so the observed rank is taken.
        scores, relevance = torch.tensor([[0.1, 0.5, 0.9]]), torch.tensor([[1, 1, 0]])
        metric = MeanReciprocalRank(num_negatives=2, num_queries=1)
        metric.update(scores, relevance, query_ids=torch.tensor([0]))
        assert metric.compute() == 1 / 2
        metric = MeanReciprocalRank(10, num_queries=1)
        metric.update(scores, relevance, query_ids=torch.tensor([0]))
        assert "all of 3 candidates" in metric.describe()

    @pytest.mark.parametrize("number", [0, 1])
    @pytest.mark.parametrize("candidates", [None, torch.tensor([7, 8, 9])])
    def test_no_column_or_one_that_may_be_padding(self, number, candidates, path):
        scores = torch.tensor([[0.1, 0.5, 0.9], [0.1, 0.5, 0.9]])
        target = torch.tensor([[1], [-1]])[:, :number]
        ranks = rank_target(scores, target, candidates=candidates)
        assert ranks.relevant.tolist() == ([1, Outcome.EMPTY] if number else [Outcome.EMPTY, Outcome.EMPTY])
        assert ranks.higher.tolist() == ([1, 0] if number else [0, 0])
        assert not ranks.several.any()

    def test_a_column_that_does_not_exist_is_an_error_where_it_is_the_only_one(self, unread):
        metric = MeanReciprocalRank()
        metric.update(torch.rand(2, 3), relevant=torch.tensor([[3], [0]]))
        with pytest.raises(ValueError, match=r"target: expected ids in .* in 1 query"):
            metric.compute()

    @pytest.mark.parametrize(
        ("settings", "relevant", "message"),
        [
            ({}, torch.rand(2, 1), "relevant: expected a tensor of integer ids, got torch.float32"),
            ({}, torch.tensor([[3], [0]]), r"relevant: expected ids in 0..2, got 3"),
            ({}, torch.tensor([[0]]), r"relevant: expected shape \(2,\), or \(2, 'M'\) .* got shape \(1, 1\)"),
            ({"ignore_index": 0}, torch.tensor([[1, 0], [2, 0]]), "ignore_index: expected a negative number, or None"),
            ({"miss_index": -5}, torch.tensor([[1], [-5]]), "miss_index: expected None with relevant"),
            ({"num_negatives": 3}, torch.tensor([[1], [0]]), "preds: expected at least 4 columns"),
        ],
    )
    def test_arguments_beside_their_ids_are_checked_by_name(self, settings, relevant, message):
        with pytest.raises((TypeError, ValueError), match=message):
            MeanReciprocalRank(**settings).update(torch.rand(2, 3), relevant=relevant)


class TestLabels:
    """Labels are compared as whole numbers, not modulo the size of their type."""

    @pytest.mark.parametrize(
        ("dtype", "label", "ignore_index"),
        [
            (torch.uint8, 156, -100),
            (torch.uint8, 1, 257),
            (torch.int8, 1, 257),
            (torch.int16, 2, 2**16 + 2),
            (torch.int32, 3, 2**32 + 3),
        ],
    )
    def test_a_label_is_not_ignored_for_its_last_digits(self, dtype, label, ignore_index, path):
        scores, labels = torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[0, label, 0]]).to(dtype)
        assert value_of(MeanReciprocalRank(ignore_index=ignore_index), scores, labels) == 1 / 2
        flat = MeanReciprocalRank(ignore_index=ignore_index)
        assert value_of(flat, scores[0], labels[0], indexes=torch.tensor([0, 0, 0])) == 1 / 2

    def test_negative_relevance_is_not_let_through_for_its_last_digits(self):
        labels = torch.tensor([[1, -1, 0]], dtype=torch.int8)
        with pytest.raises(ValueError, match="target: expected relevance >= 0"):
            rank_relevant(torch.rand(1, 3), labels, ignore_index=255)

    @pytest.mark.parametrize("columns", [1, 2])
    def test_bad_relevance_in_an_excluded_column_is_raised_by_compute(self, columns, unread):
        metric = MeanReciprocalRank()
        metric.update(torch.full((1, columns), 2.0), torch.full((1, columns), -7), exclude=torch.arange(columns)[None])
        with pytest.raises(ValueError, match=r"target: expected relevance >= 0 .* in 1 query"):
            metric.compute()


@pytest.mark.parametrize(
    "ids",
    [
        [7, -(2**63), 0],
        [7, -(2**62), 2**62],
        [7, -1, 2**63 - 1],
        [0, 2**62, -(2**62)],
        [2**63 - 1, 2**63 - 2, 0],
        [1, 2**62 + 1, 2**63 - 1],
    ],
)
def test_candidate_ids_at_the_ends_of_int64_are_different_items(ids, path):
    competing = sum(number >= 0 for number in ids[1:])
    ranks = rank_target(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([0]), candidates=torch.tensor([ids]))
    assert ranks.higher.tolist() == [competing]
    flat = rank_grouped(
        torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1, 0, 0]), torch.tensor([0, 0, 0]), candidates=torch.tensor(ids)
    )
    assert flat.higher.tolist()[0] == competing


def test_a_mean_is_taken_in_float64_whatever_the_default_dtype():
    scores, target = torch.eye(3).repeat(30_000, 1), torch.arange(3).repeat(30_000)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        assert mean_reciprocal_rank(scores, target) == 1
    finally:
        torch.set_default_dtype(before)


def test_a_query_whose_items_are_all_masked_has_no_relevant_item_in_any_form(path):
    scores, labels = torch.tensor([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0]]), torch.tensor([[1, 0], [1, 0], [0, 1]])
    mask, ids = torch.tensor([[True, True], [False, False], [True, True]]), torch.tensor([[3, 3], [5, 5], [8, 8]])
    expected = [1, 0, 1 / 2]
    assert reciprocal_rank(scores, labels, mask=mask).tolist() == expected
    items = {"indexes": ids.view(-1), "mask": mask.view(-1)}
    assert reciprocal_rank(scores.view(-1), labels.view(-1), **items).tolist() == expected


def test_compiled_functions_have_no_value_for_a_target_out_of_range():
    compiled = torch.compile(lambda scores, target: reciprocal_rank(scores, target), fullgraph=True)
    values = quietly(compiled, torch.tensor([[1.0, 2.0], [1.0, 2.0]]), torch.tensor([0, 7]))
    assert values[0] == 1 / 2
    assert values[1].isnan()


def test_the_largest_cut_off_cuts_nothing_off():
    scores = torch.tensor([[1.0, 2.0]])
    for ties in ("expected", "realistic"):
        assert reciprocal_rank(scores, torch.tensor([0]), 2**63 - 1, ties=ties) == 1 / 2


class TestSubclasses:
    """A metric of one's own has a gain, and a cut-off: what is kept of the ranks beyond is that of MRR."""

    class Squares(RankMetric):
        """1 / rank**2."""

        key = "squares"

        def gain(self, ranks):
            return 1 / ranks**2

    def test_its_gain_is_taken_at_any_rank_up_to_the_cut_off(self, float64):
        value = value_of(self.Squares(5000), made_by_hand((1999, 0, 1, 9000)))
        assert float(value) == pytest.approx(1 / 2000**2, rel=1e-15)  # rounding of one division

    @pytest.mark.parametrize("parent", [RankMetric, MeanReciprocalRank])
    def test_it_has_to_have_a_cut_off(self, parent):
        other = type("Other", (parent,), {"key": "other", "gain": lambda self, ranks: 1 / ranks**2})
        with pytest.raises(ValueError, match="top_k: expected a positive int or a sequence of them, got None"):
            other()


def test_per_query_raises_what_compute_raises(unread):
    metric = MeanReciprocalRank(num_queries=2)
    metric.update(torch.eye(3), torch.arange(3), query_ids=torch.tensor([0, 1, 7]))
    for read in (metric.per_query, metric.compute):
        with pytest.raises(ValueError, match=r"query_ids: expected ids in .* in 1 query"):
            read()


@pytest.mark.parametrize(("higher", "tied", "candidates"), [(5_000_000, 1, 10_000_000), (0, 3, 10**8), (70, 1, 10**5)])
def test_the_expectation_over_ties_keeps_its_digits(higher, tied, candidates, float64):
    value = float(value_of(MeanReciprocalRank(num_negatives=1), made_by_hand((higher, tied, 1, candidates))))
    others = candidates - 1
    above, beside = Fraction(higher, others), Fraction(tied, others)
    expected = (1 - above - beside) + above / 2 + beside * Fraction(3, 4)  # a tied one is before or behind
    assert value == pytest.approx(float(expected), rel=1e-12)  # what sampled_ranks states


def test_ranks_of_no_items_are_where_the_scores_are():
    nothing = torch.zeros(0, dtype=torch.long)
    with torch.device("meta"):
        ranks = rank_grouped(nothing.float(), nothing, nothing)
    assert {field.device.type for field in ranks} == {"cpu"}


def test_a_metric_made_on_the_default_device_has_its_state_there():
    with torch.device("meta"):
        metric = MeanReciprocalRank()
    assert {state.device.type for state in metric.metric_state.values()} == {"meta"}


def test_no_queries_with_a_mask_for_all(path):
    for rank, target in ((rank_target, torch.zeros(0).long()), (rank_relevant, torch.zeros(0, 3).long())):
        ranks = rank(torch.zeros(0, 3), target, mask=torch.tensor([True, True, False]))
        assert ranks.higher.shape == (0,)


class TestWeights:
    """Any weights that are numbers."""

    SCORES, TARGET = torch.tensor([[1.0, 2.0], [3.0, 1.0]]), torch.tensor([0, 0])

    @pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e-12, 1.0, 1e100])
    def test_their_scale_does_not_matter(self, scale, float64):
        weights = torch.tensor([scale, scale], dtype=torch.float64)
        metric = MeanReciprocalRank(weighted=True, confidence=0.9)
        value = value_of(metric, self.SCORES, self.TARGET, weights=weights)
        assert float(value["mrr"]) == pytest.approx((1 / 2 + 1) / 2, rel=1e-15)  # one sum and one division
        assert value["mrr_low"] <= value["mrr"] <= value["mrr_high"]
        distribution = RankDistribution(3, weighted=True)
        distribution.update(self.SCORES, self.TARGET, weights=weights)
        assert distribution.quantile([0.5, 1.0]).tolist() == [1, 2]

    @pytest.mark.parametrize("weight", [1e101, math.inf, math.nan, -1.0])
    def test_those_whose_squares_are_no_numbers_are_refused(self, weight, path):
        metric = MeanReciprocalRank(weighted=True)
        with pytest.raises(ValueError, match="weights: expected finite numbers"):
            value_of(metric, self.SCORES, self.TARGET, weights=torch.tensor([1.0, weight], dtype=torch.float64))


@pytest.mark.parametrize("rows", ["of the queries", "of the padding too"])
def test_queries_of_a_flat_list_have_their_cohorts_and_weights_where_their_number_cannot_be_read(rows, unread):
    more = [] if rows == "of the queries" else [9, 9, 9]  # padding rows are no queries: what they hold is not used
    metric = MeanReciprocalRank(cohorts=2, weighted=True)
    metric.update(
        torch.tensor([1.0, 2.0, 4.0, 3.0, 2.0]),
        torch.tensor([1, 0, 1, 0, 0]),
        indexes=torch.tensor([0, 0, 1, 1, 1]),
        cohort=torch.tensor([1, 0, *more]),
        weights=torch.tensor([1, 3, *more]),
    )
    assert {name: float(value) for name, value in metric.compute().items()} == {
        "mrr": (1 * 1 / 2 + 3 * 1) / 4,
        "mrr/0": 1,
        "mrr/1": 1 / 2,
    }
    metric.update(
        torch.rand(3), torch.tensor([1, 0, 1]), indexes=torch.arange(5, 8), cohort=torch.zeros(2).long(),
        weights=torch.ones(2),
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"(cohort|weights): expected .* in 1 query"):
        metric.compute()


@pytest.mark.parametrize("settings", [{}, {"num_negatives": 2}], ids=str)
def test_a_compiled_update_is_one_graph(settings):
    torch._dynamo.reset()
    metric = MeanReciprocalRank(10, **settings)
    explained = quietly(torch._dynamo.explain(metric.update), torch.eye(5), torch.arange(5))
    assert explained.graph_count == 1
    assert explained.graph_break_count == 0
