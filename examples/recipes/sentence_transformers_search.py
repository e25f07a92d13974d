"""sentence-transformers: search with several relevant documents a query; the one that is found first counts.

The others do not compete with it. Cosine similarity is the dot product of normalised embeddings.
"""

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import StaticEmbedding
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from mrr_torch import MeanReciprocalRank

DOCUMENTS = ["bread and butter", "fresh bread", "a red bicycle", "butter cake", "repair a bicycle", "red paint"]
QUERIES = {"bread": [0, 1], "repair bicycle": [2, 4], "red cake": [3]}


def encoder() -> SentenceTransformer:
    """Return a model with random word embeddings, in place of one that has been trained."""
    torch.manual_seed(0)
    words = sorted({word for text in DOCUMENTS for word in text.split()})
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(["?", *words])}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=64)], device="cpu")


def main() -> None:
    model = encoder()
    scores = model.similarity(model.encode(list(QUERIES)), model.encode(DOCUMENTS))
    relevance = torch.zeros(scores.shape, dtype=torch.bool)
    for row, relevant in enumerate(QUERIES.values()):
        relevance[row, relevant] = True
    metric = MeanReciprocalRank(10)
    metric.update(scores, relevance)
    print(f"mrr@10 {metric.compute():.6f}")


if __name__ == "__main__":
    main()
