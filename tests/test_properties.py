"""What holds for any scores: invariances, orderings and equalities, searched for counterexamples by hypothesis."""

import contextlib
import math
import random
from fractions import Fraction
from typing import Any

import oracle
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.metrics import label_ranking_average_precision_score
from torch._subclasses.fake_tensor import FakeTensorMode

from mrr_torch import (
    HitRate,
    MeanReciprocalRank,
    NormalizedDCG,
    RankMetric,
    Ranks,
    _synchronise,
    mean_reciprocal_rank,
    rank_grouped,
    rank_relevant,
    rank_target,
    reciprocal_rank,
)
from mrr_torch.kernels import cpu, cpu_runs, device

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:The score of the relevant item was NaN"),
]
# The same examples in every run. The fixture only sets the default dtype, the same for all examples.
stable = settings(
    derandomize=True,
    deadline=None,
    max_examples=100,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
TIES = ["expected", "optimistic", "pessimistic", "realistic"]
ties_rules = st.sampled_from(TIES)
cuts = st.none() | st.integers(1, 8)
LEVELS = [-math.inf, -2.0, -1.0, 0.0, 0.5, 3.0, math.inf, math.nan]  # few, so that ties are frequent
# Results of float64: a handful of roundings of numbers up to 1, each below 1e-15.
CLOSE = 1e-12


@st.composite
def relevance_batches(draw: st.DrawFn, levels: list[float] = LEVELS) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores with frequent ties, and relevance with any number of relevant items, none included."""
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 7))
    scores = draw(st.lists(st.sampled_from(levels), min_size=rows * columns, max_size=rows * columns))
    labels = draw(st.lists(st.booleans(), min_size=rows * columns, max_size=rows * columns))
    return torch.tensor(scores).view(rows, columns), torch.tensor(labels).view(rows, columns)


@st.composite
def target_batches(draw: st.DrawFn, levels: list[float] = LEVELS) -> tuple[torch.Tensor, torch.Tensor]:
    scores, _ = draw(relevance_batches(levels))
    rows, columns = scores.shape
    target = draw(st.lists(st.integers(0, columns - 1), min_size=rows, max_size=rows))
    return scores, torch.tensor(target)


either_form = target_batches() | relevance_batches()


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal bit for bit, but for the kind of NaN."""
    return torch.equal(left.nan_to_num(nan=-1.0), right.nan_to_num(nan=-1.0))


INCREASING = {
    "shifted": lambda x: x + 7,
    "scaled": lambda x: x * 1024,  # a power of two: no rounding, so no new ties
    "arctan": torch.atan,  # infinities become finite
    "cubed": lambda x: x**3,
    "all negative": lambda x: torch.atan(x) - 2,
}


@pytest.mark.parametrize("increasing", INCREASING)
@stable
@given(batch=either_form, ties=ties_rules, top_k=cuts)
def test_an_increasing_map_of_scores_changes_nothing(increasing: str, batch: Any, ties: str, top_k: int | None):
    scores, target = batch
    mapped = INCREASING[increasing](scores)
    assert same(reciprocal_rank(mapped, target, top_k, ties=ties), reciprocal_rank(scores, target, top_k, ties=ties))


@stable
@given(batch=relevance_batches(), ties=ties_rules, top_k=cuts, data=st.data())
def test_permuting_items_with_their_labels_changes_nothing(batch: Any, ties: str, top_k: int | None, data: Any):
    scores, labels = batch
    order = torch.tensor(data.draw(st.permutations(range(scores.shape[1]))))
    moved = reciprocal_rank(scores[:, order], labels[:, order], top_k, ties=ties)
    assert same(moved, reciprocal_rank(scores, labels, top_k, ties=ties))


@stable
@given(batch=target_batches(), ties=ties_rules, top_k=cuts, data=st.data())
def test_permuting_items_with_the_target_changes_nothing(batch: Any, ties: str, top_k: int | None, data: Any):
    scores, target = batch
    order = torch.tensor(data.draw(st.permutations(range(scores.shape[1]))))
    moved = reciprocal_rank(scores[:, order], order.argsort()[target], top_k, ties=ties)
    assert same(moved, reciprocal_rank(scores, target, top_k, ties=ties))


@stable
@given(batch=target_batches(), ties=ties_rules, top_k=cuts)
def test_a_target_column_is_a_relevance_row_with_one_relevant_item(batch: Any, ties: str, top_k: int | None):
    scores, target = batch
    labels = torch.nn.functional.one_hot(target, scores.shape[1])
    assert same(reciprocal_rank(scores, labels, top_k, ties=ties), reciprocal_rank(scores, target, top_k, ties=ties))


@stable
@given(batch=relevance_batches(), ties=ties_rules, top_k=cuts, data=st.data())
def test_a_flat_list_in_any_order_is_its_rows(batch: Any, ties: str, top_k: int | None, data: Any):
    scores, labels = batch
    rows, columns = scores.shape
    order = torch.tensor(data.draw(st.permutations(range(rows * columns))))
    indexes = torch.arange(rows).repeat_interleave(columns)[order]
    flat = reciprocal_rank(scores.flatten()[order], labels.flatten()[order], top_k, ties=ties, indexes=indexes)
    assert same(flat, reciprocal_rank(scores, labels, top_k, ties=ties))


@stable
@given(batch=either_form, top_k=cuts)
def test_optimistic_is_at_least_expected_is_at_least_pessimistic(batch: Any, top_k: int | None):
    expected, optimistic, pessimistic, realistic = (reciprocal_rank(*batch, top_k, ties=ties) for ties in TIES)
    slack = CLOSE  # the expectation is rounded; the other two are single divisions
    assert (optimistic >= expected - slack).all()
    assert (expected >= pessimistic - slack).all()
    assert (optimistic >= realistic).all()
    assert (realistic >= pessimistic).all()


@stable
@given(batch=target_batches())
def test_expected_is_at_least_realistic_for_one_relevant_item(batch: Any):
    # Jensen: 1 / rank is convex, so its mean is at least its value at the mean rank.
    expected, realistic = (reciprocal_rank(*batch, ties=ties) for ties in ("expected", "realistic"))
    assert (expected >= realistic - CLOSE).all()


@stable
@given(batch=either_form, ties=ties_rules, top_k=cuts, data=st.data())
def test_more_items_never_improve_a_rank(batch: Any, ties: str, top_k: int | None, data: Any):
    scores, target = batch
    more = data.draw(st.integers(1, 3))
    number = more * scores.shape[0]
    added = torch.tensor(data.draw(st.lists(st.sampled_from(LEVELS), min_size=number, max_size=number)))
    wider = torch.cat([scores, added.view(-1, more)], 1)
    if target.shape == scores.shape:
        labels = torch.cat([target, torch.zeros(scores.shape[0], more, dtype=torch.bool)], 1)
    else:
        labels = target
    before, after = (reciprocal_rank(*x, top_k, ties=ties) for x in [(scores, target), (wider, labels)])
    assert (after <= before + CLOSE).all()


@stable
@given(batch=either_form, ties=ties_rules, k=st.integers(1, 8))
def test_a_larger_cut_never_lowers_the_value(batch: Any, ties: str, k: int):
    values = [reciprocal_rank(*batch, top_k, ties=ties) for top_k in (k, k + 1, None)]
    assert (values[0] <= values[1] + CLOSE).all()
    assert (values[1] <= values[2] + CLOSE).all()


class Discount(RankMetric):
    """The gain of NDCG, which itself refuses queries with several relevant items."""

    key = "discount"
    gain = NormalizedDCG.gain


@stable
@given(batch=either_form, ties=ties_rules, k=st.integers(1, 8))
def test_metrics_of_one_rank_are_ordered(batch: Any, ties: str, k: int):
    # 1 / r <= 1 / log2(1 + r) <= 1, at every rank.
    mrr, ndcg, hits = (metric(k, ties=ties)(*batch) for metric in (MeanReciprocalRank, Discount, HitRate))
    assert -CLOSE <= mrr <= ndcg + CLOSE
    assert ndcg <= hits + CLOSE
    assert hits <= 1 + CLOSE


def split_and_merged(data: Any, batch: Any, **arguments: Any) -> tuple[MeanReciprocalRank, MeanReciprocalRank]:
    """Return one metric that saw the batch at once, and one merged from metrics that saw parts of it."""
    scores, target = batch
    whole = MeanReciprocalRank([1, 3, None], **arguments)
    whole.update(scores, target)
    part = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=len(scores), max_size=len(scores))))
    parts = []
    for number in data.draw(st.permutations(part.unique().tolist())):
        metric = MeanReciprocalRank([1, 3, None], **arguments)
        for row in (part == number).nonzero()[:, 0].split(data.draw(st.integers(1, 3))):
            metric.update(scores[row], target[row])
        parts.append(metric)
    merged = MeanReciprocalRank([1, 3, None], **arguments)
    while parts:
        merged.merge_state(parts.pop(data.draw(st.integers(0, len(parts) - 1))))
    return whole, merged


@st.composite
def untied_batches(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = draw(st.integers(1, 9)), draw(st.integers(1, 7))
    scores = torch.tensor([draw(st.permutations(range(columns))) for _ in range(rows)])
    target = draw(st.lists(st.integers(0, columns - 1), min_size=rows, max_size=rows))
    return scores.to(torch.get_default_dtype()), torch.tensor(target)


@stable
@given(data=st.data(), batch=untied_batches(), ties=ties_rules)
def test_any_split_merged_in_any_order_is_one_batch_bit_for_bit_without_ties(data: Any, batch: Any, ties: str):
    whole, merged = split_and_merged(data, batch, ties=ties)
    for name, state in whole.metric_state.items():
        assert _synchronise.same(state, merged.metric_state[name])
    assert whole.compute() == merged.compute()


@stable
@given(data=st.data(), batch=either_form, ties=ties_rules, action=st.sampled_from(["neg", "pos", "skip"]))
def test_any_split_merged_in_any_order_is_one_batch(data: Any, batch: Any, ties: str, action: str):
    whole, merged = split_and_merged(data, batch, ties=ties, empty_target_action=action)
    values, others = whole.compute(), merged.compute()
    assert values.keys() == others.keys()
    for name, value in values.items():
        # With ties the parts of queries are added in another order.
        assert value.item() == pytest.approx(others[name].item(), rel=0, abs=CLOSE)


def test_any_split_is_one_batch_bit_for_bit_beyond_the_ranks_kept_one_by_one():
    generator = torch.Generator().manual_seed(0)
    scores = torch.stack([torch.randperm(5000, generator=generator) for _ in range(12)])
    target = torch.randint(0, 5000, (12,), generator=generator)
    whole = MeanReciprocalRank()
    whole.update(scores, target)
    for size in (1, 5):
        merged = MeanReciprocalRank()
        for part, wanted in zip(scores.split(size), target.split(size), strict=True):
            metric = MeanReciprocalRank()
            metric.update(part, wanted)
            merged.merge_state(metric)
        assert merged.compute() == whole.compute()


def test_ties_beyond_the_ranks_kept_one_by_one():
    # Tied or not, from before 1,024 to beyond it and wholly beyond, one query and all of them together.
    higher, tied = torch.tensor([[1000, 1020, 1500, 1500, 1023, 1024, 0], [100, 0, 40, 0, 1, 0, 2000]])
    ranks = Ranks(higher, tied, torch.ones_like(higher), higher + tied + 1)
    for part in [slice(None), *(slice(i, i + 1) for i in range(len(higher)))]:
        metric = MeanReciprocalRank()
        metric.update(Ranks(*(field[part] for field in ranks)))
        exact = [
            sum(Fraction(1, h + place) for place in range(1, t + 2)) / (t + 1)
            for h, t in zip(higher[part].tolist(), tied[part].tolist(), strict=True)
        ]
        # Relative, since the values are small: some hundred roundings of float64, 1e-16 each.
        assert metric.compute().item() == pytest.approx(float(sum(exact) / len(exact)), rel=1e-13, abs=0)


DTYPES = {
    torch.float16: [-2.0, -0.5, 0.0, 0.25, 1.0, 65504.0, math.inf, -math.inf, math.nan],
    torch.bfloat16: [-2.0, -0.5, 0.0, 0.25, 1.0, 1.0078125, math.inf, -math.inf, math.nan],
    torch.float32: [-2.0, 0.0, 1.0, 1 + 2**-23, 2.0**-149, math.inf, -math.inf, math.nan],
    torch.float64: [-2.0, 0.0, 1.0, 1 + 2**-52, 2.0**-1074, math.inf, -math.inf, math.nan],
    torch.uint8: [0, 1, 127, 128, 255],
    torch.int8: [-128, -1, 0, 1, 127],
    torch.int16: [-(2**15), -1, 0, 1, 2**15 - 1],
    torch.int32: [-(2**31), -1, 0, 2**24, 2**24 + 1, 2**31 - 1],  # not told apart by float32
    torch.int64: [-(2**63), 0, 2**53, 2**53 + 1, 2**63 - 1],  # not told apart by float64
    torch.bool: [False, True],
}


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
@stable
@given(data=st.data(), ties=ties_rules, top_k=cuts)
def test_scores_are_compared_in_their_own_type(dtype: torch.dtype, data: Any, ties: str, top_k: int | None):
    rows, columns = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 7))

    def drawn(elements: st.SearchStrategy, number: int) -> list:
        return data.draw(st.lists(elements, min_size=number, max_size=number))

    values, labels = drawn(st.sampled_from(DTYPES[dtype]), rows * columns), drawn(st.integers(0, 1), rows * columns)
    columns_of_target = drawn(st.integers(0, columns - 1), rows)
    flat, relevance = torch.tensor(values, dtype=dtype), torch.tensor(labels)
    assert all(x == y or x != x for x, y in zip(values, flat.tolist(), strict=True))  # they are held exactly
    scores, target = flat.view(rows, columns), torch.tensor(columns_of_target)
    indexes = torch.arange(len(values)) // 2
    parts = [slice(row * columns, (row + 1) * columns) for row in range(rows)]
    for standings, actual in [
        (
            [oracle.by_target(values[part], t, ties) for part, t in zip(parts, columns_of_target, strict=True)],
            reciprocal_rank(scores, target, top_k, ties=ties),
        ),
        (
            [oracle.by_relevance(values[part], labels[part], ties) for part in parts],
            reciprocal_rank(scores, relevance.view(rows, columns), top_k, ties=ties),
        ),
        (
            oracle.by_group(values, labels, indexes.tolist(), ties),
            reciprocal_rank(flat, relevance, top_k, ties=ties, indexes=indexes),
        ),
    ]:
        wanted = [float(oracle.value(standing, oracle.reciprocal, top_k)) for standing in standings]
        assert actual.tolist() == pytest.approx(wanted, rel=0, abs=CLOSE)


@stable
@given(batch=untied_batches())
def test_one_relevant_item_is_label_ranking_average_precision(batch: Any):
    scores, target = batch
    labels = torch.nn.functional.one_hot(target, scores.shape[1])
    sklearn = label_ranking_average_precision_score(labels.numpy(), scores.numpy())
    assert mean_reciprocal_rank(scores, target).item() == pytest.approx(sklearn, rel=0, abs=CLOSE)
    assert mean_reciprocal_rank(scores, labels).item() == pytest.approx(sklearn, rel=0, abs=CLOSE)


def numbers(*shape: int, below: int = 4) -> torch.Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(sum(shape))).to(torch.float32)


VIEWS = {
    "last column cut off": lambda: numbers(3, 5, 7)[..., :-1],
    "last position cut off": lambda: numbers(3, 6, 6)[:, :-1],
    "transposed": lambda: numbers(6, 15).T,
    "sequence and batch swapped": lambda: numbers(5, 3, 6).transpose(0, 1),
    "channels last": lambda: numbers(3, 6, 5).transpose(1, 2),
    "every other column": lambda: numbers(15, 12)[:, ::2],
    "every other row": lambda: numbers(30, 6)[::2],
    "one row for all": lambda: numbers(6).expand(15, 6),
    "one score for all": lambda: numbers(15, 1).expand(15, 6),
    "an offset into storage": lambda: numbers(99)[9:].view(15, 6),
    "four dimensions": lambda: numbers(3, 5, 2, 6).transpose(0, 2),
}


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_equals_its_contiguous_copy(view: str, ties: str):
    scores = VIEWS[view]()
    queries = scores.shape[:-1]
    target = numbers(*queries, below=6).long()
    labels = numbers(*scores.shape, below=2).bool()
    excluded = numbers(6, *queries, below=6).long().movedim(0, -1)  # itself not contiguous
    mask = numbers(6, *queries, below=4).movedim(0, -1) > 0
    candidates = numbers(6, *queries, below=9).long().movedim(0, -1)
    assert scores.shape[-1] == 6
    for more in [
        {},
        {"exclude": excluded},
        {"exclude": ~mask},
        {"exclude": torch.tensor([1])},
        {"mask": mask},
        {"candidates": candidates},
        {"candidates": candidates, "exclude": excluded, "mask": mask},
    ]:
        copies = {name: tensor.contiguous() for name, tensor in more.items()}
        for wanted in (target, labels):
            copy = reciprocal_rank(scores.contiguous(), wanted, ties=ties, **copies)
            assert same(reciprocal_rank(scores, wanted, ties=ties, **more), copy)
            # Views of the target too: what slicing logits does to one, slicing labels does to the other.
            strided = torch.stack([wanted, wanted], -1)[..., 0]
            assert same(reciprocal_rank(scores, strided, ties=ties, **more), copy)


@pytest.mark.parametrize("view", ["last column cut off", "every other row", "one row for all", "four dimensions"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_rows_in_many_tiles_equal_rows_in_one(view: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    scores = VIEWS[view]().to(dtype)
    queries, columns = scores.shape[:-1], scores.shape[-1]
    target, history = numbers(*queries, below=columns).long(), numbers(*queries, 3, below=columns).long()
    mask, ids = numbers(*scores.shape, below=4) > 0, numbers(*scores.shape, below=9).long()
    calls = [
        lambda rank=rank, wanted=wanted, more=more: rank(scores, wanted, **more)
        for rank, wanted in ((rank_target, target), (rank_relevant, numbers(*scores.shape, below=3) == 0))
        for more in ({}, {"exclude": history}, {"exclude": mask}, {"mask": mask}, {"candidates": ids, "mask": mask})
    ]
    whole = [call() for call in calls]
    monkeypatch.setattr(cpu, "BUFFER", 16 // torch.get_num_threads())  # 4 of the 6 columns, 2 of int64
    monkeypatch.setattr(cpu, "TILE", 4)
    for left, call in zip(whole, calls, strict=True):
        for one, many in zip(left, call(), strict=True):
            assert torch.equal(one, many)


def test_one_number_as_the_target_of_all_queries():
    scores, target = numbers(15, 6), torch.tensor(4)
    assert same(reciprocal_rank(scores, target.expand(15)), reciprocal_rank(scores, torch.full((15,), 4)))
    assert reciprocal_rank(scores[:0], target.expand(0)).shape == (0,)


def test_one_list_of_excluded_ids_expanded_over_the_queries():
    scores, target, listed = numbers(15, 6), torch.zeros(15, dtype=torch.long), torch.tensor([3, 1, 3])
    shared, each = (rank_target(scores, target, exclude=ids) for ids in (listed, listed.expand(15, 3)))
    assert [field.tolist() for field in shared] == [field.tolist() for field in each]


@pytest.mark.parametrize("scores", [[-math.inf, 1.0, 2.0], [math.nan, -math.inf, 2.0]])
def test_counts_of_a_query_without_a_rank_are_none(scores: list[float]):
    # The lowest score stands for "no relevant score"; whoever has it is not tied with anything.
    labels = [[0, 0, 0] if scores[0] == -math.inf else [1, 0, 0]]
    place = torch.tensor([[scores.index(-math.inf)]])
    ranks = rank_relevant(torch.tensor([scores]), torch.tensor(labels), exclude=place)
    assert ranks.higher.tolist() == ranks.tied.tolist() == [0]
    MeanReciprocalRank().update(ranks)


def test_ids_far_apart_in_a_flat_list():
    # Differences of these do not fit into int64.
    low, high = -(2**62) - 1, 2**62 + 1
    for ids in ([high, high, low, low, low], [low, low, high, high, high], [high, low, high, low, low]):
        scores, labels, indexes = torch.tensor([2.0, 1, 3, 4, 5]), torch.tensor([0, 1, 1, 0, 0]), torch.tensor(ids)
        standings = oracle.by_group(scores.tolist(), labels.tolist(), ids, "expected")
        exact = [0.0 if s == oracle.EMPTY else float(sum(p / rank for rank, p in s.items())) for s in standings]
        assert reciprocal_rank(scores, labels, indexes=indexes).tolist() == exact


def test_scores_that_torch_negates_lazily():
    scores = torch.complex(numbers(5), numbers(5)).conj().imag
    labels, indexes = torch.tensor([1, 0, 1, 0, 0]), torch.tensor([0, 0, 1, 1, 1])
    left, right = (reciprocal_rank(x, labels, indexes=indexes) for x in (scores, scores.clone()))
    assert torch.equal(left, right)


def test_tracing_leaves_nothing_behind():
    scores, labels = numbers(3, 5), numbers(3, 5) > 2
    with FakeTensorMode(), contextlib.suppress(Exception):  # which can't tell values
        rank_relevant(torch.zeros(3, 5), torch.ones(3, 5, dtype=torch.bool))
    assert rank_relevant(scores, labels).higher.shape == (3,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8], ids=str)
def test_labels_of_many_items_in_every_dtype(dtype):
    drawn = random.Random(0)
    levels = [-2.0, -1.0, 0.0, 3.0] if dtype == torch.int8 else LEVELS
    for _ in range(100):
        rows, columns = drawn.randint(1, 3), drawn.randint(1, 6)
        scores = [drawn.choices(levels, k=columns) for _ in range(rows)]
        labels = [drawn.choices([0, 1, 2], k=columns) for _ in range(rows)]
        # A byte of a bool may be any but 0.
        relevant = torch.tensor(labels, dtype=torch.uint8).view(torch.bool)
        actual = reciprocal_rank(torch.tensor(scores).to(dtype), relevant)
        standings = [oracle.by_relevance(*pair, "expected") for pair in zip(scores, labels, strict=True)]
        wanted = [float(oracle.value(standing, oracle.reciprocal, None)) for standing in standings]
        assert actual.tolist() == pytest.approx(wanted, rel=0, abs=CLOSE)


@pytest.mark.parametrize("buffer", [1, 40, 400, 4000])  # bytes
@pytest.mark.parametrize("shape", [(1, 1), (7, 10), (10, 7), (3, 300), (300, 3)])
def test_counts_do_not_depend_on_the_tiles(shape, buffer, monkeypatch):
    monkeypatch.setattr(cpu, "BUFFER", buffer)
    scores, competes = numbers(*shape, below=5).float(), numbers(*shape, below=2) > 0
    for keep in (None, competes):
        found, wanted = (kernel.count(scores, scores[:, :1], keep) for kernel in (cpu, device))
        assert all(map(torch.equal, found, wanted))


@stable
@given(
    st.integers(1, 4),
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 23), st.integers(0, 6)), max_size=2),
    st.randoms(use_true_random=False),
)
def test_lists_of_one_length_and_those_that_only_begin_like_them(length, number, others, drawn):
    indexes = [query for query in range(number) for _ in range(length)]
    for place, query in others:
        indexes[place % len(indexes)] = query
    scores, labels = ([drawn.randrange(below) for _ in indexes] for below in (3, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_runs, "BLOCK_OF_IDS", 4)  # ids that are looked at before all are
        actual = reciprocal_rank(torch.tensor(scores), torch.tensor(labels), indexes=torch.tensor(indexes))
    standings = oracle.by_group(scores, labels, indexes, "expected")
    wanted = [float(oracle.value(standing, oracle.reciprocal, None)) for standing in standings]
    assert actual.tolist() == pytest.approx(wanted, rel=0, abs=CLOSE)


def test_long_lists_of_different_lengths():
    lengths = [200_000, 3, 200_000, 1, 300_000, 150_000]
    scores, labels = numbers(sum(lengths), below=1000), numbers(sum(lengths), below=50_000) == 0
    indexes = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    excluded = numbers(sum(lengths), below=3) == 0
    for exclude in (None, excluded):
        flat = rank_grouped(scores, labels, indexes, exclude=exclude)
        for i, (part, wanted, out) in enumerate(
            zip(*(x.split(lengths) for x in (scores, labels, excluded)), strict=True)
        ):
            alone = rank_relevant(part, wanted, exclude=None if exclude is None else out)
            assert [field[i].item() for field in flat] == [field.item() for field in alone]


@pytest.mark.parametrize("columns", [1, 2, 7, 1000, 4100, 2**19 + 3, 2**21 + 3])
def test_counts_are_whole_at_any_width(columns: int):
    # All tied with the target but the last, which is above it: counts that a sum in the scores' type would round, and
    # more columns than are counted at once.
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.uint8, torch.bool):
        scores = torch.zeros(2, columns, dtype=dtype)
        scores[:, -1] = 1
        ranks = rank_target(scores, torch.tensor([0, columns - 1]))
        assert ranks.higher.tolist() == [int(columns > 1), 0]
        assert ranks.tied.tolist() == [max(columns - 2, 0), 0]
        labels = torch.zeros(2, columns, dtype=torch.bool)
        labels[0, : max(columns - 1, 1)] = True
        labels[1, [0, -1]] = True
        ranks = rank_relevant(scores, labels)
        assert ranks.higher.tolist() == [int(columns > 1), 0]
        assert ranks.tied.tolist() == [0, 0]
        assert ranks.relevant.tolist() == [max(columns - 1, 1), 1]
