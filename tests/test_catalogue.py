"""Ranks from embeddings, tile by tile: what the reference gives, bit for bit, in constant memory and without a wait."""

import contextlib
import itertools
import re
from unittest import mock

import pytest
import torch
from helpers import Largest, assert_within_rounding, equal

from mrr_torch import MeanReciprocalRank, Ranks, kernels, rank_catalogue, rank_target
from mrr_torch.catalogue import scorers
from mrr_torch.kernels import cpu

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
TILES = [1, 7, 64, 1000, "N", None]


@contextlib.contextmanager
def blind():
    """Let the package find that no value can be read on the host, as on an accelerator."""
    with mock.patch.object(kernels, "HOST_TYPES", frozenset()):
        yield


def small_integers(*shape, dtype=torch.float32, generator=None):
    """Embeddings whose products are exact in any order of summation, and full of ties."""
    return torch.randint(-2, 3, shape, generator=generator).to(dtype)


def catalogue(items, dtype=torch.float32, queries=(3, 5), columns=6):
    """Return queries, items, targets and all options: lists with repeats, padding and the target."""
    generator = torch.Generator().manual_seed(items)
    target = torch.randint(0, items, queries, generator=generator)
    per_query = torch.randint(-1, items, (*queries, 9), generator=generator)
    per_query[..., 1], per_query[..., 2] = per_query[..., 0], target
    return {
        "queries": small_integers(*queries, columns, dtype=dtype, generator=generator),
        "items": small_integers(items, columns, dtype=dtype, generator=generator),
        "target": target,
        "bias": [None, torch.randint(-3, 4, (items,), generator=generator).to(dtype)],
        "exclude": [None, per_query, torch.tensor([0, 0, -1, items - 1])],
    }


def both(given, tile=None, **options):
    arguments = given["queries"], given["items"], given["target"]
    ours = rank_catalogue(*arguments, tile=tile, implementation="streamed", **options)
    return ours, rank_catalogue(*arguments, implementation="reference", **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("items", [1, 2, 191, 192, 193, 450])
def test_streamed_equals_the_reference(items, tile, dtype):
    given = catalogue(items, dtype)
    for bias, exclude in itertools.product(given["bias"], given["exclude"]):
        assert equal(*both(given, items if tile == "N" else tile, bias=bias, exclude=exclude))


@pytest.mark.parametrize("tile", [7, 300, None])
def test_many_queries_are_cut_too(tile):
    # More than one block of rows, and (tile 7) more rows than the product has columns.
    given = catalogue(1200, queries=(1025,))
    for exclude in given["exclude"]:
        assert equal(*both(given, tile, exclude=exclude))


def test_the_items_pass_in_tiles_of_the_given_size(monkeypatch):
    seen = []
    score = scorers.DotProducts.score

    def noted(self, *given):
        seen.append(given[1:3])
        score(self, *given)

    monkeypatch.setattr(scorers.DotProducts, "score", noted)
    given = catalogue(450, queries=(4,))
    rank_catalogue(given["queries"], given["items"], given["target"], tile=200)
    assert sorted(seen) == [(0, 200), (200, 400), (400, 450)]


def test_what_no_one_wrote_is_not_counted(monkeypatch):
    # NaN in place of whatever memory holds: a score that is read before it is written would be missing.
    empty = torch.empty
    monkeypatch.setattr(
        torch,
        "empty",
        lambda *shape, **options: empty(*shape, **options).fill_(0).div_(0),  # 0 / 0
    )
    assert torch.empty(1, dtype=torch.float32).isnan()
    given = catalogue(450)
    for tile, bias in itertools.product([7, 200, None], given["bias"]):
        assert equal(*both(given, tile, bias=bias, exclude=given["exclude"][1]))


def test_mixed_dtypes_are_compared_in_the_higher_one():
    given = catalogue(300)
    expected = both(given)[1]
    for query, item in itertools.product(DTYPES, DTYPES):
        cast = given | {"queries": given["queries"].to(query), "items": given["items"].to(item)}
        assert equal(both(cast)[0], expected)
    # 2**24 and 2**24 + 1 are one number in float32.
    queries, items = torch.ones(1, 1), torch.tensor([[2.0**24], [2.0**24 + 1]], dtype=torch.float64)
    assert both({"queries": queries, "items": items, "target": torch.tensor([0])})[0].higher == 1


def test_half_precision_is_accumulated_in_float32():
    # 256 + 1 is 256 in bfloat16: there the items would tie.
    queries = torch.ones(1, 2, dtype=torch.bfloat16)
    items = torch.tensor([[256.0, 0.0], [256.0, 1.0]], dtype=torch.bfloat16)
    ranks = rank_catalogue(queries, items, torch.tensor([0]))
    assert ranks.higher == 1
    assert ranks.tied == 0


@pytest.mark.parametrize("shape", [(), (0,), (4,), (2, 0, 3), (2, 3, 4)], ids=str)
def test_ranks_have_the_shape_of_the_queries(shape):
    given = catalogue(40, queries=shape)
    for bias, exclude in itertools.product(given["bias"], given["exclude"]):
        ours, reference = both(given, bias=bias, exclude=exclude)
        assert ours.higher.shape == shape
        assert equal(ours, reference)
    no_list = torch.zeros(*shape, 0, dtype=torch.int64)
    assert equal(both(given, exclude=no_list)[0], both(given)[1])


def test_embeddings_without_columns_leave_the_bias():
    bias = torch.tensor([3.0, 1.0, 2.0, 1.0])
    ranks = rank_catalogue(
        torch.ones(2, 0), torch.ones(4, 0), torch.tensor([2, 1]), bias=bias, exclude=torch.tensor([0])
    )
    assert ranks.higher.tolist() == [0, 1]
    assert ranks.tied.tolist() == [0, 1]
    assert ranks.candidates.tolist() == [3, 3]


def test_nan_and_infinities_are_as_in_the_reference():
    given = catalogue(230, queries=(60,))
    generator = torch.Generator().manual_seed(1)
    for name in ("queries", "items"):
        for value in (torch.nan, torch.inf, -torch.inf):
            hit = torch.rand(given[name].shape, generator=generator) < 0.01
            given[name][hit] = value
    bias = given["bias"][1]
    bias[3], bias[4], bias[5] = torch.nan, torch.inf, -torch.inf
    given["target"][:6] = torch.arange(6)
    ours, reference = both(given, 64, bias=bias, exclude=given["exclude"][1])
    assert equal(ours, reference)
    assert (ours.relevant == -2).any()  # NaN targets are misses, and counted
    assert ((ours.relevant == 1) & (ours.higher > 0)).any()


def test_leaving_items_out_equals_a_catalogue_without_them():
    given = catalogue(300, queries=(20,))
    keep = torch.arange(300) % 3 != 0
    given["target"] = given["target"] // 3 * 3 + 1  # not among those that are left out
    ours = both(given, 64, exclude=torch.arange(0, 300, 3))[0]
    lists = both(given, 64, exclude=torch.arange(0, 300, 3).expand(20, -1))[0]
    position = keep.cumsum(0) - 1
    smaller = rank_catalogue(given["queries"], given["items"][keep], position[given["target"]])
    assert equal(ours, smaller)
    assert equal(lists, smaller)


def test_the_order_of_items_means_nothing():
    given = catalogue(500, queries=(30,))
    order = torch.randperm(500, generator=torch.Generator().manual_seed(0))
    place = order.argsort()
    moved = given | {"items": given["items"][order], "target": place[given["target"]]}
    assert equal(both(given, 64)[0], both(moved, 64)[0])


def error_bound(queries, items):
    """Bound, for each score in float32, how far it is from the exact one.

    A sum of D products in any order, each operation off by a factor of at most 1 + u (u = eps / 2, half a unit in the
    last place), is off by at most D u / (1 - D u) times the sum of the products' magnitudes (Higham, Accuracy and
    Stability of Numerical Algorithms, section 3.1); one operation more for a bias.
    """
    operations = (items.shape[1] + 1) * torch.finfo(torch.float32).eps / 2
    return operations / (1 - operations) * (queries.abs() @ items.abs().T)


@pytest.mark.parametrize("columns", [3, 64, 129])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_ranks_lie_within_the_rounding_of_scores(columns, dtype):
    generator = torch.Generator().manual_seed(columns)
    queries, items = (torch.randn(n, columns, generator=generator).to(dtype) for n in (60, 3000))
    target = torch.randint(0, 3000, (60,), generator=generator)
    assert_within_rounding(queries, items, target, rank_catalogue(queries, items, target))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("queries", [1, 2, 33, 520])
def test_equal_items_tie_exactly(queries, dtype):
    generator = torch.Generator().manual_seed(queries)
    for columns, items, tile in itertools.product([5, 24, 63, 64, 100, 257], [50, 700], [None, 7, 200, 1000]):
        kinds = torch.randn(5, columns, generator=generator).to(dtype)
        which = torch.randint(0, 5, (items,), generator=generator)
        target = torch.randint(0, items, (queries,), generator=generator)
        given = torch.randn(queries, columns, generator=generator).to(dtype)
        bias = torch.randn(5, generator=generator)[which] if tile else None
        ranks = rank_catalogue(given, kinds[which], target, tile=tile, bias=bias)
        assert torch.equal(ranks.tied, (which == which[target][:, None]).sum(1) - 1)


def strided(items):
    """Return the table in strides that are not those of a new tensor."""
    wide = torch.full((items.shape[0], items.shape[1] + 3), torch.nan, dtype=items.dtype)
    wide[:, 2:-1] = items
    return {"transposed": items.T.contiguous().T, "columns": wide[:, 2:-1]}


def test_strides_change_nothing():
    generator = torch.Generator().manual_seed(0)
    queries, items = (torch.randn(n, 19, generator=generator) for n in (40, 900))
    target = torch.randint(0, 900, (40,), generator=generator)
    expected = rank_catalogue(queries, items, target)
    for table in strided(items).values():
        assert equal(rank_catalogue(queries, table, target), expected)
    assert equal(rank_catalogue(queries.T.contiguous().T, items[:, None].expand(-1, 2, -1)[:, 1], target), expected)


@pytest.mark.parametrize("exclude", [None, "per query", "for all"])
@pytest.mark.parametrize("table", ["plain", "transposed", "bfloat16"])
def test_no_temporary_grows_with_the_scores_or_copies_the_items(table, exclude):
    items = torch.randn(150_000, 16)
    if table == "transposed":
        items = items.T.contiguous().T
    elif table == "bfloat16":
        items = items.bfloat16()
    ids = torch.randint(-1, 150_000, (200, 30))
    options = {None: {}, "per query": {"exclude": ids}, "for all": {"exclude": ids[0]}}[exclude]
    with Largest() as seen:
        rank_catalogue(torch.randn(200, 16), items, ids[:, 0].clamp(min=0), **options)
    # Scores and comparisons of a tile, 4 bytes each; the table has 9.6 MB (5.2 in bfloat16), the scores 120 MB.
    assert 0 < seen.bytes <= 2 * 2**19 * 4


@pytest.mark.parametrize("implementation", ["streamed", "reference"])
def test_no_gradient_and_no_autocast(implementation):
    given = catalogue(50)
    queries, items = given["queries"].requires_grad_(), (given["items"] * 1000 + 1).requires_grad_()
    expected = rank_catalogue(queries.detach(), items.detach(), given["target"])
    half = rank_catalogue(queries.bfloat16(), items.bfloat16(), given["target"])
    assert not equal(half, expected)  # products of these, rounded to bfloat16, would rank otherwise
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ranks = rank_catalogue(queries, items, given["target"], implementation=implementation)
    assert equal(ranks, expected)
    assert not ranks.higher.requires_grad


FORMS = {
    "plain": lambda x, **o: rank_catalogue(x["queries"], x["items"], x["target"], **o),
    "bias": lambda x, **o: rank_catalogue(x["queries"], x["items"], x["target"], bias=x["bias"], **o),
    "lists": lambda x, **o: rank_catalogue(x["queries"], x["items"], x["target"], exclude=x["lists"], **o),
    "shared": lambda x, **o: rank_catalogue(
        x["queries"], x["items"], x["target"], bias=x["bias"], exclude=x["shared"], **o
    ),
}


def tensors():
    given = catalogue(450)
    lists, shared = given["exclude"][1:]
    return {key: given[key] for key in ("queries", "items", "target")} | {
        "bias": given["bias"][1],
        "lists": lists,
        "shared": shared,
    }


@pytest.mark.parametrize("form", FORMS)
def test_nothing_waits_for_the_device(form):
    given = {key: value.to("meta") for key, value in tensors().items()}
    ranks = FORMS[form](given, tile=64)
    assert ranks.higher.shape == (3, 5)
    MeanReciprocalRank(10).to("meta").update(ranks)


@pytest.mark.parametrize("form", FORMS)
def test_the_blind_path_gives_the_same_ranks(form):
    expected = FORMS[form](tensors(), tile=64)
    with blind(), mock.patch.object(cpu, "positions_by_tile", side_effect=AssertionError("values were read")):
        assert equal(FORMS[form](tensors(), tile=64), expected)


@pytest.fixture
def never_read():
    with blind():
        yield


@pytest.mark.usefixtures("never_read")
def test_bad_values_that_cannot_be_read_are_raised_by_compute():
    queries, items = torch.ones(3, 2), torch.ones(5, 2)
    metric = MeanReciprocalRank()
    metric.update(rank_catalogue(queries, items, torch.tensor([0, 5, -1])))
    with pytest.raises(ValueError, match=r"target: expected ids in .* in 2 queries"):
        metric.compute()
    metric.reset()
    metric.update(rank_catalogue(queries, items, torch.tensor([0, 1, 2]), exclude=torch.tensor([[5], [-1], [0]])))
    with pytest.raises(ValueError, match=r"exclude: expected ids in .* in 1 query"):
        metric.compute()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch warns of itself when inductor is imported
@pytest.mark.parametrize("form", FORMS)
def test_compiled_as_one_graph_it_is_equal(form):
    torch.compiler.reset()
    expected = FORMS[form](tensors(), tile=64)
    backend = "inductor" if form == "lists" else "aot_eager"
    assert equal(torch.compile(FORMS[form], fullgraph=True, backend=backend)(tensors(), tile=64), expected)


QUERIES, ITEMS, TARGET = torch.ones(2, 3), torch.ones(5, 3), torch.tensor([0, 4])


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((QUERIES, torch.ones(5, 4), TARGET), {}, ValueError, "query_embeddings: expected shape (..., 4)"),
        ((QUERIES, torch.ones(0, 3), TARGET), {}, ValueError, "item_embeddings: expected shape (N, D), N >= 1"),
        ((QUERIES, torch.ones(2, 5, 3), TARGET), {}, ValueError, "item_embeddings: expected shape (N, D), N >= 1"),
        ((QUERIES, ITEMS.long(), TARGET), {}, TypeError, "item_embeddings: expected a floating-point tensor, got"),
        ((QUERIES.int(), ITEMS, TARGET), {}, TypeError, "query_embeddings: expected a floating-point tensor, got"),
        ((QUERIES.tolist(), ITEMS, TARGET), {}, TypeError, "query_embeddings: expected a floating-point tensor, got"),
        ((QUERIES, ITEMS.to("meta"), TARGET), {}, ValueError, "item_embeddings: expected a tensor on cpu"),
        ((QUERIES, ITEMS, TARGET.to("meta")), {}, ValueError, "target: expected a tensor on cpu"),
        ((QUERIES, ITEMS, torch.tensor([0, 5])), {}, ValueError, "target: expected ids in 0..4, got 5"),
        ((QUERIES, ITEMS, torch.tensor([0, -1])), {}, ValueError, "target: expected ids in 0..4, got -1"),
        ((QUERIES, ITEMS, TARGET.float()), {}, TypeError, "target: expected a tensor of integer ids"),
        ((QUERIES, ITEMS, 0), {}, TypeError, "target: expected a tensor of integer ids, got int"),
        ((QUERIES, ITEMS, TARGET[None]), {}, ValueError, "target: expected shape (2,), or (2, 'M') for several"),
        ((QUERIES, ITEMS, TARGET), {"bias": torch.ones(2)}, ValueError, "bias: expected shape (5,), got shape (2,)"),
        ((QUERIES, ITEMS, TARGET), {"bias": torch.ones(5).int()}, TypeError, "bias: expected a floating-point tensor"),
        ((QUERIES, ITEMS, TARGET), {"bias": 0.0}, TypeError, "bias: expected a floating-point tensor, got float"),
        ((QUERIES, ITEMS, TARGET), {"exclude": torch.tensor([5])}, ValueError, "exclude: expected ids in 0..4, padded"),
        ((QUERIES, ITEMS, TARGET), {"exclude": torch.ones(2, 5).bool()}, TypeError, "exclude: expected a tensor of"),
        ((QUERIES, ITEMS, TARGET), {"exclude": torch.tensor(0)}, ValueError, "exclude: expected shape (2, 'H'), or"),
        ((QUERIES, ITEMS, TARGET), {"exclude": TARGET[None]}, ValueError, "exclude: expected shape (2, 'H'), or"),
        ((QUERIES, ITEMS, TARGET), {"tile": 0}, ValueError, "tile: expected a positive int, got 0"),
        ((QUERIES, ITEMS, TARGET), {"tile": 1.5}, TypeError, "tile: expected a positive int, got 1.5"),
        ((QUERIES, ITEMS, TARGET), {"group": 1}, TypeError, "group: expected a process group that this process"),
        ((QUERIES, ITEMS, TARGET), {"implementation": "fast"}, ValueError, "implementation: expected one of 'auto'"),
    ],
    ids=lambda case: str(case)[:40],
)
@pytest.mark.parametrize("implementation", ["streamed", "reference"])
def test_bad_input_is_named(implementation, arguments, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        rank_catalogue(*arguments, **{"implementation": implementation} | options)


def test_the_reference_is_what_rank_target_says_of_all_scores():
    given = catalogue(60)
    scores = given["queries"] @ given["items"].T + given["bias"][1]
    expected = rank_target(scores, given["target"], exclude=given["exclude"][1])
    assert isinstance(expected, Ranks)
    assert equal(both(given, bias=given["bias"][1], exclude=given["exclude"][1])[1], expected)
