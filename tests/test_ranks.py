"""`Ranks` in the hands of users: plain tensors that own their memory and mean the same after any handling."""

import pytest
import torch
from helpers import made_by_hand

from mrr_torch import MeanReciprocalRank, Ranks, rank_relevant, rank_retrieved, rank_target

FORMS = {
    "target": lambda: rank_target(torch.tensor([[1.0, 2.0, 3.0]] * 3), torch.tensor([0, 0, 1])),
    "relevance": lambda: rank_relevant(torch.tensor([[1.0, 2.0, 3.0]] * 3), torch.tensor([[1, 0, 0]] * 3)),
    "retrieved": lambda: rank_retrieved(torch.tensor([[5, 6]] * 3), torch.tensor([6, 6, 5])),
}


class TestRanksAreTheUsers:
    """What is returned is plain, owns its memory, and means the same after any handling."""

    @pytest.mark.parametrize("form", FORMS)
    def test_a_change_of_one_query_changes_no_other(self, form, path):
        for at in range(4):
            ranks = FORMS[form]()
            before = [field.clone() for field in ranks]
            ranks[at][0] = 77
            assert all(torch.equal(field[1:], old[1:]) for field, old in zip(ranks, before, strict=True))
            assert all(torch.equal(ranks[i], before[i]) for i in range(4) if i != at)

    @pytest.mark.parametrize(
        "handled",
        [
            lambda ranks: Ranks(*(field[1:] for field in ranks)),
            lambda ranks: Ranks(*torch.stack(list(ranks))),
            lambda ranks: Ranks(*(field.clone() for field in ranks)),
            lambda ranks: Ranks(*torch.tensor([field.tolist() for field in ranks])),
        ],
        ids=["sliced", "stacked", "copied", "rebuilt"],
    )
    def test_several_relevant_items_are_known_after_handling(self, handled, path):
        ranks = rank_relevant(torch.tensor([[1.0, 2.0, 3.0]] * 3), torch.tensor([[1, 1, 0]] * 3))
        metric = MeanReciprocalRank(10)
        metric.update(handled(ranks))
        assert "chance" not in metric.describe()
        assert "all of 3 candidates" in metric.describe()

    def test_addition_is_refused_and_merge_adds_the_counts(self):
        left, right = made_by_hand((1, 0, 1, 3)), made_by_hand((2, 1, 0, 4))
        with pytest.raises(TypeError, match="merge"):
            left + right
        assert [field.item() for field in left.merge(right)] == [3, 1, 1, 7]

    @pytest.mark.parametrize("bad", [(1, 0, -50, 3), (-1, 0, 1, 3), (1, -1, 1, 3), (1, 0, 1, -3)])
    def test_counts_that_are_none_are_raised_by_compute_where_they_could_not_be_read(self, bad, unread):
        metric = MeanReciprocalRank()
        metric.update(made_by_hand((0, 0, 1, 3), bad))
        with pytest.raises(ValueError, match="preds: expected Ranks with counts >= 0, got others, in 1 query"):
            metric.compute()
