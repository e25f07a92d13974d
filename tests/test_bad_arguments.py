"""Bad arguments of the functions that rank, or that draw negatives, are refused by name."""

import re

import pytest
import torch

from mrr_torch import (
    MeanReciprocalRank,
    rank_catalogue,
    rank_grouped,
    rank_relevant,
    rank_retrieved,
    rank_target,
    sample_negatives,
)

SCORES = torch.tensor([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]])
TARGET = torch.tensor([0, 1])
IDS = torch.tensor([[5, 6, 7], [7, 8, 9]])
MASK = torch.ones(2, 3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((IDS, torch.tensor([5, 6, 7])), ValueError, "relevant: expected shape (2,) or (2, 'M'), got shape (3, 1)"),
        ((IDS.float(), TARGET), TypeError, "retrieved: expected a tensor of integer ids, got torch.float32"),
        ((["donut", "roll"], [["roll"], ["roll"]]), TypeError, "retrieved[0]: expected a list of ids, got 'donut'"),
        (([["a"], ["b"]], [["a"]]), ValueError, "relevant: expected ids for 2 queries, as in retrieved, got 1"),
        (([["8", "3"]], [[3]]), TypeError, "relevant: expected str ids, as retrieved, got int"),
        (([[8, 3]], [["3"]]), TypeError, "relevant: expected int ids, as retrieved, got str"),
        (([[8, 3]], [[3.0]]), TypeError, "relevant: expected int ids, as retrieved, got float"),
        (([[torch.tensor(3)]], [[3]]), TypeError, "retrieved[0]: expected hashable ids (not tensors), got Tensor"),
        (([["8"], [3]], [[8], [3]]), TypeError, "retrieved: expected ids of one type, got int, str"),
        (([["a"]], [["a"], ["b"]]), ValueError, "relevant: expected ids for 1 query, as in retrieved, got 2"),
        ((torch.tensor([[1], [2]]), torch.tensor([[1]])), ValueError, "relevant: expected shape (2,) or (2, 'M'), got"),
        (([[b"8", b"3"]], [["3"]]), TypeError, "relevant: expected bytes ids, as retrieved, got str"),
        ((torch.tensor([[8.0, 3.0]]), torch.tensor([3])), TypeError, "retrieved: expected a tensor of integer ids"),
        ((["abc"], [["a"]]), TypeError, "retrieved[0]: expected a list of ids, got 'abc'"),
        ((["a", "b"], ["a"]), TypeError, "retrieved"),
        (("ab", ["a"]), TypeError, "retrieved"),
        (([[torch.tensor(8), torch.tensor(3)]], [[3]]), TypeError, "retrieved[0]: expected hashable ids (not tensors)"),
        (([["a"]], "a"), TypeError, "relevant: expected a tensor, or a list with an entry for each query, got str"),
    ],
    ids=lambda case: str(case)[:50],
)
def test_retrieved_lists_are_checked(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)) as caught:
        rank_retrieved(*arguments)
    assert re.match(r"^\w+(\[\d+\])?: expected .*, got ", str(caught.value))
    assert str(caught.value).startswith(re.match(r"\w+", message)[0])


QUERIES, ITEMS, ROWS = torch.ones(2, 3), torch.ones(5, 3), torch.tensor([0, 4])


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((QUERIES, torch.ones(5, 4), ROWS), {}, ValueError, "query_embeddings: expected shape (..., 4)"),
        ((QUERIES, torch.ones(0, 3), ROWS), {}, ValueError, "item_embeddings: expected shape (N, D), N >= 1"),
        ((QUERIES, torch.ones(2, 5, 3), ROWS), {}, ValueError, "item_embeddings: expected shape (N, D), N >= 1"),
        ((QUERIES, torch.ones(3), ROWS), {}, ValueError, "item_embeddings: expected shape (N, D), N >= 1"),
        ((QUERIES, ITEMS, ROWS[:1]), {}, ValueError, "target: expected shape (2,), or (2, 'M') for several"),
        ((QUERIES, ITEMS.long(), ROWS), {}, TypeError, "item_embeddings: expected a floating-point tensor, got"),
        ((QUERIES.int(), ITEMS, ROWS), {}, TypeError, "query_embeddings: expected a floating-point tensor, got"),
        ((QUERIES.tolist(), ITEMS, ROWS), {}, TypeError, "query_embeddings: expected a floating-point tensor, got"),
        ((QUERIES, ITEMS.to("meta"), ROWS), {}, ValueError, "item_embeddings: expected a tensor on cpu"),
        ((QUERIES, ITEMS, ROWS.to("meta")), {}, ValueError, "target: expected a tensor on cpu"),
        ((QUERIES, ITEMS, torch.tensor([0, 5])), {}, ValueError, "target: expected ids in 0..4, got 5"),
        ((QUERIES, ITEMS, torch.tensor([0, -1])), {}, ValueError, "target: expected ids in 0..4, got -1"),
        ((QUERIES, ITEMS, ROWS.float()), {}, TypeError, "target: expected a tensor of integer ids"),
        ((QUERIES, ITEMS, 0), {}, TypeError, "target: expected a tensor of integer ids, got int"),
        ((QUERIES, ITEMS, ROWS[None]), {}, ValueError, "target: expected shape (2,), or (2, 'M') for several"),
        ((QUERIES, ITEMS, ROWS), {"bias": torch.ones(2)}, ValueError, "bias: expected shape (5,), got shape (2,)"),
        ((QUERIES, ITEMS, ROWS), {"bias": torch.ones(5).int()}, TypeError, "bias: expected a floating-point tensor"),
        ((QUERIES, ITEMS, ROWS), {"bias": 0.0}, TypeError, "bias: expected a floating-point tensor, got float"),
        ((QUERIES, ITEMS, ROWS), {"exclude": torch.tensor([5])}, ValueError, "exclude: expected ids in 0..4, padded"),
        ((QUERIES, ITEMS, ROWS), {"exclude": torch.ones(2, 5).bool()}, TypeError, "exclude: expected a tensor of"),
        ((QUERIES, ITEMS, ROWS), {"exclude": torch.tensor(0)}, ValueError, "exclude: expected shape (2, 'H'), or"),
        ((QUERIES, ITEMS, ROWS), {"exclude": ROWS[None]}, ValueError, "exclude: expected shape (2, 'H'), or"),
        ((QUERIES, ITEMS, ROWS), {"tile": 0}, ValueError, "tile: expected a positive int, got 0"),
        ((QUERIES, ITEMS, ROWS), {"tile": 1.5}, TypeError, "tile: expected a positive int, got 1.5"),
        ((QUERIES, ITEMS, ROWS), {"group": 1}, TypeError, "group: expected a process group that this process"),
        ((QUERIES, ITEMS, ROWS), {"implementation": "fast"}, ValueError, "implementation: expected one of 'auto'"),
    ],
    ids=lambda case: str(case)[:40],
)
@pytest.mark.parametrize("implementation", ["streamed", "reference"])
def test_embeddings_are_checked(implementation, arguments, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        rank_catalogue(*arguments, **{"implementation": implementation} | options)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (([3], 5), {}, TypeError, "target: expected a tensor of integer ids, got list"),
        ((torch.tensor([[3]]), 5), {}, ValueError, "target: expected shape (B,), got shape (1, 1)"),
        ((torch.tensor([5]), 5, 2), {}, ValueError, "target: expected ids in 0..4, got ids from 5 to 5"),
        ((torch.tensor([0.5]), 5, 2), {}, TypeError, "target: expected a tensor of integer ids, got torch.float32"),
        ((torch.tensor([3]), 0, 2), {}, ValueError, "num_items: expected a positive int, got 0"),
        ((torch.tensor([3]), 5, 0), {}, ValueError, "num_negatives: expected a positive int, got 0"),
        ((torch.tensor([3]), 5, 5), {}, ValueError, "num_negatives: expected at most 4, the items left for query 0"),
        (
            (torch.tensor([3, 3]), 5, 3),
            {"exclude": torch.tensor([[-1, -1], [0, 1]])},
            ValueError,
            "num_negatives: expected at most 2, the items left for query 1, got 3",
        ),
        ((torch.tensor([3]), 5, 2), {"exclude": torch.tensor([5])}, ValueError, "exclude: expected ids in 0..4"),
        (
            (torch.tensor([3]), 5, 2),
            {"exclude": torch.zeros(2, 1).long()},
            ValueError,
            "exclude: expected shape (1, H)",
        ),
        ((torch.tensor([3]), 5, 2), {"weights": torch.ones(4)}, ValueError, "weights: expected shape (5,)"),
        ((torch.tensor([3]), 5, 2), {"weights": -torch.ones(5)}, ValueError, "weights: expected finite numbers >= 0"),
        ((torch.tensor([3]), 2, 1), {"weights": torch.tensor([0.0, 1.0])}, ValueError, "target: expected ids in 0..1"),
        (
            (torch.tensor([1]), 3, 2),
            {"weights": torch.tensor([0.0, 1.0, 1.0])},
            ValueError,
            "num_negatives: expected at most 1, the items left for query 0, got 2",
        ),
        (
            (torch.tensor([1]), 2, 1),
            {"exclude": torch.tensor([0]), "replacement": True},
            ValueError,
            "num_negatives: expected at most 0, the items left for query 0, got 1",
        ),
    ],
    ids=lambda case: str(case)[:50],
)
def test_arguments_of_sample_negatives_are_checked(arguments, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        sample_negatives(*arguments, **options)


def test_scores_on_another_device_than_the_metric_are_refused():
    with pytest.raises(ValueError, match="preds: expected a tensor on cpu, as the metric, got meta"):
        MeanReciprocalRank().update(SCORES.to("meta"), TARGET.to("meta"))
    for rank, labels in ((rank_target, TARGET), (rank_relevant, MASK)):
        with pytest.raises(ValueError, match="target: expected a tensor on meta, where the scores are, got cpu"):
            rank(SCORES.to("meta"), labels)
    with pytest.raises(ValueError, match="indexes: expected a tensor on cpu"):
        rank_grouped(SCORES[0], MASK[0], IDS[0].to("meta"))
