"""All forms of input, as functions that rank inputs with ties, NaN and infinities."""

import torch

from mrr_torch import rank_catalogue, rank_grouped, rank_relevant, rank_retrieved, rank_target

QUERIES, COLUMNS = 37, 50


def inputs():
    """Scores with ties, NaN and infinities, and everything that may come with them."""
    generator = torch.Generator().manual_seed(0)

    def ids(*shape, low=0, high=COLUMNS):
        return torch.randint(low, high, shape, generator=generator)

    scores = ids(QUERIES, COLUMNS, high=6).float()
    scores[torch.rand(QUERIES, COLUMNS, generator=generator) < 0.05] = torch.nan
    scores[torch.rand(QUERIES, COLUMNS, generator=generator) < 0.05] = torch.inf
    return {
        "scores": scores,
        "target": ids(QUERIES),
        "relevance": (torch.rand(QUERIES, COLUMNS, generator=generator) < 0.1).long(),
        "history": ids(QUERIES, 7, low=-1),
        "mask": torch.rand(QUERIES, COLUMNS, generator=generator) < 0.8,
        "ids": ids(QUERIES, COLUMNS, high=40),
        "query_ids": ids(QUERIES * COLUMNS, high=9),
        "items": torch.arange(COLUMNS),
        "embeddings": ids(COLUMNS, 8, low=-2, high=3).float(),
        "bias": ids(COLUMNS, low=-3, high=4).float(),
    }


FORMS = {
    "target": lambda x: rank_target(x["scores"], x["target"]),
    "target, history": lambda x: rank_target(x["scores"], x["target"], exclude=x["history"]),
    "target, shared history": lambda x: rank_target(x["scores"], x["target"], exclude=x["history"][0]),
    "target, mask": lambda x: rank_target(x["scores"], x["target"], exclude=x["history"], mask=x["mask"]),
    "target, excluded mask": lambda x: rank_target(x["scores"], x["target"], exclude=x["mask"]),
    "target, candidates": lambda x: rank_target(x["scores"], x["target"], exclude=x["history"], candidates=x["ids"]),
    "target, ignored": lambda x: rank_target(x["scores"], x["target"], ignore_index=3),
    "relevance": lambda x: rank_relevant(x["scores"], x["relevance"]),
    "relevance, history": lambda x: rank_relevant(x["scores"], x["relevance"], exclude=x["history"]),
    "relevance, masks": lambda x: rank_relevant(
        x["scores"], x["relevance"], exclude=~x["mask"], mask=x["mask"], ignore_index=0
    ),
    "relevance, candidates": lambda x: rank_relevant(
        x["scores"], x["relevance"], candidates=x["ids"], exclude=x["history"]
    ),
    "three dimensions": lambda x: rank_target(
        torch.stack([x["scores"]] * 2)[:, :-1], torch.stack([x["target"]] * 2)[:, :-1]
    ),
    "retrieved": lambda x: rank_retrieved(x["ids"], x["target"]),
    "retrieved, several": lambda x: rank_retrieved(x["ids"], x["history"]),
    "catalogue": lambda x: rank_catalogue(x["embeddings"], x["embeddings"], x["items"]),
    "grouped": lambda x: rank_grouped(x["scores"].view(-1), x["relevance"].view(-1), x["query_ids"]),
}

# More options of the same forms: too many to compile each.
MORE_FORMS = {
    "target, shared mask and candidates": lambda x: rank_target(
        x["scores"], x["target"], mask=x["mask"], candidates=x["ids"], ignore_index=2
    ),
    "target, candidates, excluded mask": lambda x: rank_target(
        x["scores"], x["target"], candidates=x["ids"], exclude=~x["mask"]
    ),
    "relevance, shared history": lambda x: rank_relevant(x["scores"], x["relevance"], exclude=x["history"][0]),
    "relevance, mask": lambda x: rank_relevant(x["scores"], x["relevance"], mask=x["mask"]),
    "relevance, ignored": lambda x: rank_relevant(x["scores"], x["relevance"] - 1 + x["mask"].long(), ignore_index=-1),
    "relevance, all options": lambda x: rank_relevant(
        x["scores"], x["relevance"], candidates=x["ids"], exclude=x["history"], mask=x["mask"], ignore_index=0
    ),
    "relevance as bool": lambda x: rank_relevant(x["scores"], x["relevance"] > 0, exclude=x["mask"]),
    "grouped, mask": lambda x: rank_grouped(
        x["scores"].view(-1), x["relevance"].view(-1), x["query_ids"], mask=x["mask"].view(-1)
    ),
    "grouped, excluded": lambda x: rank_grouped(
        x["scores"].view(-1), x["relevance"].view(-1), x["query_ids"], exclude=x["mask"].view(-1)
    ),
    "grouped, ignored": lambda x: rank_grouped(
        x["scores"].view(-1), x["relevance"].view(-1), x["query_ids"], exclude=x["mask"].view(-1), ignore_index=0
    ),
    "retrieved, few": lambda x: rank_retrieved(x["ids"][:, :3], x["target"]),
    "catalogue, bias": lambda x: rank_catalogue(x["embeddings"], x["embeddings"], x["items"], bias=x["bias"]),
    "catalogue, history": lambda x: rank_catalogue(
        x["embeddings"][:QUERIES], x["embeddings"], x["target"], bias=x["bias"], exclude=x["history"], tile=16
    ),
    "catalogue, shared history": lambda x: rank_catalogue(
        x["embeddings"][:QUERIES], x["embeddings"], x["target"], exclude=x["history"][0]
    ),
    "catalogue, reference": lambda x: rank_catalogue(
        x["embeddings"][:QUERIES], x["embeddings"], x["target"], exclude=x["history"], implementation="reference"
    ),
    "integer scores": lambda x: rank_target(x["ids"], x["target"], exclude=x["history"]),
    "bool scores": lambda x: rank_target(x["mask"], x["target"]),
    "half precision": lambda x: rank_relevant(x["scores"].bfloat16(), x["relevance"], mask=x["mask"]),
}
