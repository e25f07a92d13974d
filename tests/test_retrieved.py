"""Ranks of retrieved ids: every combination of tensors, arrays and lists against `oracle.py`, and what is refused."""

import random
import re
from collections import namedtuple
from typing import Any

import numpy as np
import oracle
import pytest
import torch

from mrr_torch import Outcome, kernels, rank_retrieved, reciprocal_rank

CASES, QUERIES = 2000, 4
IDS = torch.tensor([[5, 6, 7], [7, 8, 9]])
TARGET = torch.tensor([0, 1])


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Use the kernels that never read a value; the list grows as they are used."""
    used: list[int] = []
    tiles = kernels.device.row_tiles

    def row_tiles(*arguments: Any) -> Any:
        used.append(1)
        return tiles(*arguments)

    monkeypatch.setattr(kernels, "readable", lambda *tensors: False)
    monkeypatch.setattr(kernels.device, "row_tiles", row_tiles)
    return used


def filled(rng: random.Random, rows: list[list[int]], padding: int, width: int) -> Any:
    """Return rows of ids as a tensor, an array, or lists: padded, ragged, of arrays or of tensors."""
    form = rng.choice(
        ["tensor", "column-major tensor", "int32 tensor", "array", "strided", "ragged", "padded", "arrays", "tensors"]
    )
    padded = [row + [padding] * (width - len(row)) for row in rows]
    if form.endswith("tensor"):
        tensor = torch.tensor(padded, dtype=torch.int32 if "32" in form else torch.int64).reshape(len(rows), width)
        return tensor.T.contiguous().T if "column" in form else tensor
    if form in ("array", "strided"):
        array = np.array(padded, dtype=rng.choice([np.int64, np.int16])).reshape(len(rows), width)
        return array if form == "array" else array[::-1].copy()[::-1]
    make = {"ragged": list, "padded": list, "arrays": np.array, "tensors": torch.tensor}[form]
    return [make(row) for row in (rows if form == "ragged" else padded)]


def sometimes_one_id(rng: random.Random, wanted: list[list[int]], padding: int) -> Any:
    """Return relevant ids in one of the forms of `filled`, or as one id a query."""
    if rng.random() < 0.6:
        return filled(rng, wanted, padding, 3)
    wanted[:] = [ids[:1] for ids in wanted]
    one = [ids[0] if ids else padding for ids in wanted]
    return rng.choice([lambda x: x, torch.tensor, np.array, tuple])(one)


def excluded_ids(rng: random.Random, rows: list[list[int]], padding: int) -> tuple[Any, list[list[int]]]:
    """Return ids to exclude as an argument, and as the oracle takes them; of each query, or of all."""
    form = rng.choice(["none", "none", "each", "each", "many", "all"])
    if form == "none":
        return None, [[] for _ in rows]
    if form == "all":
        ids = [rng.randrange(9) for _ in range(QUERIES + 1)]
        return rng.choice([set, list, torch.tensor, np.array])(ids), [ids] * len(rows)
    longest = 12 if form == "many" else 3  # beyond 8 they are looked up, not compared one by one
    lists = [[rng.randrange(20 if form == "many" else 9) for _ in range(rng.randint(0, longest))] for _ in rows]
    return filled(rng, lists, padding, longest), lists


def random_case(rng: random.Random) -> tuple[dict[str, Any], list[oracle.Standing], list[bool]]:
    padding = rng.choice([-1, 99, 0])  # as 0 it may also stand in the middle of a list
    most = rng.choice([6, 3, 1])
    lists = [[rng.randrange(9) for _ in range(rng.randint(0, most))] for _ in range(QUERIES)]
    long = rng.random() < 0.2
    wanted = [[rng.randrange(9) for _ in range(rng.randint(0, 3))] for _ in range(QUERIES)]
    if long:
        wanted = [[rng.randrange(30) for _ in range(rng.randint(0, 12))] for _ in range(QUERIES)]
    relevant = filled(rng, wanted, padding, 12) if long else sometimes_one_id(rng, wanted, padding)
    exclude, out = excluded_ids(rng, lists, padding)
    unique = rng.random() < 0.4
    given = {
        "retrieved": filled(rng, lists, padding, most),
        "relevant": relevant,
        "padding": padding,
        "exclude": exclude,
        "unique": unique,
    }
    standings = [
        oracle.by_retrieval(row, ids, padding=padding, exclude=gone, unique=unique)
        for row, ids, gone in zip(lists, wanted, out, strict=True)
    ]
    return given, standings, [len(set(ids) - {padding}) > 1 for ids in wanted]


def check_cases(seeds: range) -> None:
    codes = {oracle.EMPTY: Outcome.EMPTY, oracle.NOT_RETRIEVED: Outcome.MISSED}
    for seed in seeds:
        given, standings, several = random_case(random.Random(seed))
        ranks = rank_retrieved(**given)
        higher = [0 if isinstance(query, str) else int(next(iter(query))) - 1 for query in standings]
        relevant = [codes[query] if isinstance(query, str) else 1 for query in standings]
        assert ranks.higher.tolist() == higher, (seed, given)
        assert ranks.relevant.tolist() == relevant, (seed, given)
        assert ranks.several.tolist() == several, (seed, given)
        assert not ranks.tied.any()
        assert not ranks.num_candidates.any()
        assert all(field.dtype == torch.int64 and field.is_contiguous() for field in ranks)


def test_every_combination_of_inputs_agrees_with_the_oracle():
    check_cases(range(CASES))


def test_the_path_that_reads_no_value_agrees_with_the_oracle(blind: list[int]):
    check_cases(range(CASES, 2 * CASES))
    assert len(blind) > CASES / 2  # the others are lists only


def on_every_kind(retrieved: list, relevant: list) -> list[tuple[Any, Any]]:
    kinds = [lambda x: x, np.array, torch.tensor]
    return [(left(retrieved), right(relevant)) for left in kinds for right in kinds]


def test_padding_never_meets_padding():
    # An approximate index fills up with -1, and so are the gold ids filled up.
    for retrieved, relevant in on_every_kind([[5, -1, -1], [2, 3, -1]], [[7, -1], [3, 4]]):
        assert reciprocal_rank(rank_retrieved(retrieved, relevant)).tolist() == [0, 1 / 2]
    for retrieved, relevant in on_every_kind([[5, 0, 0], [2, 3, 0]], [[7, 0], [3, 4]]):
        assert reciprocal_rank(rank_retrieved(retrieved, relevant, padding=0)).tolist() == [0, 1 / 2]


def test_one_gold_id_of_padding_is_none():
    for retrieved, relevant in on_every_kind([[5, -1], [5, -1], [5, -1]], [-1, 5, 4]):
        assert rank_retrieved(retrieved, relevant).relevant.tolist() == [Outcome.EMPTY, 1, Outcome.MISSED]


def test_padding_of_texts_is_what_the_user_says():
    for padding in ("", None):
        lists = [["a", padding], ["b", "c"]], [[padding], ["c", padding]]
        assert rank_retrieved(*lists, padding=padding).relevant.tolist() == [Outcome.EMPTY, 1]
    arrays = np.array([["a", ""], ["b", "c"]]), np.array([["", ""], ["c", ""]])
    assert reciprocal_rank(rank_retrieved(*arrays, padding="")).tolist() == [0, 1 / 2]


def test_a_tuple_of_gold_ids_is_a_list_of_ids():
    for kind in (list, torch.tensor, np.array):
        ranks = rank_retrieved(kind([[1, 2], [3, 4]]), [(2, 9), (9,)])
        assert reciprocal_rank(ranks).tolist() == [1 / 2, 0]
        assert ranks.several.tolist() == [True, False]


def test_a_tuple_is_an_id_where_tuples_were_retrieved():
    retrieved = [[(1, 2), (3, 4)], [(5, 6)]]
    for relevant in ([(3, 4), (1, 2)], [[(3, 4)], {(1, 2)}]):
        assert reciprocal_rank(rank_retrieved(retrieved, relevant)).tolist() == [1 / 2, 0]
    assert reciprocal_rank(rank_retrieved(retrieved, [(3, 4)] * 2, exclude={(1, 2)})).tolist() == [1, 0]
    pair = namedtuple("pair", "first second")
    assert reciprocal_rank(rank_retrieved(retrieved, [pair(3, 4), pair(5, 6)])).tolist() == [1 / 2, 1]


@pytest.mark.parametrize(
    ("retrieved", "relevant"),
    [
        (torch.ones(2, 3, 3), torch.ones(2, 3)),  # codes of three numbers, three of them retrieved
        (torch.ones(2, 4, 3), torch.ones(2, 3)),
        (torch.ones(2, 3, 5), torch.ones(2, 3, 5)),  # as many codes relevant as retrieved
        (torch.ones(2, 2, 3, 3), torch.ones(2, 2, 3)),
    ],
)
def test_codes_are_never_read_as_queries(retrieved, relevant):
    for kind in (torch.Tensor.long, lambda x: x.long().numpy()):
        with pytest.raises(ValueError, match=r"^retrieved: expected shape \(B, K\) \(codes of several numbers: give "):
            rank_retrieved(kind(retrieved), kind(relevant))


def test_queries_of_several_dimensions_are_read_where_nothing_else_can_be_meant():
    ranks = rank_retrieved(IDS.expand(4, 2, 3), torch.tensor([6, 9]).expand(4, 2), exclude=torch.tensor([5, 8]))
    assert ranks.higher.tolist() == [[0, 1]] * 4
    assert rank_retrieved(IDS[1], torch.tensor(8)).higher == 1
    assert rank_retrieved(IDS[1], torch.tensor([9, 4])).higher == 2


def test_repeats_take_up_positions_unless_they_are_left_out():
    lists, wanted = [["s1", "s1", "s1", "s2"], ["s3", "s3", "s3", "s3"]], [["s2"], ["s4"]]
    assert reciprocal_rank(rank_retrieved(lists, wanted)).tolist() == [1 / 4, 0]
    assert reciprocal_rank(rank_retrieved(lists, wanted, unique=True)).tolist() == [1 / 2, 0]
    numbers = torch.tensor([[1, 1, 1, 2], [3, 3, 3, 3]]), torch.tensor([2, 4])
    assert reciprocal_rank(rank_retrieved(*numbers)).tolist() == [1 / 4, 0]
    assert reciprocal_rank(rank_retrieved(*numbers, unique=True)).tolist() == [1 / 2, 0]


def test_the_document_itself_is_left_out_and_a_relevant_one_never():
    for retrieved, relevant in on_every_kind([[0, 4, 5], [1, 5, 4]], [5, 1]):
        for own in (torch.tensor([[0], [1]]), [[0], [1]], [{0}, {1}], np.array([[0], [1]])):
            ranks = rank_retrieved(retrieved, relevant, exclude=own)
            assert reciprocal_rank(ranks).tolist() == [1 / 2, 1]


def test_repeated_gold_ids_are_one():
    for retrieved, relevant in on_every_kind([[1, 2]] * 3, [[2, 2], [2, 7], [-1, -1]]):
        assert rank_retrieved(retrieved, relevant).several.tolist() == [False, True, False]


def test_ids_at_the_ends_of_int64_are_ids():
    ends = [-(2**63), 2**63 - 1]
    retrieved, relevant = torch.tensor([[3, *ends], [*ends, 3], [3, 3, 3]]), torch.tensor([ends, ends, [ends[0]] * 2])
    ranks = rank_retrieved(retrieved, relevant, unique=True)
    assert reciprocal_rank(ranks).tolist() == [1 / 2, 1, 0]
    assert ranks.several.tolist() == [True, True, False]
    hashes = np.array([[2**64 - 1, 5], [2, 7]], dtype=np.uint64)  # beyond int64: compared as Python's integers
    assert reciprocal_rank(rank_retrieved(hashes, [5, 7])).tolist() == [1 / 2, 1 / 2]
    assert rank_retrieved(np.array([[255]], dtype=np.uint8), [-1]).relevant.tolist() == [Outcome.EMPTY]
    assert rank_retrieved(np.array([[255]], dtype=np.uint8), [[-1, 255]]).relevant.tolist() == [1]


def test_nothing_retrieved_is_a_miss():
    for retrieved in ([[], []], torch.zeros(2, 0, dtype=torch.long), np.array([[], []])):
        ranks = rank_retrieved(retrieved, [1, [2]], exclude={7}, unique=True)
        assert ranks.relevant.tolist() == [Outcome.MISSED] * 2
    assert rank_retrieved([], []).higher.shape == (0,)
    assert rank_retrieved(torch.zeros(0, 3, dtype=torch.long), []).higher.shape == (0,)


def test_no_argument_is_changed_and_nothing_returned_shares_memory():
    tensors = [IDS.clone(), torch.tensor([[7, -1], [9, 8]]), torch.tensor([[5], [7]])]
    ranks = rank_retrieved(tensors[0], tensors[1], exclude=tensors[2], unique=True)
    assert torch.equal(tensors[0], IDS)
    for field in ranks:
        field[0] = 77
        assert (field == 77).sum() == 1  # an expanded tensor would change everywhere
    array = IDS.numpy().copy()
    array.flags.writeable = False
    assert rank_retrieved(array, TARGET).higher.shape == (2,)


@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("exclude", [None, (2, 3), (2, 12), (5,)])
@pytest.mark.parametrize("several", [(2,), (2, 4), (2, 12)])
def test_nothing_is_read_on_the_device(unique, exclude, several):
    given = {"exclude": None if exclude is None else torch.zeros(exclude, dtype=torch.long, device="meta")}
    relevant = torch.zeros(several, dtype=torch.long, device="meta")
    for wanted in (relevant, [[1, 2], [3]], [1, 2]):  # lists go to the device of the tensor
        ranks = rank_retrieved(IDS.to("meta"), wanted, unique=unique, **given)
        assert [(field.device.type, *field.shape) for field in ranks] == [("meta", 2)] * 4


@pytest.mark.slow
def test_all_options_compile_as_one_graph():
    torch.compiler.reset()
    generator = torch.Generator().manual_seed(0)
    ids, wanted, few, many = (torch.randint(-1, 20, (64, n), generator=generator) for n in (30, 3, 4, 15))
    for exclude in (few, many):
        given = {"exclude": exclude, "unique": True}
        compiled = torch.compile(rank_retrieved, fullgraph=True, backend="aot_eager")(ids, wanted, **given)
        for left, right in zip(compiled, rank_retrieved(ids, wanted, **given), strict=True):
            assert torch.equal(left, right)


NESTED = [["a", "b"], ["c"]], ["b", "c"]
NUMBERS = IDS, TARGET


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((IDS, [["5"], ["8"]]), {}, TypeError, "relevant: expected int ids, as retrieved, got str"),
        (([["5"], ["8"]], TARGET), {}, TypeError, "relevant: expected str ids, as retrieved, got int"),
        ((IDS, [5, 6, 7]), {}, ValueError, "relevant: expected ids for 2 queries, as in retrieved, got 3"),
        ((IDS, [5, 2**70]), {}, ValueError, "relevant: expected ids within int64, as a tensor's, got larger ones"),
        ((IDS[0], [5]), {}, ValueError, "retrieved: expected shape (B, K), since relevant is a list, got shape (3,)"),
        ((IDS[0], IDS[1]), {}, ValueError, "retrieved: expected shape (B, K) (for one query both with [None], "),
        ((torch.tensor(5), TARGET), {}, ValueError, "retrieved: expected shape (..., K), got shape ()"),
        ((IDS, np.array([0.0, 1.0])), {}, TypeError, "relevant: expected integer ids, or an array of"),
        ((IDS.bool(), TARGET), {}, TypeError, "retrieved: expected a tensor of integer ids, got torch.bool"),
        ((np.array([[True]]), [1]), {}, TypeError, "retrieved: expected integer ids, or an array of"),
        ((IDS, TARGET.to("meta")), {}, ValueError, "relevant: expected a tensor on cpu"),
        (([{"a", "b"}], ["a"]), {}, TypeError, "retrieved[0]: expected a list of ids, got {"),
        (([[("8",)]], [[(8,)]]), {}, TypeError, "relevant: expected tuple of str ids, as retrieved, got tuple of int"),
        (([[[1, 2]]], [[(1, 2)]]), {}, TypeError, "retrieved[0]: expected hashable ids (tuples, not lists), got list"),
        (([[(1, [2])]], [[(1, 2)]]), {}, TypeError, "retrieved[0]: expected hashable ids, got tuples of what is not"),
        ((IDS, [TARGET, TARGET], 1.5), {}, TypeError, "padding: expected an int, got 1.5"),
        ((*NESTED, [1]), {}, TypeError, "padding: expected an id, got list"),
        (NUMBERS, {"unique": 1}, TypeError, "unique: expected True or False, got 1"),
        (NESTED, {"unique": "yes"}, TypeError, "unique: expected True or False, got 'yes'"),
        (NESTED, {"exclude": [[1], [2]]}, TypeError, "exclude: expected str ids, as retrieved, got int"),
        (NESTED, {"exclude": TARGET[:1]}, TypeError, "exclude: expected str ids, as retrieved, got int"),
        (NESTED, {"exclude": ["a", "c"]}, ValueError, "exclude: expected [[id], ...] for one id a query, or a set of"),
        (NESTED, {"exclude": [["a"]]}, ValueError, "exclude: expected ids for 2 queries, as in retrieved, got 1"),
        (NESTED, {"exclude": "a"}, TypeError, "exclude: expected a tensor, or a list with an entry for each query"),
        (NUMBERS, {"exclude": 5}, TypeError, "exclude: expected a tensor, or a list with an entry for each query"),
        (NUMBERS, {"exclude": TARGET}, ValueError, "exclude: expected exclude[:, None] for one id a query, exclude"),
        (NUMBERS, {"exclude": IDS.T}, ValueError, "exclude: expected shape (2, 'H') or ('H',), got shape (3, 2)"),
        (NUMBERS, {"exclude": torch.tensor(5)}, ValueError, "exclude: expected shape (2, 'H') or ('H',), got shape ()"),
        (NUMBERS, {"exclude": IDS.float()}, TypeError, "exclude: expected a tensor of integer ids, got torch.float32"),
        (NUMBERS, {"exclude": IDS.to("meta")}, ValueError, "exclude: expected a tensor on cpu"),
    ],
    ids=lambda case: str(case)[:50],
)
def test_what_could_be_read_wrongly_is_refused(arguments, options, error, message):
    with pytest.raises(error, match="^" + re.escape(message)):
        rank_retrieved(*arguments, **options)
