"""More public fault reports as inputs with the right answer, by hand; the earlier ones are in `test_public_reports`."""

import pytest
import torch

from mrr_torch import MeanReciprocalRank, mean_reciprocal_rank, reciprocal_rank

pytestmark = pytest.mark.usefixtures("float64")


def close(value):
    return pytest.approx(value, rel=0, abs=1e-15)  # a few roundings of numbers below 1


def test_fractional_relevance_is_refused_not_cut_down():
    scores = torch.tensor([[0.9, 0.4, 0.1]])
    for relevance in ([[0.0, 0.5, 1.0]], [[0.0, 0.5, 0.25]]):
        with pytest.raises(TypeError, match="target: expected bool or integer relevance"):
            MeanReciprocalRank().update(scores, torch.tensor(relevance))


def test_a_single_query_needs_no_batch_dimension():
    assert mean_reciprocal_rank(torch.tensor([0.1, 0.7, 0.4]), torch.tensor(2)) == 1 / 2


def test_batches_of_different_pools_weigh_by_their_queries():
    metric = MeanReciprocalRank()
    metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.3]]), torch.tensor([0, 1]))
    metric.update(torch.tensor([[0.2, 0.5, 0.9], [0.1, 0.9, 0.3], [0.6, 0.4, 0.5]]), torch.tensor([0, 1, 2]))
    assert float(metric.compute()) == close((1 + 1 / 2 + 1 / 3 + 1 + 1 / 2) / 5)


def test_correct_captions_do_not_compete_with_each_other():
    scores = torch.tensor([[0.2, 0.6, 0.1, 0.9, 0.3, 0.4], [0.8, 0.5, 0.7, 0.6, 0.1, 0.2]])
    relevance = torch.tensor([[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]])
    assert reciprocal_rank(scores, relevance).tolist() == close([1 / 2, 1 / 3])
    ids = torch.tensor([[0, 1, 2], [3, 4, 5]])
    assert reciprocal_rank(scores, relevant=ids).tolist() == close([1 / 2, 1 / 3])


def test_positive_edges_first_and_query_ids_interleaved():
    scores = torch.tensor([0.5, 0.2, 0.7, 0.9, 0.1, 0.3, 0.6, 0.7, 0.8])
    labels, ids = torch.tensor([1, 1, 1, 0, 0, 0, 0, 0, 0]), torch.tensor([0, 1, 2, 0, 0, 1, 1, 2, 2])
    for ties, last in (("expected", (1 / 2 + 1 / 3) / 2), ("optimistic", 1 / 2), ("pessimistic", 1 / 3)):
        value = mean_reciprocal_rank(scores, labels, indexes=ids, ties=ties)
        assert float(value) == close((1 / 2 + 1 / 3 + last) / 3)


def test_a_larger_cut_off_never_has_a_smaller_value():
    scores = torch.tensor([[0.9, 0.8, 0.7, 0.6], [0.1, 0.5, 0.6, 0.2]])
    metric = MeanReciprocalRank([1, 2, 4])
    metric.update(scores, torch.tensor([[0, 1, 0, 1], [1, 0, 0, 1]]))
    values = [float(value) for value in metric.compute().values()]
    assert values == close([0, 1 / 4, (1 / 2 + 1 / 3) / 2])


def test_answers_of_another_domain_do_not_compete():
    scores = torch.tensor([[0.9, 0.3, 0.8, 0.5], [0.2, 0.4, 0.9, 0.6]])
    outside = torch.tensor([[0, 2], [2, 0]])
    values = reciprocal_rank(scores, torch.tensor([3, 1]), exclude=outside)
    assert values.tolist() == close([1, 1 / 2])


def test_a_query_whose_gold_passage_is_no_candidate_stays_in_the_mean():
    scores = torch.tensor([[0.9, 0.2, 0.1], [0.4, 0.6, 0.5], [0.3, 0.2, 0.7]])
    relevance = torch.tensor([[0, 1, 0], [0, 0, 0], [1, 0, 0]])
    assert reciprocal_rank(scores, relevance).tolist() == close([1 / 2, 0, 1 / 2])
    assert float(mean_reciprocal_rank(scores, relevance)) == close(1 / 3)
