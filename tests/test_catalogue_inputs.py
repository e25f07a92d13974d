"""What `rank_catalogue` takes beside one target and embeddings: several relevant items, any scorer, copies, misses."""

import contextlib
import math
import random
import re

import pytest
import torch
from test_catalogue import blind, equal
from test_device_path import Largest

from mrr_torch import MeanReciprocalRank, Outcome, rank_catalogue
from mrr_torch.ranks import SEVERAL


def slow_ranks(scores, relevant, exclude, ids):
    """Rank one query in plain lists: return the fields of its `Ranks`. Nothing here comes from the package."""
    names = [ids[row] if ids is not None and ids[row] >= 0 else ("row", row) for row in range(len(scores))]
    best_row = {}  # of each relevant item, the first relevant row
    for row in sorted(row for row in relevant if row >= 0):
        best_row.setdefault(names[row], row)
    unwanted = {name for name in exclude if name >= 0} if ids is not None else {("row", row) for row in exclude}
    competing = {}  # of each other item, the first row
    for row, name in enumerate(names):
        if name not in best_row and name not in unwanted and (ids is None or ids[row] >= 0):
            competing.setdefault(name, row)
    candidates = len(competing) + len(best_row) + SEVERAL * (len(best_row) > 1)
    own = [scores[row] for row in best_row.values() if not math.isnan(scores[row])]
    if not own:
        return 0, 0, Outcome.NAN if best_row else Outcome.EMPTY, candidates
    others, best = [scores[row] for row in competing.values()], max(own)
    return sum(s > best for s in others), sum(s == best for s in others), own.count(best), candidates


def random_case(seed):
    """Return a small problem, full of ties, repeats, padding, NaN and infinities, as arguments and as plain lists."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)

    def integers(low, high, *shape):
        return torch.randint(low, high, shape, generator=generator)

    queries, items, columns = draw.choice([0, 1, 2, 5]), draw.choice([1, 2, 7, 23]), draw.choice([0, 1, 3])
    several = draw.choice([None, 0, 1, 3, 6])
    dtype = draw.choice([torch.float32, torch.float64, torch.bfloat16, torch.float16])
    queries_, table = integers(-2, 3, queries, columns).to(dtype), integers(-2, 3, items, columns).to(dtype)
    bias = integers(-1, 2, items).to(dtype)
    for value in (math.nan, math.inf, -math.inf):
        bias[torch.rand(items, generator=generator) < draw.choice([0, 0.1, 0.4])] = value
    ids = draw.choice([None, integers(-1, items, items), integers(-1, 3, items) * (2**62 - 1)])
    pool = [-1, *range(items)] if ids is None else [-1, 5, *ids.tolist()]
    listed = draw.choice([0, 1, 4])
    lists = torch.tensor(draw.choices(pool, k=queries * listed), dtype=torch.int64).view(queries, listed)
    shared = torch.tensor(draw.choices(pool, k=listed), dtype=torch.int64)
    exclude = draw.choice([None, lists, shared])
    target = integers(0, items, queries) if several is None else integers(-2, items, queries, several)
    miss = draw.choice([None, 0, -7]) if several is None else None
    if miss == -7:
        target[torch.rand(queries, generator=generator) < 0.3] = -7
    options = {"bias": bias, "exclude": exclude, "ids": ids, "miss_index": miss}
    scores = queries_.double() @ table.double().T + bias.double()  # small integers: exact in all types
    expected = []
    for row in range(queries):
        relevant = [] if miss is not None and int(target[row]) == miss else target[row].reshape(-1).tolist()
        gone = [] if exclude is None else (exclude if exclude.ndim == 1 else exclude[row]).tolist()
        fields = slow_ranks(scores[row].tolist(), relevant, gone, None if ids is None else ids.tolist())
        if miss is not None and not relevant:
            fields = (*fields[:2], Outcome.MISSED, fields[3])
        expected.append(fields)
    return (queries_, table, target), options, scores, torch.tensor(expected, dtype=torch.int64).view(queries, 4).T


def as_rows(ranks):
    return torch.stack([field.reshape(-1) for field in ranks])


@pytest.mark.parametrize("unread", [False, True], ids=["cpu", "never read"])
@pytest.mark.parametrize("part", range(4))
def test_random_cases_equal_the_slow_oracle(part, unread):
    with blind() if unread else contextlib.nullcontext():
        for seed in range(500 * part, 500 * part + 500):
            arguments, options, scores, expected = random_case(seed)
            tile = random.Random(seed).choice([None, 1, 3, 10])
            for implementation in ("streamed", "reference"):
                ranks = rank_catalogue(*arguments, tile=tile, implementation=implementation, **options)
                assert torch.equal(as_rows(ranks), expected), (seed, implementation)
                by_function = rank_catalogue(
                    score=lambda first, last, scores=scores: scores[:, first:last],
                    num_items=scores.shape[1],
                    target=arguments[2],
                    tile=tile,
                    implementation=implementation,
                    **{name: options[name] for name in ("exclude", "ids", "miss_index")},
                )
                assert torch.equal(as_rows(by_function), expected), (seed, implementation, "score")


def test_the_best_relevant_item_counts_and_the_others_do_not_compete():
    queries, items = torch.tensor([[1.0]]), torch.tensor([[5.0], [4.0], [4.0], [3.0], [9.0], [4.0]])
    ranks = rank_catalogue(queries, items, torch.tensor([[3, 1, -1, 2, 1]]))
    assert (ranks.higher, ranks.tied, ranks.relevant, ranks.num_candidates) == (2, 1, 2, 6)
    assert ranks.several
    # Rank 3 of the tie at 3, 4 and 5 unless item 5 comes first, and it does one time in three.
    assert MeanReciprocalRank()(ranks).item() == pytest.approx((2 / 3) / 3 + (1 / 3) / 4)  # computed in float64


def test_relevant_items_are_never_excluded():
    queries, items = torch.ones(1, 1), torch.arange(5.0)[:, None]
    for exclude in (torch.tensor([1, 3, 4]), torch.tensor([[1, 3, 4]])):
        ranks = rank_catalogue(queries, items, torch.tensor([[1, 3]]), exclude=exclude)
        assert (ranks.higher, ranks.num_candidates) == (0, 4)


def test_one_relevant_item_among_padding_equals_a_single_target():
    generator = torch.Generator().manual_seed(0)
    queries, items = (torch.randn(n, 16, generator=generator) for n in (40, 500))
    target = torch.randint(0, 500, (40,), generator=generator)
    padded = torch.full((40, 5), -1)
    padded[:, 3] = target
    assert equal(rank_catalogue(queries, items, padded, tile=64), rank_catalogue(queries, items, target, tile=64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("relevant", [3, 300])
def test_several_relevant_items_tie_exactly_with_equal_items(dtype, relevant):
    generator = torch.Generator().manual_seed(relevant)
    for columns, tile in ((5, None), (64, 200), (100, 7), (257, None)):
        kinds = torch.randn(4, columns, generator=generator).to(dtype)
        which = torch.randint(0, 4, (700,), generator=generator)
        target = torch.randint(-1, 700, (33, relevant), generator=generator)
        queries = torch.randn(33, columns, generator=generator).to(dtype)
        ranks = rank_catalogue(queries, kinds[which], target, tile=tile)
        # Each of the four scores is that of 700 / 4 items or so: those that are above and tied make up whole kinds.
        for row in range(33):
            own = set(target[row].tolist()) - {-1}
            sizes = [sum(i not in own for i in (which == kind).nonzero()[:, 0].tolist()) for kind in which[list(own)]]
            assert int(ranks.tied[row]) in sizes


def test_several_shapes():
    queries, items = torch.ones(2, 3, 4), torch.ones(9, 4)
    assert rank_catalogue(queries, items, torch.zeros(2, 3, 5).long()).higher.shape == (2, 3)
    assert rank_catalogue(queries[0, 0], items, torch.tensor([1, 2])).relevant == 2
    assert (rank_catalogue(queries, items, torch.zeros(2, 3, 0).long()).relevant == Outcome.EMPTY).all()


def test_memory_of_several_relevant_items_is_that_of_their_scores():
    queries, items = torch.randn(200, 16), torch.randn(150_000, 16)
    target = torch.randint(-1, 150_000, (200, 8))
    with Largest() as seen:
        rank_catalogue(queries, items, target)
        rank_catalogue(score=lambda first, last: queries @ items[first:last].T, num_items=150_000, target=target)
    # Scores and comparisons of a tile, 4 bytes each; the matrix of scores has 120 MB.
    assert 0 < seen.bytes <= 2 * 2**19 * 4


def test_a_function_scores_slices_without_a_target_once():
    scores, calls = torch.arange(100.0).expand(2, 100), []

    def score(first, last):
        calls.append((first, last))
        return scores[:, first:last]

    ranks = rank_catalogue(score=score, num_items=100, target=torch.tensor([15, 95]), tile=10)
    assert ranks.higher.tolist() == [84, 4]
    # The first tells the shape of the queries; 90 to 100 was kept from one pass to the next.
    assert sorted(calls) == sorted([(i, i + 10) for i in range(0, 100, 10)] + [(0, 10), (10, 20)])
    calls.clear()
    rank_catalogue(score=score, num_items=100, target=torch.tensor([15, 95]))
    assert calls == [(0, 100)]


def test_a_function_may_return_any_leading_dimensions_and_floating_types():
    scores = torch.randn(2, 3, 50)
    target = torch.randint(0, 50, (2, 3))
    expected = rank_catalogue(score=lambda first, last: scores[..., first:last], num_items=50, target=target)
    assert torch.equal(expected.higher, (scores > scores.gather(2, target[..., None])).sum(2))
    half = scores.half()
    ranks = rank_catalogue(score=lambda first, last: half[..., first:last], num_items=50, target=target, tile=7)
    assert torch.equal(ranks.higher, (half > half.gather(2, target[..., None])).sum(2))
    single = rank_catalogue(score=lambda first, last: scores[0, 0, first:last], num_items=50, target=target[0, 0])
    assert single.higher == expected.higher[0, 0]


def test_a_function_runs_without_gradients_and_its_result_is_not_written_to():
    scores = torch.randn(3, 20, requires_grad=True)
    before = scores.detach().clone()
    ranks = rank_catalogue(
        score=lambda first, last: scores[:, first:last], num_items=20, target=torch.arange(3), exclude=torch.tensor([9])
    )
    assert not ranks.higher.requires_grad
    assert torch.equal(scores, before)


def test_scores_that_change_from_call_to_call_are_refused():
    model = torch.nn.Dropout(0.5)
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=r"score: expected the same scores whenever .* training mode"):
        rank_catalogue(
            score=lambda first, last: model(torch.ones(8, last - first)), num_items=60, target=torch.arange(8), tile=9
        )


def test_copies_of_the_target_never_compete_and_those_of_others_once():
    queries, items = torch.ones(1, 1), torch.tensor([[2.0], [5.0], [5.0], [2.0], [1.0], [9.0]])
    ids = torch.tensor([7, 8, 8, 7, 9, -1])  # the last row is padding
    ranks = rank_catalogue(queries, items, torch.tensor([3]), ids=ids)
    assert (ranks.higher, ranks.tied, ranks.candidates) == (1, 0, 3)
    # Excluded by what the rows are called; 4 is no item's.
    ranks = rank_catalogue(queries, items, torch.tensor([3]), ids=ids, exclude=torch.tensor([[8, 4, 7]]))
    assert (ranks.higher, ranks.candidates) == (0, 2)


@pytest.mark.parametrize("unread", [False, True], ids=["cpu", "never read"])
def test_misses_count_zero_and_stay_in_the_mean(unread):
    queries, items = torch.ones(4, 1), torch.tensor([[2.0], [3.0]])
    with blind() if unread else contextlib.nullcontext():
        ranks = rank_catalogue(queries, items, torch.tensor([1, -100, 0, 1]), miss_index=-100)
        metric = MeanReciprocalRank()
        metric.update(ranks)
        assert ranks.relevant.tolist() == [1, Outcome.MISSED, 1, 1]
        assert metric.compute().item() == pytest.approx((1 + 0 + 1 / 2 + 1) / 4)  # computed in float64


def test_results_own_their_memory():
    ranks = rank_catalogue(torch.ones(3, 1), torch.ones(4, 1), torch.tensor([[0, 1]] * 3))
    for field in ranks:
        before = [other.clone() for other in ranks]
        field[0] = 77
        assert sum(not torch.equal(a, b) for a, b in zip(ranks, before, strict=True)) == 1
        assert field[1:].ne(77).all()
        assert field.untyped_storage().nbytes() == 3 * 8


@pytest.mark.slow
def test_a_tile_of_more_items_than_float32_counts_exactly():
    number = 2**24 + 4
    bias = torch.ones(number)
    bias[0] = 0
    ranks = rank_catalogue(torch.ones(1, 0), torch.ones(number, 0), torch.tensor([0]), bias=bias, tile=number)
    assert ranks.higher == number - 1


QUERIES, ITEMS, TARGET = torch.ones(2, 3), torch.ones(5, 3), torch.tensor([0, 4])


def ones(first, last):
    return torch.ones(2, last - first)


def call(**changes):
    given = {"query_embeddings": QUERIES, "item_embeddings": ITEMS, "target": TARGET} | changes
    return rank_catalogue(**given)


def call_function(**changes):
    return rank_catalogue(**{"score": ones, "num_items": 5, "target": TARGET} | changes)


@pytest.mark.parametrize(
    ("refused", "changes", "error", "message"),
    [
        (call, {"target": None}, TypeError, "target: expected a tensor of integer ids, got NoneType"),
        (call, {"query_embeddings": None}, TypeError, "query_embeddings: expected a floating-point tensor, got None"),
        (call, {"target": torch.tensor([[0, 5], [1, 2]])}, ValueError, "target: expected ids in 0..4, got 5"),
        (call, {"target": torch.zeros(2, 3, 4).long()}, ValueError, "target: expected shape (2,), or (2, 'M') for"),
        (call, {"num_items": 5}, ValueError, "num_items: expected None without score, got int"),
        (call, {"score": ones}, ValueError, "query_embeddings: expected None beside score, got Tensor"),
        (call, {"ids": torch.arange(4)}, ValueError, "ids: expected shape (5,), got shape (4,)"),
        (call, {"ids": torch.ones(5)}, TypeError, "ids: expected a tensor of integer ids, got torch.float32"),
        (call, {"ids": torch.arange(5).to("meta")}, ValueError, "ids: expected a tensor on cpu"),
        (call, {"miss_index": 1.5}, TypeError, "miss_index: expected an int, got 1.5"),
        (call, {"miss_index": True}, TypeError, "miss_index: expected an int, got True"),
        (call, {"miss_index": 0, "target": TARGET[:, None]}, ValueError, "miss_index: expected None beside several"),
        (call, {"miss_index": -1, "target": TARGET - 2}, ValueError, "target: expected ids in 0..4, got -2"),
        (
            call,
            {"exclude": torch.tensor([[1, 5], [5, 5]])},
            ValueError,
            "exclude: expected ids in 0..4, padded with negative ids, got 5, the number of items: if that is padding, "
            "pass exclude.masked_fill(exclude == 5, -1)",
        ),
        (call, {"item_embeddings": ITEMS.to_sparse()}, TypeError, "item_embeddings: expected a floating-point tensor"),
        (call, {"query_embeddings": QUERIES.to_sparse()}, TypeError, "query_embeddings: expected a floating-point ten"),
        (call, {"target": TARGET.to_sparse()}, TypeError, "target: expected a tensor of integer ids, not sparse"),
        (call, {"bias": torch.ones(5).to_sparse()}, TypeError, "bias: expected a floating-point tensor, not sparse"),
        (call, {"exclude": TARGET.to_sparse()}, TypeError, "exclude: expected a tensor of integer ids, not sparse"),
        (call, {"ids": torch.arange(5).to_sparse()}, TypeError, "ids: expected a tensor of integer ids, not sparse"),
        (call_function, {"num_items": None}, TypeError, "num_items: expected a positive int, got None"),
        (call_function, {"num_items": 0}, ValueError, "num_items: expected a positive int, got 0"),
        (call_function, {"score": 5}, TypeError, "score: expected a function of (first, last), got int"),
        (call_function, {"score": lambda a, b: None}, TypeError, "score: expected a function that returns a tensor"),
        (call_function, {"score": lambda a, b: ones(a, b).long()}, TypeError, "score: expected floating-point scores"),
        (call_function, {"score": lambda a, b: ones(0, 3)}, ValueError, "score: expected shape (..., 5) for items 0.."),
        (call_function, {"score": lambda a, b: ones(a, b).to("meta")}, ValueError, "score: expected scores on cpu"),
        (call_function, {"score": lambda a, b: ones(a, b)[:1]}, ValueError, "target: expected shape (1,), or (1, 'M')"),
        (
            call_function,
            {"score": lambda a, b: ones(a, b)[: 2 - (a > 0)], "tile": 2},
            ValueError,
            "score: expected shape (2, 1) for items 4..4, got shape (1, 1)",
        ),
        (
            call_function,
            {"score": lambda a, b: ones(a, b).double() if a else ones(a, b), "tile": 2},
            TypeError,
            "score: expected torch.float32, as its first result, got torch.float64",
        ),
        (call_function, {"bias": torch.ones(5)}, ValueError, "bias: expected None beside score, got Tensor"),
        (call_function, {"target": [0, 4]}, TypeError, "target: expected a tensor of integer ids, got list"),
    ],
    ids=lambda case: case[:40] if isinstance(case, str) else "",
)
def test_bad_input_is_named(refused, changes, error, message):
    with pytest.raises(error, match=re.escape(message)):
        refused(**changes)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch warns of itself when inductor is imported
@pytest.mark.parametrize("form", ["several", "ids", "miss_index", "score"])
def test_compiled_as_one_graph_it_is_equal(form):
    torch.compiler.reset()
    items = torch.randint(-2, 3, (50, 4)).float()
    given = {
        "several": {"target": torch.randint(-1, 50, (6, 3))},
        "ids": {"target": torch.arange(6), "ids": torch.arange(50) // 2, "exclude": torch.tensor([[3, -1]] * 6)},
        "miss_index": {"target": torch.arange(6), "miss_index": 2},
        "score": {"target": torch.arange(6), "num_items": 50},
    }[form]

    def rank(queries, items, given):
        if form == "score":
            return rank_catalogue(score=lambda first, last: queries @ items[first:last].T, tile=20, **given)
        return rank_catalogue(queries, items, tile=20, **given)

    expected = rank(items[:6], items, given)
    assert equal(torch.compile(rank, fullgraph=True, backend="aot_eager")(items[:6], items, given), expected)


@pytest.mark.parametrize("form", ["several", "ids", "miss_index", "score"])
def test_nothing_synchronises_with_the_device(form):
    """The meta device has no values: whatever reads one fails."""
    items, target = torch.ones(50, 4, device="meta"), torch.zeros(6, device="meta").long()
    options = {
        "several": {"target": target[:, None].repeat(1, 3)},
        "ids": {"target": target, "ids": torch.zeros(50, device="meta").long(), "exclude": target},
        "miss_index": {"target": target, "miss_index": 0},
        "score": {"target": target, "num_items": 50},
    }[form]
    if form == "score":
        ranks = rank_catalogue(score=lambda first, last: items[:6] @ items[first:last].T, tile=20, **options)
    else:
        ranks = rank_catalogue(items[:6], items, tile=20, **options)
    assert ranks.higher.shape == (6,)
