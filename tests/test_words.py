"""What is printed is right: settings, levels, numbers of queries, and refusals in one form."""

import pytest
import torch
from helpers import made_by_hand

from mrr_torch import HitRate, MeanReciprocalRank, rank_relevant, rank_target, state


class TestWords:
    """What is printed is right, in number too."""

    def test_the_level_of_an_interval(self):
        metric = MeanReciprocalRank(10, confidence=0.999)
        metric.update(torch.eye(3), torch.arange(3))
        assert "99.9%" in metric.describe()

    def test_columns_with_an_ignored_label_are_no_candidates(self):
        metric = MeanReciprocalRank(ignore_index=7)
        metric.update(torch.rand(2, 4), torch.tensor([[1, 0, 7, 7], [0, 7, 1, 7]]))
        # A random ranking of two candidates: (1 + 1 / 2) / 2.
        assert "chance 0.7500" in metric.describe()
        assert "all of 2 candidates" in metric.describe()

    def test_one_query(self, unread, monkeypatch):
        monkeypatch.setattr(state, "WAITING", 0)  # what waits is added up on the host, which follows every tie
        metric = MeanReciprocalRank()
        metric.update(made_by_hand((2000, 1, 2, 3000)))
        with pytest.raises(ValueError, match="beyond rank 1,024, got Ranks with such ties, in 1 query, no top_k"):
            metric.compute()

    def test_a_metric_tells_its_settings(self):
        metric = HitRate([1, 10], ties="realistic", num_negatives=99)
        assert repr(metric) == "HitRate(top_k=[1, 10], ties='realistic', num_negatives=99)"

    def test_hit_rate_says_that_its_cut_off_has_to_be_given(self):
        assert "has to be given" in HitRate.__doc__

    @pytest.mark.parametrize(
        ("made", "message"),
        [
            (lambda: MeanReciprocalRank(k=3), "k: expected top_k"),
            (lambda: MeanReciprocalRank(aggregation="median"), "RankDistribution.*quantile"),
            (lambda: MeanReciprocalRank(ignore_index=2**63), "ignore_index: expected an int or None within int64"),
            (lambda: HitRate(2**60), "top_k: expected at most"),
            (lambda: rank_target(torch.eye(3).to_sparse(), torch.arange(3)), "preds: expected .* not sparse"),
            (
                lambda: rank_relevant(torch.eye(3), torch.ones(3, 3).to(torch.uint16)),
                "target: expected bool or integer relevance, got torch.uint16",
            ),
        ],
    )
    def test_refusals_name_the_argument_in_one_line(self, made, message):
        with pytest.raises((TypeError, ValueError), match=message) as error:
            made()
        assert len(str(error.value)) < 200
