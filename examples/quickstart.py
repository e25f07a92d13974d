"""A tour of mrr_torch in a minute: what the mean reciprocal rank is, and the forms in which it takes its input.

Run it with `python examples/quickstart.py`. Each number is checked before it is printed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mrr_torch import MeanReciprocalRank, mean_reciprocal_rank, rank_retrieved


def show(what: str, value: Tensor, expected: float) -> None:
    torch.testing.assert_close(value, torch.tensor(expected))
    print(f"{what:<66} {value:.4f}")


# Three queries, four items. The score of the right item is the second highest, the highest, and the third highest,
# so the reciprocal ranks are 1/2, 1 and 1/3.
scores = torch.tensor([
    [0.1, 0.7, 0.9, 0.2],
    [0.8, 0.3, 0.1, 0.5],
    [0.6, 0.9, 0.2, 0.4],
])  # fmt: skip
target = torch.tensor([1, 0, 3])  # the column of the right item

metric = MeanReciprocalRank()
metric.update(scores, target)
show("ranks 2, 1, 3", metric.compute(), (1 / 2 + 1 + 1 / 3) / 3)

# With a cut-off, a right item below it counts 0. The query stays in the mean.
show("ranks 2, 1, 3 with top_k=2", mean_reciprocal_rank(scores, target, top_k=2), (1 / 2 + 1 + 0) / 3)

# Only the order of the scores counts: log-probabilities, all negative, are as good as any.
show("the same from log-probabilities", mean_reciprocal_rank(scores.log_softmax(-1), target), 11 / 18)

# A metric takes as many batches as there are, and a sequence of cut-offs gives a value for each.
metric = MeanReciprocalRank(top_k=[1, 2, 3])
for batch_scores, batch_target in zip(scores.split(2), target.split(2), strict=True):
    metric.update(batch_scores, batch_target)
values = metric.compute()
print(f"in two batches, at three cut-offs: {', '.join(f'{name} {value:.4f}' for name, value in values.items())}")
torch.testing.assert_close(values["mrr@3"], torch.tensor(11 / 18))

# A search engine or an ANN index returns ids, not scores: rank the lists as they are displayed. Twelve queries with
# ten results each: the right one is first six times, once fourth, once seventh, and four times it was not found.
retrieved = torch.arange(10).expand(12, 10)
relevant = torch.tensor([0] * 6 + [3, 6] + [99] * 4)
ranks = rank_retrieved(retrieved, relevant)
show("ranks 1 six times, 4, 7, and four missed", mean_reciprocal_rank(ranks), (6 + 1 / 4 + 1 / 7) / 12)
show("  MRR@3: the ranks 4 and 7 are cut off", mean_reciprocal_rank(ranks, top_k=3), 6 / 12)
show("  MRR@10", mean_reciprocal_rank(ranks, top_k=10), (6 + 1 / 4 + 1 / 7) / 12)
show("the right one always first", mean_reciprocal_rank(rank_retrieved(retrieved, torch.zeros(12).long())), 1.0)

# Nested lists work too, with ids of any kind. Two search engines, the same three queries:
wanted = ["apple", "pear", "plum"]
first = [["apple", "fig"], ["pear", "apple"], ["fig", "plum"]]
second = [["fig", "apple"], ["pear", "fig"], ["pear", "plum"]]
show("one engine, ranks 1, 1, 2", mean_reciprocal_rank(rank_retrieved(first, wanted)), (1 + 1 + 1 / 2) / 3)
show("another, ranks 2, 1, 2", mean_reciprocal_rank(rank_retrieved(second, wanted)), (1 / 2 + 1 + 1 / 2) / 3)

# Where several are relevant, the first of them counts: the donut is on top. The muffin and the scone, which were not
# retrieved, change nothing.
ranks = rank_retrieved([["donut", "croissant", "roll", "bagel"]], [{"donut", "muffin", "scone"}])
show("several relevant ids, the first at rank 1", mean_reciprocal_rank(ranks), 1.0)

# The same from scores, with a relevance for each item: the best relevant item stands second, then first.
scores = torch.tensor([[0.9, 0.6, 0.1, 0.3], [0.2, 0.4, 0.8, 0.5]])
relevance = torch.tensor([[0, 1, 1, 0], [1, 0, 1, 0]])
show("several relevant items, ranks 2 and 1", mean_reciprocal_rank(scores, relevance), (1 / 2 + 1) / 2)

# Sampled evaluation: the target, in column 0, among 4 negatives; 99 are usual. Such values are far higher than those
# of the full catalogue and need not keep the order of models, so the number of negatives has to be said.
sampled = MeanReciprocalRank(num_negatives=4)
sampled.update(torch.tensor([[0.7, 0.2, 0.9, 0.1, 0.4], [0.8, 0.3, 0.6, 0.5, 0.1]]))
show("target + 4 sampled negatives, ranks 2 and 1", sampled.compute(), (1 / 2 + 1) / 2)
