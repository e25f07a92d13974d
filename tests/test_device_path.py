"""What runs on an accelerator: never a wait for the device, faults counted and raised by compute, same values.

The meta device has no values, so whatever looks at one fails there: it stands in for an accelerator that must not be
waited for. The values of that path are checked on the CPU, by telling it that nothing may be looked at.
"""

import warnings

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mrr_torch import (
    MeanReciprocalRank,
    Ranks,
    _device,
    mean_reciprocal_rank,
    rank_catalogue,
    rank_grouped,
    rank_relevant,
    rank_retrieved,
    rank_target,
    reciprocal_rank,
)

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


@pytest.mark.parametrize("form", FORMS)
def test_no_form_waits_for_the_device(form):
    given = {key: value.to("meta") for key, value in inputs().items()}
    metric = MeanReciprocalRank([5, None]).to("meta")
    metric.update(FORMS[form](given))
    # Scores straight to `update` know more than a `Ranks`, and go other ways.
    metric.update(given["scores"], given["target"], exclude=given["history"])
    metric.update(given["scores"], given["relevance"])
    assert metric.update_count == 3


def test_the_meta_device_would_notice_a_wait():
    with pytest.raises(RuntimeError, match="meta"):
        bool(torch.zeros(1, device="meta").any())


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_ranks_compile_as_one_graph_and_are_equal(form):
    torch.compiler.reset()
    given = inputs()
    eager = FORMS[form](given)
    compiled = torch.compile(FORMS[form], fullgraph=True)(given)
    queries = eager.higher.numel()  # under compile the grouped form has rows to spare, marked to be skipped
    for left, right in zip(compiled, eager, strict=True):
        assert torch.equal(left.flatten()[:queries], right.flatten())
    assert bool((compiled.relevant.flatten()[queries:] == -10).all())


@pytest.fixture
def blind(monkeypatch):
    """Let the package believe that no value may be looked at, as on an accelerator."""
    monkeypatch.setattr(_device, "HOST_TYPES", frozenset())


@pytest.mark.parametrize("ties", ["expected", "optimistic", "pessimistic", "realistic"])
@pytest.mark.parametrize("form", FORMS)
def test_the_blind_path_gives_the_same_values(form, ties, monkeypatch, float64):
    # NaN targets warn, as they should; that is tested elsewhere.
    given = inputs()
    seeing = MeanReciprocalRank([3, None], ties=ties)
    seeing.update(FORMS[form](given))
    monkeypatch.setattr(_device, "HOST_TYPES", frozenset())
    blind = MeanReciprocalRank([3, None], ties=ties)
    blind.update(FORMS[form](given))
    left, right = (torch.stack(list(quietly(metric.compute).values())) for metric in (seeing, blind))
    assert torch.allclose(left, right, rtol=0, atol=1e-14)  # sums of float64 in another order
    per_query = [quietly(reciprocal_rank, FORMS[form](given), ties=ties)]
    monkeypatch.undo()
    torch.set_default_dtype(torch.float64)
    per_query.append(quietly(reciprocal_rank, FORMS[form](given), ties=ties))
    queries = per_query[1].numel()
    left, right = per_query[0].flatten()[:queries], per_query[1].flatten()
    assert torch.allclose(left, right, rtol=0, atol=1e-14, equal_nan=True)


def test_rows_to_spare_are_no_queries(blind):
    # The number of queries of a flat list is not known there; nothing may be told of the rows that are left.
    metric, indexes = MeanReciprocalRank(5), torch.tensor([0, 0, 1, 1])
    items = torch.tensor([0.3, 0.2, 0.9, 0.1]), torch.tensor([0, 1, 0, 1])
    metric.update(*items, indexes=indexes)
    assert metric.compute() == mean_reciprocal_rank(*items, indexes=indexes) == 0.5
    assert "; 2 queries;" in metric.describe()
    assert "ignored" not in metric.describe()
    by_id = MeanReciprocalRank(5, num_queries=2)
    rows = Ranks(*torch.tensor([[0, 1, 0, 7], [0, 0, 0, 0], [1, 1, -10, -10], [2, 2, 0, 0]]))
    by_id.update(rows, query_ids=torch.tensor([0, 1, 0, 5]))
    assert by_id.compute() == 0.75


def test_no_queries_have_no_values(blind):
    assert reciprocal_rank(Ranks(*torch.zeros(4, 0, dtype=torch.int64))).shape == (0,)


def quietly(function, *arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments, **options)


def test_the_state_of_both_paths_is_the_same_without_ties(monkeypatch):
    scores = torch.rand(64, 3000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = torch.arange(64)
    seeing = MeanReciprocalRank()
    seeing.update(scores, target)
    monkeypatch.setattr(_device, "HOST_TYPES", frozenset())
    blind = MeanReciprocalRank()
    blind.update(scores, target)
    for key, state in seeing.metric_state.items():
        assert torch.equal(state, blind.metric_state[key])


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (lambda m: m.update(torch.zeros(3, 4), torch.tensor([0, 4, -1])), "target: expected ids in .* in 2 queries"),
        (
            lambda m: m.update(torch.zeros(2, 4), torch.tensor([[1, 0, 0, -1], [1, 0, 0, 0]])),
            "target: expected relevance >= 0 .* in 1 query",
        ),
        (
            lambda m: m.update(torch.zeros(2, 4), torch.tensor([0, 1]), exclude=torch.tensor([[9], [3]])),
            "exclude: expected ids in .* in 1 query",
        ),
        (
            lambda m: m.update(torch.zeros(4), torch.tensor([1, -2, 0, 0]), indexes=torch.tensor([0, 0, 1, 1])),
            "target: expected relevance >= 0 .* in 1 query",
        ),
    ],
    ids=["target", "relevance", "exclude", "grouped"],
)
def test_faults_are_counted_and_raised_by_compute(update, message, blind):
    metric = MeanReciprocalRank()
    update(metric)
    metric.update(torch.zeros(2, 4), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=message):
        metric.compute()
    metric.reset()
    metric.update(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    assert metric.compute() == 1


def test_empty_queries_that_are_errors_are_raised_by_compute(blind):
    metric = MeanReciprocalRank(empty_target_action="error")
    metric.update(torch.zeros(2, 3), torch.tensor([[0, 0, 0], [0, 1, 0]]))
    with pytest.raises(ValueError, match="none in 1 query"):
        metric.compute()


def test_a_tie_that_cannot_be_followed_is_refused_rather_than_guessed(blind, float64):
    ranks = Ranks(*torch.tensor([[0, 1], [3000, 2], [3, 1], [4000, 3]]))
    metric = MeanReciprocalRank(10)
    metric.update(ranks)
    reference = float(reciprocal_rank(ranks, top_k=10).mean())
    # A cut-off does not need what lies beyond. (Float64 rounding.)
    assert float(metric.compute()) == pytest.approx(reference, abs=1e-15)
    metric = MeanReciprocalRank()
    metric.update(ranks)
    with pytest.raises(ValueError, match="preds: expected scores or a top_k where several relevant items tie"):
        metric.compute()
    scores, relevance = torch.zeros(1, 3003), (torch.arange(3003) < 3).long()[None]
    metric.reset()
    metric.update(scores, relevance)  # here the number of columns bounds the tie
    assert float(metric.compute()) == pytest.approx(float(reciprocal_rank(scores, relevance)), abs=1e-15)


class Largest(TorchDispatchMode):
    """Keep the size in bytes of the largest tensor that any operation makes."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not func.is_view:
            self.bytes = max(self.bytes, result.numel() * result.element_size())
        return result


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("columns", []),
        ("columns", ["exclude"]),
        ("columns", ["excluded"]),
        ("columns", ["mask", "exclude"]),
        ("relevance", []),
        ("relevance", ["exclude"]),
        ("labels", ["mask"]),
    ],
    ids=str,
)
def test_no_temporary_grows_with_the_scores(target, options):
    queries, columns = 300, 40_000
    relevance = torch.zeros(queries, columns, dtype=torch.bool)
    relevance[:, 5] = True
    given = {
        "columns": torch.arange(queries),
        "relevance": relevance,
        "labels": relevance.long(),
        "exclude": torch.randint(-1, columns, (queries, 20)),
        "excluded": relevance,
        "mask": ~relevance,
    }
    metric = MeanReciprocalRank(ignore_index=columns + 1)
    with Largest() as seen:
        metric.update(
            torch.rand(1, columns).expand(queries, columns),
            given[target],
            **{"exclude" if name == "excluded" else name: given[name] for name in options},
        )
    # A tile has 2**20 elements, of 8 bytes at most; the scores have 48 MB.
    assert 0 < seen.bytes <= 8 * 2**20
