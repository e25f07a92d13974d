"""FAISS: an approximate index gives ids, not scores, and the rank of a target is its position in the list.

An index that finds fewer than it was asked for fills its list with -1, which no id equals. A target that was not found
counts 0; what is not retrieved can't be counted, so the cut-off is at most the length of the lists.
"""

import faiss
import torch

from mrr_torch import MeanReciprocalRank, rank_catalogue, rank_retrieved


def main() -> None:
    torch.manual_seed(0)
    items, target = torch.randn(500, 16), torch.randint(500, (301,))
    queries = items[target] + torch.randn(301, 16)
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(16), 16, 50, faiss.METRIC_INNER_PRODUCT)
    index.train(items.numpy())
    index.add(items.numpy())
    for index.nprobe in (1, 50):  # one of the 50 cells, in which there are few items; and all of them
        _, ids = index.search(queries.numpy(), 10)
        metric = MeanReciprocalRank(10)
        metric.update(rank_retrieved(torch.from_numpy(ids), target))
        print(f"nprobe {index.nprobe}: mrr@10 {metric.compute():.6f}")
    exact = MeanReciprocalRank(10)
    exact.update(rank_catalogue(queries, items, target))
    print(f"exact: mrr@10 {exact.compute():.6f}")


if __name__ == "__main__":
    main()
