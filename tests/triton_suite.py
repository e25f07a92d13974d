"""The Triton kernels against plain torch. On a GPU where one is found; else under Triton's interpreter.

The interpreter has to be chosen before Triton is imported, so `test_triton` runs this file in a process of its own.
"""

import itertools
import os
from functools import partial
from importlib import import_module

import pytest
import torch

from mrr_torch import MeanReciprocalRank, kernels, rank_catalogue, state
from mrr_torch.kernels import device as plain
from mrr_torch.kernels.triton import available
from mrr_torch.kernels.triton.accumulate import accumulate
from mrr_torch.kernels.triton.catalogue import count_catalogue
from mrr_torch.kernels.triton.scores import SPAN, TALL, TILE, count
from mrr_torch.kernels.triton.tiles import choose, tiles

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
EMBEDDINGS = [torch.float16, torch.bfloat16, torch.float32]


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Fill new memory with garbage, so that an element that is read before it is written fails a test."""

    def spoil(tensor):
        return tensor.fill_(torch.nan if tensor.is_floating_point() else 77)

    empty, new_empty = torch.empty, torch.Tensor.new_empty
    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: spoil(empty(*args, **kwargs)))
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *args, **kwargs: spoil(new_empty(*args, **kwargs)))


@pytest.fixture
def products_of_one_order(monkeypatch):
    """Let the interpreter sum each product in the order of its columns, wherever it stands in a tile, as a GPU does.

    Its own product is NumPy's, whose last bit depends on the place in the tile on CPUs without AVX-512.
    """
    if DEVICE != "cpu":
        return
    interpreter = import_module("triton.runtime.interpreter")

    def dot(self, left, right, total, *_):
        total, dtype = total.data.copy(), total.dtype.scalar
        for column, row in zip(left.data.T.astype(total.dtype), right.data.astype(total.dtype), strict=True):
            total += column[:, None] * row
        return interpreter.TensorHandle(total, dtype)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def test_the_kernels_serve_this_device():
    assert available(torch.zeros(1, device=DEVICE)) is None


def levels(*shape, dtype, generator):
    """Scores of few levels: full of ties."""
    low = 0 if dtype == torch.uint8 else -3
    return torch.randint(low, 4, shape, generator=generator).to(dtype).to(DEVICE)


def check_scores(scores, best, competes=None):
    expected = plain.count(scores, best, competes)
    counts = count(scores, best, competes)
    assert all(counted.dtype == torch.int64 for counted in counts)
    assert all(torch.equal(left, right) for left, right in zip(counts, expected, strict=True))
    return counts


SHAPES = [(1, 1), (3, 7), (5, 300), (70, 33), (1, TILE + 1), (2, SPAN), (3, SPAN + 1), (TALL + 6, 65), (0, 5), (5, 0)]


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scores_of_any_type_and_shape(shape, dtype, generator):
    scores = levels(*shape, dtype=dtype, generator=generator)
    best = levels(shape[0], 1, dtype=dtype, generator=generator)
    competes = (torch.rand(shape, generator=generator) < 0.7).to(DEVICE)
    check_scores(scores, best)
    check_scores(scores, best, competes)


@pytest.mark.parametrize("rows", [5, TALL, 3 * TALL + 1])
def test_scores_of_any_strides(rows, generator):
    scores = levels(rows, 2 * 70, dtype=torch.float32, generator=generator)
    best = levels(rows, 3, dtype=torch.float32, generator=generator)[:, 1:2]
    competes = (torch.rand(scores.shape, generator=generator) < 0.7).to(DEVICE)
    transposed = scores.T.contiguous().T
    masked_by_columns = competes.T.contiguous().T
    for view, mask in ((scores[:, ::2], competes[:, 1::2]), (transposed, competes), (scores, masked_by_columns)):
        check_scores(view, best)
        check_scores(view, best, mask)
    check_scores(scores[:1].expand(rows, -1), best, competes[:1].expand(rows, -1))
    check_scores(scores[:, :1].expand(-1, 90), best[:1].expand(rows, -1))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_is_neither_above_nor_equal_and_infinities_are_scores(dtype):
    values = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1.0], dtype=dtype, device=DEVICE)
    scores = values.expand(6, -1)
    higher, equal = check_scores(scores, values[:, None])
    # Against NaN, inf, -inf, 0, -0 and 1 in turn.
    assert higher.tolist() == [0, 0, 4, 2, 2, 1]
    assert equal.tolist() == [0, 1, 1, 2, 2, 1]


@pytest.mark.parametrize(
    ("dtype", "low"),
    [(torch.int64, 2**53), (torch.float64, 2**52), (torch.int32, 2**24), (torch.float32, 2**23), (torch.uint8, 254)],
    ids=str,
)
def test_scores_are_compared_in_their_own_type(dtype, low):
    # Neighbours that a narrower (or a signed) type would make equal, or put in the wrong order.
    scores = torch.tensor([[low, low + 1, 1]], dtype=dtype, device=DEVICE)
    higher, equal = check_scores(scores.expand(2, -1), scores[0, :2, None])
    assert (higher.tolist(), equal.tolist()) == ([1, 0], [1, 1])


@pytest.mark.slow
def test_scores_may_be_more_than_2_to_31_numbers_apart():
    memory = torch.zeros(2**31 + 5000, dtype=torch.uint8, device=DEVICE)
    scores = memory.as_strided((3, 1000), (2**30 + 100, 1))  # a stride that 32 bits hold; an offset that they do not
    scores[2, 7] = 3
    higher, equal = count(scores, torch.zeros(3, 1, dtype=torch.uint8, device=DEVICE))
    assert (higher.tolist(), equal.tolist()) == ([0, 0, 1], [1000, 1000, 999])


def small_integers(*shape, dtype, generator):
    """Embeddings whose products are exact in any order of summation, and full of ties."""
    return torch.randint(-2, 3, shape, generator=generator).to(dtype).to(DEVICE)


def catalogue(queries, number, columns, dtype, generator):
    """Return embeddings, targets, and the options: lists with repeats, padding and the target."""
    target = torch.randint(0, number, (queries,), generator=generator)
    listed = torch.randint(-1, number, (queries, 9), generator=generator)
    listed[:, 1], listed[:, 2] = listed[:, 0], target
    return (
        small_integers(queries, columns, dtype=dtype, generator=generator),
        small_integers(number, columns, dtype=dtype, generator=generator),
        target.to(DEVICE),
        [None, torch.randint(-3, 4, (number,), generator=generator).to(dtype).to(DEVICE)],
        [None, listed.to(DEVICE), torch.tensor([[0, 0, -1, number - 1]], device=DEVICE)],
    )


def check_catalogue(queries, items, target, bias=None, exclude=None, tile=None):
    """Compare with the tiled path, to the last bit."""
    best, (tied, higher, competitors, relevant) = count_catalogue(queries, items, target, bias, exclude, tile)
    shared = exclude is not None and exclude.shape[0] == 1
    if exclude is not None:  # which refuses ids that are no item; to the kernel they mean nothing
        exclude = exclude.masked_fill(exclude >= items.shape[0], -1)
    wanted = {"bias": bias, "exclude": exclude[0] if shared else exclude}
    expected = rank_catalogue(queries, items, target, implementation="streamed", **wanted)
    own = (queries.float() * items.index_select(0, target).float()).sum(1)
    own = own if bias is None else own + bias[target].float()
    assert best.dtype == torch.float32
    assert torch.equal(best.nan_to_num(nan=777), own.nan_to_num(nan=777))
    assert torch.equal(tied, expected.tied)
    assert torch.equal(higher, expected.higher)
    assert torch.equal(competitors + 1, expected.candidates)
    assert torch.equal(relevant, (~best.isnan()).long())


@pytest.mark.parametrize("dtype", EMBEDDINGS, ids=str)
@pytest.mark.parametrize(("queries", "number", "columns"), [(1, 1, 1), (5, 130, 20), (17, 128, 64), (3, 65, 200)])
def test_the_kernel_equals_the_tiled_path(queries, number, columns, dtype, generator):
    *given, biases, excludes = catalogue(queries, number, columns, dtype, generator)
    for tile in tiles(dtype, columns, amd=torch.version.hip is not None):
        for bias, exclude in zip([None, *biases, biases[1]], [None, *excludes], strict=True):
            check_catalogue(*given, bias, exclude, tile)


@pytest.mark.parametrize("dtype", EMBEDDINGS, ids=str)
def test_options_go_together(dtype, generator):
    *given, biases, excludes = catalogue(21, 150, 12, dtype, generator)
    for bias, exclude in itertools.product(biases, excludes):
        check_catalogue(*given, bias, exclude)


def test_programs_share_the_items_and_the_queries(monkeypatch, generator):
    # 7 tiles of items shared in threes, and 3 blocks of queries.
    monkeypatch.setattr("mrr_torch.kernels.triton.catalogue.PROGRAMS", 9)
    tile = tiles(torch.float32, 8)[0]
    *given, _, excludes = catalogue(2 * tile.queries + 3, 6 * tile.items + 5, 8, torch.float32, generator)
    check_catalogue(*given, None, excludes[1], tile)


def test_items_of_any_strides_and_queries_of_another_type(generator):
    queries, items, target, biases, excludes = catalogue(9, 150, 20, torch.float32, generator)
    wide = torch.cat([items, items + 1], 1)
    for view in (items.T.contiguous().T, wide[:, 20:], wide[:, ::2], wide[::2, :20], items[:1].expand(150, -1)):
        check_catalogue(queries, view, target % view.shape[0], None, None)
    for left, right in itertools.permutations(EMBEDDINGS, 2):
        check_catalogue(queries.to(left), items.to(right), target, biases[1], excludes[1])
    check_catalogue(queries.T.contiguous().T, items, target)


def test_no_queries_no_columns_and_ids_of_no_item(generator):
    queries, items, target, _, excludes = catalogue(4, 70, 6, torch.float32, generator)
    check_catalogue(queries[:0], items, target[:0], None, excludes[1][:0])
    check_catalogue(queries[:, :0], items[:, :0], target)
    check_catalogue(queries, items, target, None, excludes[1][:, :0])
    beyond = torch.tensor([[70, 71, 2**40, -5]], device=DEVICE)
    check_catalogue(queries, items, target, None, beyond)
    check_catalogue(queries, items, target, None, beyond.expand(4, -1).contiguous())
    for nowhere in (-1, 70):
        best, counts = count_catalogue(queries, items, target.fill_(nowhere))
        assert best.tolist() == [0] * 4  # as the tiled path, where the target may be in another part of the items
        assert counts[2:].tolist() == [[70] * 4, [0] * 4]
    best, counts = count_catalogue(queries, items[:0], target)
    assert best.tolist() == [0] * 4
    assert not counts.any()


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # NumPy's, of 0 * inf
def test_nan_and_infinite_scores(generator):
    queries, items, target, _, excludes = catalogue(20, 150, 8, torch.float32, generator)
    items[3], items[5, 2], items[6, 1] = torch.nan, torch.inf, -torch.inf
    target[:4] = torch.tensor([3, 5, 6, 3])
    queries[7] = torch.nan
    bias = torch.zeros(150, device=DEVICE)
    bias[11], bias[12] = torch.nan, torch.inf
    for exclude in excludes:
        check_catalogue(queries, items, target, bias, exclude)
        check_catalogue(queries, items, target, None, exclude)


def best_of_several(scores, target, excluded):
    """Rank by hand, one query at a time."""
    rows = []
    for row, ids, out in zip(scores.tolist(), target.tolist(), excluded, strict=True):
        relevant = {i for i in ids if i >= 0}
        known = [row[i] for i in relevant if row[i] == row[i]]
        best = max(known, default=float("nan") if relevant else 0.0)
        others = [row[i] for i in range(len(row)) if i not in relevant and i not in out]
        counts = [sum(s == best for s in others), sum(s > best for s in others), len(others), known.count(best)]
        rows.append((best, counts))
    return rows


@pytest.mark.parametrize("dtype", EMBEDDINGS, ids=str)
@pytest.mark.parametrize("form", ["none", "per query", "shared"])
def test_of_several_relevant_items_the_best_counts(form, dtype, generator):
    queries, items, _, biases, excludes = catalogue(40, 90, 4, dtype, generator)
    target = torch.randint(-1, 90, (40, 6), generator=generator)
    target[:, 3] = target[:, 0]  # repeated
    target[5] = -1  # no relevant item
    target[6] = torch.tensor([3, -1, -1, 3, -1, -1])
    items[3] = torch.nan  # the only relevant item of query 6, and one of several in others
    exclude = dict(zip(("none", "per query", "shared"), excludes, strict=True))[form]
    if form == "per query":
        exclude = torch.cat([exclude, target[:, :2].to(DEVICE)], 1)  # relevant items are never excluded
    out = [set()] * 40 if exclude is None else [set(row) for row in exclude.expand(40, -1).tolist()]
    scores = queries.double() @ items.double().T + biases[1].double()
    best, counts = count_catalogue(queries, items, target.to(DEVICE), biases[1], exclude)
    for query, (own, numbers) in enumerate(best_of_several(scores, target, out)):
        assert best[query].item() == own or own != own
        assert best[query].isnan().item() == (own != own)
        assert counts[:, query].tolist() == numbers


@pytest.mark.usefixtures("products_of_one_order")
@pytest.mark.parametrize(("left", "right"), [*itertools.product(EMBEDDINGS, EMBEDDINGS)], ids=str)
@pytest.mark.parametrize("columns", [50, 192])
def test_ranks_lie_within_the_error_of_the_scores(columns, left, right, generator):
    queries = torch.randn(40, columns, generator=generator).to(left).to(DEVICE)
    items = torch.randn(700, columns, generator=generator).to(right).to(DEVICE)
    target = torch.randint(0, 700, (40,), generator=generator).to(DEVICE)
    best, (tied, higher, _, _) = count_catalogue(queries, items, target)
    exact = queries.double() @ items.double().T
    # Sums of D products in float32 that need not be rounded to the nearest: eps, not eps / 2, each.
    share = (columns + 1) * torch.finfo(torch.float32).eps
    error = share / (1 - share) * (queries.double().abs() @ items.double().abs().T)
    own, own_error = exact.gather(1, target[:, None]), error.gather(1, target[:, None])
    assert ((best.double() - own[:, 0]).abs() <= own_error[:, 0]).all()
    others = torch.ones_like(exact, dtype=torch.bool).scatter_(1, target[:, None], False)
    surely = ((exact - error > own + own_error) & others).sum(1)
    perhaps = ((exact + error >= own - own_error) & others).sum(1)
    assert (surely <= higher).all()
    assert (higher + tied <= perhaps).all()
    assert (tied >= 0).all()  # less than 0: a target's score was not that of its column


@pytest.mark.slow
def test_a_table_may_have_more_than_2_to_31_numbers():
    memory = torch.zeros(2**31 + 5000, dtype=torch.float16, device=DEVICE)
    items = memory.as_strided((3, 20), (2**30 + 100, 1))
    items[0], items[1], items[2] = 1, 2, 3
    queries = torch.ones(2, 20, dtype=torch.float16, device=DEVICE)
    best, counts = count_catalogue(queries, items, torch.tensor([2, 1], device=DEVICE))
    assert best.tolist() == [60, 40]
    assert counts.tolist() == [[0, 0], [0, 1], [2, 2], [1, 1]]


def test_float64_embeddings_are_refused():
    queries, items = torch.zeros(1, 4, device=DEVICE), torch.zeros(3, 4, device=DEVICE, dtype=torch.float64)
    with pytest.raises(TypeError, match="items: expected embeddings of at most 32 bits, got"):
        count_catalogue(queries, items, torch.zeros(1, dtype=torch.int64, device=DEVICE))


def test_few_queries_get_a_small_tile():
    assert choose(torch.bfloat16, 64, 10).queries == 16
    assert choose(torch.bfloat16, 64, 60).queries == 64
    assert choose(torch.bfloat16, 64, 4096) == tiles(torch.bfloat16, 64)[0]


@pytest.mark.parametrize("queries", [0, 1, 255, 257, 3000])
def test_places_are_counted_and_those_outside_are_not(queries, generator):
    place = torch.randint(-3, 13, (queries, 2), generator=generator).to(DEVICE)[:, 0]
    state = torch.arange(10, dtype=torch.float64, device=DEVICE) * 2**40
    expected = state + torch.bincount(place[(place >= 0) & (place < 10)], minlength=10)
    assert accumulate(state, place) is state
    assert torch.equal(state, expected)


def test_rank_catalogue_and_metrics_by_the_kernels_equal_the_tiled_path(generator):
    queries, items = (small_integers(rows, 9, dtype=torch.float32, generator=generator) for rows in (21, 130))
    target = torch.randint(-1, 130, (21, 3), generator=generator)
    target[:, 0] = torch.randint(0, 130, (21,), generator=generator)
    target, ids = target.to(DEVICE), (torch.arange(130) // 2).to(DEVICE)
    history = torch.randint(-1, 60, (21, 5), generator=generator).to(DEVICE)
    bias = small_integers(130, dtype=torch.float32, generator=generator)
    given = {"bias": bias, "exclude": history, "ids": ids}
    for wanted in (target[:, 0], target):
        for names in ((), ("bias",), ("bias", "exclude"), ("exclude", "ids"), ("bias", "exclude", "ids")):
            options = {name: given[name] for name in names}
            kernel = rank_catalogue(queries, items, wanted, implementation="triton", **options)
            tiled = rank_catalogue(queries, items, wanted, implementation="streamed", **options)
            assert all(torch.equal(left, right) for left, right in zip(kernel, tiled, strict=True)), names
    with pytest.raises(ValueError, match="implementation: expected 'auto' or 'streamed' here, got 'triton': float64"):
        rank_catalogue(queries.double(), items, target, implementation="triton")


@pytest.mark.skipif(DEVICE != "cpu", reason="compares with the CPU in place")
def test_metrics_use_the_kernels_where_they_are_asked_for(generator, monkeypatch):
    scores = small_integers(40, 77, dtype=torch.float32, generator=generator).cpu()
    wanted = torch.randint(0, 77, (40,), generator=generator)
    here = MeanReciprocalRank([5, None])
    here.update(scores, wanted, exclude=wanted[:, None] - 4)
    monkeypatch.setattr(kernels, "HOST_TYPES", frozenset())
    monkeypatch.setenv("MRR_TORCH_TRITON", "1")
    monkeypatch.setattr(state, "WAITING", 0)  # else counts wait, and are added up on the host
    calls = []
    for name in ("scores", "accumulate"):
        module, function = import_module(f"mrr_torch.kernels.triton.{name}"), {"scores": "count"}.get(name, name)

        def noted(*given, original, name):
            calls.append(name)
            return original(*given)

        noted = partial(noted, original=getattr(module, function), name=name)
        monkeypatch.setattr(module, function, noted)
    fused = MeanReciprocalRank([5, None])
    fused.update(scores, wanted, exclude=wanted[:, None] - 4)
    assert {"scores", "accumulate"} <= set(calls)
    assert fused.compute() == here.compute()  # the target is tied in places: sums of the same fractions
