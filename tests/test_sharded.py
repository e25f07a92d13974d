"""Items split over processes give what whole ones give; only queries travel; and faults reach all processes."""

import itertools
import warnings

import pytest
import torch
import torch.distributed as dist
from accelerator import DEVICE, Accelerator
from helpers import assert_within_rounding
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mrr_torch import Outcome, Ranks, rank_catalogue
from mrr_torch.catalogue.agreement import Facts

pytestmark = pytest.mark.distributed

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
# Processes -> items and queries of each.
PARTS = {2: [310, 140], 4: [0, 201, 1, 248]}
QUERIES = {2: [9, 0], 4: [5, 0, 17, 1]}


def given(world, dtype=torch.float32, items=None, columns=6):
    """Return the whole problem: all items, and the queries of all processes; small integers, so full of ties."""
    items, queries = items or sum(PARTS[world]), sum(QUERIES[world])
    generator = torch.Generator().manual_seed(items)
    lists = torch.randint(-1, items, (queries, 9), generator=generator)
    target = torch.randint(0, items, (queries,), generator=generator)
    lists[:, 1], lists[:, 2] = lists[:, 0], target  # repeats, and the target
    return {
        "queries": torch.randint(-2, 3, (queries, columns), generator=generator).to(dtype),
        "items": torch.randint(-2, 3, (items, columns), generator=generator).to(dtype),
        "target": target,
        "bias": torch.randint(-3, 4, (items,), generator=generator).to(dtype),
        "lists": lists,
        "shared": torch.tensor([0, 0, -1, items - 1]),
    }


def part(tensor, sizes):
    """Return this process's part of a tensor."""
    return tensor.split(sizes)[dist.get_rank()]


def options(case):
    """Return the tensors that a case of (tile, bias, exclude) uses, by argument."""
    _, bias, exclude = case
    return {name: key for name, key in (("bias", bias), ("exclude", exclude)) if key}


CASES = list(itertools.product([7, 64, 1000, "N", None], [None, "bias"], [None, "lists", "shared"]))
CASES.append((1, "bias", "lists"))


def rank_part(problem, case, parts, queries):
    """Rank this process's queries among the items of all."""
    tile = sum(parts) if case[0] == "N" else case[0]
    own = {
        name: problem[key] if key == "shared" else part(problem[key], parts if name == "bias" else queries)
        for name, key in options(case).items()
    }
    mine = part(problem["queries"], queries), part(problem["items"], parts), part(problem["target"], queries)
    return rank_catalogue(*mine, tile=tile, group=dist.group.WORLD, **own)


def integers(world):
    """Everything in all dtypes, and catalogues of few items."""
    results = {}
    for dtype, case in itertools.product(DTYPES, CASES):
        results[str(dtype), case] = rank_part(given(world, dtype), case, PARTS[world], QUERIES[world])
    for items in (1, 3):
        parts = [items // 2] * (world - 1) + [items - items // 2 * (world - 1)] if world == 2 else [0, 1, 0, items - 1]
        case = (None, "bias", "lists")
        results[items, case] = rank_part(given(world, items=items), case, parts, QUERIES[world])
    return results


def mixtures(world):
    """Each process has its own dtype of queries, and its own kind of lists."""
    problem, rank = given(world), dist.get_rank()
    queries, target, lists = (part(problem[key], QUERIES[world]) for key in ("queries", "target", "lists"))
    exclude = [lists, problem["shared"], None, lists[:, :4]][(rank + 2) % 4]
    shape = (1, -1) if rank else (-1,)  # any leading dimensions
    if exclude is not None and exclude.ndim == 2:
        exclude = exclude.view(*shape, exclude.shape[1])
    return rank_catalogue(
        queries.to(DTYPES[rank]).view(*shape, 6),
        part(problem["items"], PARTS[world]),
        target.view(shape),
        exclude=exclude,
        group=dist.group.WORLD,
    )


def duplicates(world):
    """Random floats, with copies of five rows all over the parts."""
    generator, results = torch.Generator().manual_seed(0), []
    for columns, dtype, tile in itertools.product([5, 24, 64, 129], DTYPES[:3], [None, 50]):
        which = torch.randint(0, 5, (sum(PARTS[world]),), generator=generator)
        items = torch.randn(5, columns, generator=generator).to(dtype)[which]
        queries = torch.randn(sum(QUERIES[world]), columns, generator=generator).to(dtype)
        target = torch.randint(0, len(items), (len(queries),), generator=generator)
        tied = (which == which[target][:, None]).sum(1) - 1
        ranks = rank_catalogue(
            part(queries, QUERIES[world]),
            part(items, PARTS[world]),
            part(target, QUERIES[world]),
            tile=tile,
            group=dist.group.WORLD,
        )
        results.append(torch.equal(ranks.tied, part(tied, QUERIES[world])))
    return results


def floats(world):
    """Return random floats: queries, items and targets of all processes."""
    generator = torch.Generator().manual_seed(world)
    queries, items = (torch.randn(sum(n[world]), 64, generator=generator) for n in (QUERIES, PARTS))
    return queries, items, torch.randint(0, len(items), (len(queries),), generator=generator)


def random_floats(world):
    queries, items, target = floats(world)
    mine = part(queries, QUERIES[world]), part(items, PARTS[world]), part(target, QUERIES[world])
    return rank_catalogue(*mine, group=dist.group.WORLD)


def not_finite(world):
    problem = given(world)
    problem["items"][::7, 0], problem["items"][::11, 1] = torch.nan, torch.inf
    problem["queries"][0, 2], problem["queries"][-1, 3] = torch.nan, -torch.inf
    return rank_part(problem, (64, "bias", "lists"), PARTS[world], QUERIES[world])


def dtensors(world):
    """The table as FSDP2 leaves it: cut into pieces of equal size, but for the last."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    problem, results = given(world), {}
    mine = part(problem["queries"], QUERIES[world]), part(problem["target"], QUERIES[world])
    mesh = init_device_mesh("cpu", (world,))
    for items in (world * 3 + 1, 2, 450):  # 2: with 4 processes some have none
        target = mine[1] % items
        whole = problem["items"][:items], problem["bias"][:items]
        table, bias = (distribute_tensor(tensor, mesh, [Shard(0)]) for tensor in whole)
        results[items, "sharded bias"] = rank_catalogue(mine[0], table.requires_grad_(), target, bias=bias)
        results[items, "whole bias"] = rank_catalogue(mine[0], table, target, bias=whole[1])
    if world == 4:  # two copies of two parts, each copy for itself
        mesh = init_device_mesh("cpu", (2, 2))
        table = distribute_tensor(problem["items"], mesh, [Replicate(), Shard(0)])
        results[450, "copies"] = rank_catalogue(mine[0], table, mine[1])
    return results


def subgroup(world):
    """Processes 1 and the last have a group of their own; the others are told that they don't belong to it."""
    members = [1, world - 1] if world > 2 else [1]
    group = dist.new_group(members)
    if dist.get_rank() not in members:
        return raised(lambda: rank_catalogue(torch.ones(1, 2), torch.ones(1, 2), torch.tensor([0]), group=group))
    items = [torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [3.0, 0.0]])][members.index(dist.get_rank())]
    return rank_catalogue(torch.ones(1, 2), items, torch.tensor([0]), group=group)


def inputs(world):
    """Several relevant items, copies in other parts, and misses; processes may give different forms."""
    problem, rank, results = given(world), dist.get_rank(), {}
    several = torch.randint(-1, len(problem["items"]), (len(problem["queries"]), 5), generator=torch.manual_seed(0))
    mine = part(problem["queries"], QUERIES[world]), part(problem["items"], PARTS[world])
    targets, ids = part(several, QUERIES[world]), torch.arange(len(problem["items"])) % 150 - 1
    options = {"exclude": part(problem["lists"], QUERIES[world]), "group": dist.group.WORLD}
    for tile in (7, None):
        results["several", tile] = rank_catalogue(*mine, targets, tile=tile, **options)
        ids_here = part(ids, PARTS[world])
        results["ids", tile] = rank_catalogue(*mine, targets, ids=ids_here, tile=tile, **options)
    results["mixed"] = rank_catalogue(*mine, targets if rank else targets[:, 0].clamp(min=0), **options)
    target = part(problem["target"], QUERIES[world])
    missed = rank_catalogue(*mine, torch.where(target % 2 == 0, -9, target), miss_index=-9, **options)
    from torch.distributed.tensor import Shard, distribute_tensor

    table = distribute_tensor(problem["items"], init_device_mesh("cpu", (world,)), [Shard(0)])
    whole = rank_catalogue(mine[0], table, targets, ids=ids, exclude=options["exclude"])
    return results | {"missed": missed, "whole ids": whole, "problem": problem | {"several": several, "ids": ids}}


# Each argument as it must not be; the other process gives a valid one.
BAD = {
    "items of integers": {"item_embeddings": torch.ones(4, 3).long()},
    "items in a list": {"item_embeddings": [[1.0]]},
    "no items": {"item_embeddings": None},
    "items without dimensions": {"item_embeddings": torch.tensor(1.0)},
    "items in three dimensions": {"item_embeddings": torch.ones(4, 3, 1)},
    "complex items": {"item_embeddings": torch.ones(4, 3, dtype=torch.complex64)},
    "items without values": {"item_embeddings": torch.ones(4, 3, device="meta")},
    "everything without values": {
        "item_embeddings": torch.ones(4, 3, device="meta"),
        "query_embeddings": torch.ones(2, 3, device="meta"),
        "target": torch.zeros(2, device="meta").long(),
    },
    "sparse items": {"item_embeddings": torch.ones(4, 3).to_sparse()},
    "no queries": {"query_embeddings": None},
    "integer queries": {"query_embeddings": torch.ones(2, 3).long()},
    "sparse queries": {"query_embeddings": torch.ones(2, 3).to_sparse()},
    "narrow queries": {"query_embeddings": torch.ones(2, 2)},
    "no target": {"target": None},
    "target of floats": {"target": torch.zeros(2)},
    "long target": {"target": torch.zeros(3).long()},
    "target beyond": {"target": torch.tensor([0, 8])},
    "negative target": {"target": torch.tensor([0, -1])},
    "several beyond": {"target": torch.tensor([[0, 8], [1, -1]])},
    "bias of integers": {"bias": torch.ones(4).long()},
    "short bias": {"bias": torch.ones(3)},
    "bias in one process": {"bias": torch.ones(4)},
    "bias of text": {"bias": "none"},
    "exclude of bools": {"exclude": torch.ones(2, 8).bool()},
    "exclude of three": {"exclude": torch.ones(3, 8).long()},
    "exclude beyond": {"exclude": torch.tensor([9])},
    "exclude padded with N": {"exclude": torch.tensor([8])},
    "short ids": {"ids": torch.ones(3).long()},
    "ids of floats": {"ids": torch.ones(4)},
    "ids in one process": {"ids": torch.arange(4)},
    "miss_index of text": {"miss_index": "cold"},
    "miss_index beside several": {"miss_index": 0, "target": torch.zeros(2, 2).long()},
    "tile of 0": {"tile": 0},
    "tile of 2.5": {"tile": 2.5},
    "tile of text": {"tile": "large"},
    "tile in one process": {"tile": 5},
    "unknown implementation": {"implementation": "bogus"},
    "reference": {"implementation": "reference"},
    "no implementation": {"implementation": None},
    "score": {"score": lambda first, last: torch.ones(2, last - first)},
    "num_items": {"num_items": 8},
}


def refusals():
    """Call with each bad argument in process 1 only."""
    valid = {"query_embeddings": torch.ones(2, 3), "item_embeddings": torch.ones(4, 3), "target": torch.tensor([0, 1])}
    bad, results = dist.get_rank() == 1, {}
    for name, arguments in BAD.items():
        options = valid | (arguments if bad else {}) | {"group": dist.group.WORLD}
        results[name] = raised(lambda options=options: rank_catalogue(**options))
    return results | {"valid": raised(lambda: rank_catalogue(**valid, group=dist.group.WORLD))}


def raised(call):
    try:
        call()
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def faults(world):
    """Something wrong in one process or in all; no process may wait."""
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    rank = dist.get_rank()
    queries, items, target = torch.ones(2, 3), torch.ones(4, 3), torch.tensor([0, 1])
    bad, group = int(rank == 1), dist.group.WORLD
    mesh = init_device_mesh("cpu", (world,))
    whole = torch.ones(8, 3)
    lie = DTensor.from_local(items, mesh, [Shard(0)], shape=torch.Size((99, 3)), stride=(3, 1))
    table = distribute_tensor(whole, mesh, [Shard(0)])

    def call(queries=queries, items=items, target=target, group=group, **options):
        return raised(lambda: rank_catalogue(queries, items, target, group=group, **options))

    results = {
        "target": call(target=target + 4 * world * bad),
        "negative": call(target=target - bad),
        "exclude": call(exclude=torch.tensor([99 * bad])),
        "shape": call(queries=queries[:, : 3 - bad]),
        "dtype": call(target=target.float() if bad else target),
        "columns": call(queries=queries[:, : 3 - bad], items=items[:, : 3 - bad]),
        "bias": call(bias=torch.ones(4) if bad else None),
        "bias shape": call(bias=torch.ones(4 + bad)),
        "tile": call(tile=5 if bad else None),
        "empty": call(items=items[:0]),
        "integers": call(items=items.long()),
        "reference": call(implementation="reference"),
        "group": call(group="world"),
        "both": call(items=table),
        "dimension": call(items=distribute_tensor(whole, mesh, [Shard(1)]), group=None),
        "lie": call(items=lie, group=None),
        "queries": call(queries=table, group=None),
        "bias of parts": call(items=table, bias=distribute_tensor(whole[0], mesh, [Shard(0)]), group=None),
        "works again": call(),
    }
    return results | {"marks": marks(queries, items, target + 4 * world * bad, target[:, None] + 99)}


def marks(queries, items, target, exclude):
    """Return the outcomes of ids that can't be read on an accelerator."""
    with Accelerator() as accelerator, accelerator.allowed():  # the exchange between processes waits
        given = [tensor.to(DEVICE) for tensor in (queries, items, target)]
        ranks = rank_catalogue(*given, exclude=exclude.to(DEVICE), group=dist.group.WORLD)
        return ranks.relevant.tolist()


class Traffic(TorchDispatchMode):
    """Add up the bytes of all tensors that collectives are given, and count the collectives."""

    def __init__(self):
        super().__init__()
        self.bytes = self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            self.calls += 1
        return func(*args, **(kwargs or {}))


def traffic(world):
    """Measure (bytes, collectives) for two sizes of the table, and for twice the queries."""
    results = {}
    for items, queries, lists in itertools.product((10, 10_000), (50, 100), (0, 20)):
        exclude = torch.zeros(queries, lists, dtype=torch.int64) if lists else None
        with Traffic() as seen:
            rank_catalogue(
                torch.ones(queries, 32),
                torch.ones(items, 32),
                torch.zeros(queries, dtype=torch.int64),
                bias=torch.ones(items),
                exclude=exclude,
                group=dist.group.WORLD,
            )
        results[items, queries, lists] = seen.bytes, seen.calls
    return results


def no_queries(world):
    return rank_catalogue(torch.ones(2, 0, 3), torch.ones(4, 3), torch.ones(2, 0).long(), group=dist.group.WORLD)


SCENARIOS = (
    integers,
    mixtures,
    duplicates,
    random_floats,
    not_finite,
    dtensors,
    subgroup,
    faults,
    traffic,
    no_queries,
    inputs,
)


def run_all(world):
    warnings.simplefilter("error")  # as for all tests; a new process does not know
    return {scenario.__name__: scenario(world) for scenario in SCENARIOS}


@pytest.fixture(scope="module", params=PARTS, ids=lambda world: f"{world} processes")
def ran(request, run_processes):
    """Run all scenarios in as many processes, once."""
    world = request.param
    return world, run_processes(world, run_all, world)


def assert_whole(world, parts, problem, case=(None, None, None)):
    """Check that the ranks of all processes, put together, are those of the reference."""
    extra = {name: problem[key] for name, key in options(case).items()}
    whole = rank_catalogue(problem["queries"], problem["items"], problem["target"], implementation="reference", **extra)
    for field, expected in zip(zip(*parts, strict=True), whole, strict=True):
        assert torch.equal(torch.cat([tensor.flatten() for tensor in field]), expected), case


@pytest.mark.parametrize("case", CASES, ids=str)
def test_parts_equal_the_whole(ran, case):
    world, results = ran
    for dtype in DTYPES:
        parts = [result["integers"][str(dtype), case] for result in results]
        assert_whole(world, parts, given(world, dtype), case)


@pytest.mark.parametrize("items", [1, 3])
def test_few_items_over_more_processes(ran, items):
    world, results = ran
    case = (None, "bias", "lists")
    assert_whole(world, [result["integers"][items, case] for result in results], given(world, items=items), case)


def test_processes_may_give_different_arguments(ran):
    world, results = ran
    problem = given(world)
    padded = torch.full((sum(QUERIES[world]), 9), -1)
    for rank, rows in enumerate(torch.arange(len(padded)).split(QUERIES[world])):
        lists = problem["lists"][rows]
        exclude = [lists, problem["shared"], None, lists[:, :4]][(rank + 2) % 4]
        if exclude is not None:
            padded[rows, : exclude.shape[-1]] = exclude
    parts = [result["mixtures"] for result in results]
    assert_whole(world, parts, problem | {"lists": padded}, (None, None, "lists"))
    assert [part.higher.ndim for part in parts] == [1] + [2] * (world - 1)


def test_equal_items_in_other_parts_tie_exactly(ran):
    for result in ran[1]:
        assert result["duplicates"] == [True] * 24


def test_ranks_lie_within_the_rounding_of_scores(ran):
    world, results = ran
    fields = zip(*(result["random_floats"] for result in results), strict=True)
    assert_within_rounding(*floats(world), Ranks(*(torch.cat(field) for field in fields)))


def test_nan_and_infinities_travel(ran):
    world, results = ran
    problem = given(world)
    problem["items"][::7, 0], problem["items"][::11, 1] = torch.nan, torch.inf
    problem["queries"][0, 2], problem["queries"][-1, 3] = torch.nan, -torch.inf
    assert_whole(world, [result["not_finite"] for result in results], problem, (64, "bias", "lists"))


def test_dtensors_say_how_they_are_split(ran):
    world, results = ran
    for items, kind in results[0]["dtensors"]:
        problem = given(world)
        problem |= {key: problem[key][:items] for key in ("items", "bias")} | {"target": problem["target"] % items}
        case = (None, None if kind == "copies" else "bias", None)
        assert_whole(world, [result["dtensors"][items, kind] for result in results], problem, case)


def test_a_group_may_be_a_part_of_the_processes(ran):
    world, results = ran
    assert results[0]["subgroup"].startswith("TypeError: group: expected a process group that this process")
    first, last = results[1]["subgroup"], results[-1]["subgroup"]
    assert (first.higher, first.candidates) == ((1, 3) if world > 2 else (0, 1))
    assert last.higher == first.higher


@pytest.mark.parametrize(
    ("fault", "own", "others"),
    [
        ("target", "ValueError: target: expected ids in 0..{last}, got {beyond} in process 1", None),
        ("negative", "ValueError: target: expected ids in 0..{last}, got -1 in process 1", None),
        ("exclude", "ValueError: exclude: expected ids in 0..{last}, padded with negative ids, got 99 in proc", None),
        ("shape", "ValueError: query_embeddings: expected shape (..., 3)", "ValueError: group: expected valid"),
        ("dtype", "TypeError: target: expected a tensor of integer ids, got torch.float32", "ValueError: group: exp"),
        ("columns", "ValueError: item_embeddings: expected parts with the same number of columns, 3, got 2 in", None),
        ("bias", "ValueError: bias: expected a bias in all processes or in none", None),
        ("bias shape", "ValueError: bias: expected shape (4,), got shape (5,)", "ValueError: group: expected valid"),
        ("tile", "ValueError: tile: expected the same number in all processes, None, got 5 in process 1", None),
        ("empty", "ValueError: item_embeddings: expected N >= 1 rows in all parts together, got 0", None),
        ("integers", "TypeError: item_embeddings: expected a floating-point tensor, got torch.int64", None),
        ("reference", "ValueError: implementation: expected 'auto' or 'streamed' for items in parts", None),
        ("group", "TypeError: group: expected a process group that this process belongs to, got 'world'", None),
        ("both", "ValueError: group: expected None beside a DTensor, which has its own, got ProcessGroup", None),
        ("dimension", "ValueError: item_embeddings: expected a DTensor sharded once, on dimension 0, got", None),
        ("lie", "ValueError: item_embeddings: expected parts that add up to its 99 rows, got {rows} rows", None),
        ("queries", "TypeError: query_embeddings: expected a plain tensor (only item_embeddings may be shard", None),
        ("works again", "nothing", None),
    ],
)
def test_faults_reach_all_processes(ran, fault, own, others):
    world, results = ran
    names = {"last": 4 * world - 1, "beyond": 4 * world + 1, "rows": 4 * world}
    for rank, result in enumerate(results):
        expected = own if rank == 1 or others is None else others
        for name, value in names.items():
            expected = expected.replace("{" + name + "}", str(value))
        assert result["faults"][fault].startswith(expected)


def test_a_bias_in_other_parts_than_the_items_is_refused(ran):
    world, results = ran
    expected = "ValueError: group: expected valid" if world == 2 else "ValueError: bias: expected shape (2,)"
    assert results[1]["faults"]["bias of parts"].startswith(("ValueError: bias", expected))


def test_values_that_may_not_be_looked_at_are_marked(ran):
    for rank, result in enumerate(ran[1]):
        # A target beyond the items is marked last.
        assert result["faults"]["marks"] == [Outcome.BAD_TARGET if rank == 1 else Outcome.BAD_EXCLUDE] * 2


def test_what_is_sent_does_not_grow_with_the_items(ran):
    world, results = ran
    for result in results:
        for queries, lists in itertools.product((50, 100), (0, 20)):
            sent, calls = result["traffic"][10, queries, lists]
            assert result["traffic"][10_000, queries, lists] == (sent, calls)
            # What is sent and what is received of: the queries, their targets and lists; then of scores (float32) and
            # three counts, in place; and the facts of each process.
            gathered = queries * (4 * 32 + 8 + 8 * lists) + 8 * len(Facts._fields)
            assert sent == gathered * (world + 1) + world * queries * (4 + 3 * 8)
            assert calls == 5


def test_no_process_has_queries(ran):
    for result in ran[1]:
        assert result["no_queries"].higher.shape == (2, 0)


def test_new_inputs_equal_the_whole(ran):
    world, results = ran
    problem = results[0]["inputs"]["problem"]
    queries, items, target, several, ids = (problem[key] for key in ("queries", "items", "target", "several", "ids"))
    mixed = several.clone()
    mixed[: QUERIES[world][0], 1:], mixed[: QUERIES[world][0], 0] = -1, several[: QUERIES[world][0], 0].clamp(min=0)
    cases = {
        ("several", 7): (several, {}),
        ("several", None): (several, {}),
        ("ids", 7): (several, {"ids": ids}),
        ("ids", None): (several, {"ids": ids}),
        "whole ids": (several, {"ids": ids}),
        "mixed": (mixed, {}),
        "missed": (torch.where(target % 2 == 0, -9, target), {"miss_index": -9}),
    }
    for name, (wanted, extra) in cases.items():
        options = {"exclude": problem["lists"], "implementation": "reference"} | extra
        whole = rank_catalogue(queries, items, wanted, **options)
        parts = zip(*(result["inputs"][name] for result in results), strict=True)
        for field, expected in zip(parts, whole, strict=True):
            assert torch.equal(torch.cat([tensor.flatten() for tensor in field]), expected), name


def test_an_argument_refused_in_one_process_is_an_error_in_all(run_processes):
    # The limit is the check: a process that waited for the others would be there until it.
    first, second = run_processes(2, refusals, seconds=100)
    assert first.pop("valid") == second.pop("valid") == "nothing"
    for name, arguments in BAD.items():
        assert first[name].startswith("ValueError: "), name
        argument = first[name].split()[1].rstrip(":")
        assert second[name].split()[1].rstrip(":") in (*arguments, "item_embeddings", "query_embeddings"), name
        if argument != "group":  # told with the sizes: the same error in both
            assert first[name] == second[name]
        else:
            assert (
                first[name] == "ValueError: group: expected valid arguments in every process, got an error in process 1"
            )


def rank_what_fsdp_left():
    """A model whose embeddings FSDP2 has split, ranked as it is."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = torch.nn.Module()
    model.item_embedding = torch.nn.Embedding(101, 8)
    whole = model.item_embedding.weight.detach().clone()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    queries, target = torch.randn(5 + dist.get_rank(), 8), torch.arange(5 + dist.get_rank())
    options = {"exclude": torch.tensor([0])}
    ranks = rank_catalogue(queries, model.item_embedding.weight, target, **options)
    held = model.item_embedding.weight.to_local().shape[0]
    return held, tuple(ranks), tuple(rank_catalogue(queries, whole, target, **options))


def test_the_embeddings_of_fsdp_are_ranked_where_they_are(run_processes):
    results = run_processes(2, rank_what_fsdp_left)
    assert [held for held, _, _ in results] == [51, 50]
    for _, split, whole in results:
        assert all(torch.equal(left, right) for left, right in zip(split, whole, strict=True))
