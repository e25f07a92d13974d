"""Random cases of all that an update takes: forms of input, options, settings, now and then invalid values."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mrr_torch import (
    HitRate,
    MeanReciprocalRank,
    NormalizedDCG,
    RankDistribution,
    Ranks,
    rank_catalogue,
    rank_retrieved,
)

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SCORES = [*FLOATS, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool]
TIES = ["expected", "optimistic", "pessimistic", "realistic"]


class Case(NamedTuple):
    """One update of one metric.

    Attributes:
        form: the form of input.
        metric: the class of the metric.
        settings: of the metric.
        arguments: of ``update``; or of the function of the form, which makes `Ranks` of them.
        query_ids: of ``update``, with ``num_queries``.
    """

    form: str
    metric: type
    settings: dict[str, Any]
    arguments: dict[str, Any]
    query_ids: Tensor | None

    def moved(self, move: Callable[[Tensor], Tensor]) -> "Case":
        """Return the case with all tensors moved."""
        arguments = {
            name: Ranks(*map(move, value)) if isinstance(value, Ranks) else _moved(move, value)
            for name, value in self.arguments.items()
        }
        return self._replace(arguments=arguments, query_ids=_moved(move, self.query_ids))

    def update(self) -> dict[str, Any]:
        """Return the arguments of ``update``."""
        function = {"retrieved": rank_retrieved, "catalogue": rank_catalogue}.get(self.form)
        return {"preds": function(**self.arguments)} if function else self.arguments


def _moved(move: Callable[[Tensor], Tensor], value: Any) -> Any:
    return move(value) if isinstance(value, Tensor) else value


class Draw:
    """Draws of one case."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def one_of(self, *values: Any) -> Any:
        return self.random.choice(values)

    def ids(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=self.generator)

    def bools(self, share: float, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator) < share

    def spoilt(self, ids: Tensor, value: int) -> Tensor:
        """Return ids of which, now and then, one is invalid."""
        if self.chance(0.03) and ids.numel():
            ids = ids.clone()
            ids.view(-1)[self.random.randrange(ids.numel())] = value
        return ids

    def scores(self, *shape: int) -> Tensor:
        dtype = self.one_of(*SCORES)
        if dtype == torch.bool:
            return self.bools(0.5, *shape)
        scores = self.ids(0, self.one_of(2, 5, 100), *shape).to(dtype)
        if dtype in FLOATS and self.chance(0.3):
            for value in (torch.nan, torch.inf, -torch.inf):
                scores[self.bools(0.1, *shape)] = value
        return scores


def case(seed: int) -> Case:
    """Return the case of a seed."""
    draw = Draw(seed)
    queries = draw.one_of((), (1,), (2,), (5,), (2, 3), (0,), (17,))
    columns = draw.one_of(1, 2, 3, 7, 12, 1200) if len(queries) != 1 or queries[0] < 10 else draw.one_of(3, 8)
    metric = draw.one_of(MeanReciprocalRank, MeanReciprocalRank, HitRate, NormalizedDCG, RankDistribution)
    cut = draw.one_of(1, 2, 5, 2000)
    cuts = [None, None, cut, [1, cut + 1]] if metric is MeanReciprocalRank else [cut]
    settings = {
        "top_k": draw.one_of(*cuts),
        "ties": draw.one_of(*TIES),
        "empty_target_action": draw.one_of("neg", "neg", "pos", "skip", "error"),
    }
    if draw.chance(0.3):
        settings["ignore_index"] = draw.one_of(-100, 0, 1)
    form = draw.one_of(
        "target", "target", "relevance", "relevance", "flat", "sampled", "ranks", "retrieved", "catalogue"
    )
    if form == "sampled" or (draw.chance(0.2) and form in ("target", "ranks", "catalogue")):
        settings["num_negatives"] = columns - 1 if form == "sampled" else draw.one_of(1, 2, 5)
        if settings["num_negatives"] == 0 or settings["num_negatives"] >= columns:
            settings["num_negatives"], columns = 2, 3 if form == "sampled" else max(columns, 7)
    arguments = FORMS[form](draw, queries, columns, settings)
    query_ids = None
    if form != "flat" and draw.chance(0.2):
        settings["num_queries"] = 20
        query_ids = draw.spoilt(draw.ids(0, 20, *queries), 20)
    if metric is not RankDistribution and draw.chance(0.3):
        settings["confidence"] = 0.9
    return Case(form, metric, settings, arguments, query_ids)


def _options(draw: Draw, queries: tuple[int, ...], columns: int) -> dict[str, Any]:
    """Return what rows of scores may come with."""
    options: dict[str, Any] = {}
    items = columns
    if draw.chance(0.3):
        items = draw.one_of(2, columns, 2 * columns)
        options["candidates"] = draw.ids(-1 if draw.chance(0.5) else 0, items, *queries, columns)
        if draw.chance(0.2):
            options["candidates"] = options["candidates"] * 2**40
            items = 2**61
    if draw.chance(0.4):
        listed = [draw.ids(-1, min(items, columns), *shape) for shape in ((*queries, 4), (3,))]
        invalid = columns if items == columns else -1  # ids of candidates have no upper bound
        options["exclude"] = draw.one_of(
            *(draw.spoilt(ids, invalid) for ids in listed), draw.bools(0.3, *queries, columns)
        )
    if draw.chance(0.3):
        options["mask"] = draw.bools(0.7, *queries, columns)
    return options


def _target(draw: Draw, queries: tuple[int, ...], columns: int, settings: dict[str, Any]) -> dict[str, Any]:
    target = draw.ids(0, columns, *queries)
    if "ignore_index" in settings:
        target = torch.where(draw.bools(0.3, *queries), settings["ignore_index"], target).clamp(max=columns - 1)
    target = draw.spoilt(target, draw.one_of(columns, -1))
    return {"preds": draw.scores(*queries, columns), "target": target, **_options(draw, queries, columns)}


def _labels(draw: Draw, settings: dict[str, Any], *shape: int) -> Tensor:
    labels = draw.bools(draw.one_of(0.05, 0.4), *shape).long() * draw.ids(1, 4, *shape)
    if "ignore_index" in settings:
        labels[draw.bools(0.2, *shape)] = settings["ignore_index"]
    labels = draw.spoilt(labels, -7)
    return labels > 0 if draw.chance(0.2) else labels


def _relevance(draw: Draw, queries: tuple[int, ...], columns: int, settings: dict[str, Any]) -> dict[str, Any]:
    labels = _labels(draw, settings, *queries, columns)
    return {"preds": draw.scores(*queries, columns), "target": labels, **_options(draw, queries, columns)}


def _flat(draw: Draw, queries: tuple[int, ...], columns: int, settings: dict[str, Any]) -> dict[str, Any]:
    items = draw.one_of(0, 1, 3, 12, 60)
    indexes = draw.ids(0, draw.one_of(1, 4, 20), items) * draw.one_of(1, -3, 2**50)
    arguments = {"preds": draw.scores(items), "target": _labels(draw, settings, items), "indexes": indexes}
    if draw.chance(0.3):
        arguments["exclude"] = draw.bools(0.3, items)
    if draw.chance(0.3):
        arguments["mask"] = draw.bools(0.7, items)
    return arguments


def _sampled(draw: Draw, queries: tuple[int, ...], columns: int, settings: dict[str, Any]) -> dict[str, Any]:
    return {"preds": draw.scores(*queries, columns), **_options(draw, queries, columns)}


def _ranks(draw: Draw, queries: tuple[int, ...], columns: int, settings: dict[str, Any]) -> dict[str, Any]:
    higher, tied = draw.ids(0, draw.one_of(3, 3000), *queries), draw.ids(0, 4, *queries)
    relevant = draw.ids(-2, 2, *queries)
    if "num_negatives" not in settings and draw.chance(0.3):
        # Several tied relevant items beyond the ranks kept one by one have, made by hand, no value without a cut-off.
        higher, relevant = higher.clamp(max=900), relevant + draw.ids(0, 3, *queries)
    ranked = relevant > 0
    higher, tied = torch.where(ranked, higher, 0), torch.where(ranked, tied, 0)
    candidates = higher + tied + relevant.clamp(min=0) + draw.ids(0, 9, *queries)
    return {"preds": Ranks(higher, tied, relevant, candidates)}


def _retrieved(draw: Draw, queries: tuple[int, ...], columns: int, settings: dict[str, Any]) -> dict[str, Any]:
    padding = draw.one_of(-1, 0)
    shape = draw.one_of(queries, (*queries, 3))
    return {
        "retrieved": draw.ids(-1, 9, *queries, min(columns, 12)),
        "relevant": draw.ids(-1, 9, *shape),
        "padding": padding,
    }


def _catalogue(draw: Draw, queries: tuple[int, ...], columns: int, settings: dict[str, Any]) -> dict[str, Any]:
    dtype = draw.one_of(*FLOATS)
    arguments: dict[str, Any] = {
        "query_embeddings": draw.ids(-2, 3, *queries, 4).to(dtype),
        "item_embeddings": draw.ids(-2, 3, columns, 4).to(dtype),
        "target": draw.spoilt(draw.ids(0, columns, *queries), columns),
        "tile": draw.one_of(None, 1, 5) if columns < 20 else draw.one_of(None, 500),
        "implementation": draw.one_of("auto", "reference", "streamed"),
    }
    if draw.chance(0.3):
        arguments["bias"] = draw.ids(-2, 3, columns).to(dtype)
    if draw.chance(0.5):
        listed = draw.one_of((*queries, 4), (3,))
        arguments["exclude"] = draw.spoilt(draw.ids(-1, columns, *listed), columns)
    return arguments


FORMS = {
    "target": _target,
    "relevance": _relevance,
    "flat": _flat,
    "sampled": _sampled,
    "ranks": _ranks,
    "retrieved": _retrieved,
    "catalogue": _catalogue,
}
