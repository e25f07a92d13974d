"""What runs on an accelerator: never a wait for the device, faults counted and raised by compute; one compiled graph.

The meta device has no values, so whatever looks at one fails there. An accelerator with values is imitated: see
`accelerator.py`, and `test_accelerator.py` for its values in all forms.
"""

import pytest
import torch
from accelerator import DEVICE
from forms import FORMS, inputs
from helpers import Largest
from torch.utils._python_dispatch import TorchDispatchMode

from mrr_torch import MeanReciprocalRank, Outcome, Ranks, mean_reciprocal_rank, reciprocal_rank, state
from mrr_torch.kernels import cpu, device


@pytest.mark.parametrize("form", FORMS)
def test_no_form_waits_for_the_device(form):
    given = {key: value.to("meta") for key, value in inputs().items()}
    metric = MeanReciprocalRank([5, None]).to("meta")
    metric.update(FORMS[form](given))
    # Scores straight to `update` know more than a `Ranks`, and go other ways.
    metric.update(given["scores"], given["target"], exclude=given["history"])
    metric.update(given["scores"], given["relevance"])
    assert metric.update_count == 3


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8]
)
@pytest.mark.parametrize("share", [0.0, 0.005, 0.02, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("whole", [True, False])
def test_the_best_relevant_score_is_the_same_however_many_are_relevant(dtype, share, whole):
    """On a CPU few are found by index, many by a pass over the scores."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 9, (40, 301), generator=generator).to(dtype)
    relevant = torch.rand(40, 301, generator=generator) < share
    if not whole:  # rows without a relevant item, NaN, infinities
        relevant[3:5] = False
        if dtype.is_floating_point:
            scores[torch.rand(40, 301, generator=generator) < 0.2] = torch.nan
            scores[7], scores[8, ::2] = torch.nan, -torch.inf
    for given in (scores, scores.T.contiguous().T):
        best, number, level = cpu.best_relevant(given, relevant)
        expected, their_number, _ = device.best_relevant(given, relevant)
        assert best.dtype == expected.dtype
        assert torch.equal(best.nan_to_num(-1.0), expected.nan_to_num(-1.0))
        assert torch.equal(number, their_number)
        assert (level is None) == (share >= 0.05)  # which way was taken
        assert level is None or torch.equal(level, ((given == expected) & relevant).sum(1))


class Launched(TorchDispatchMode):
    """Counts the operators that launch a kernel: neither views nor memory."""

    NONE = "view select slice unsqueeze expand alias detach unbind _unsafe_view t transpose as_strided empty new_empty"
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ not in self.NONE.split()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("settings", [{}, {"top_k": 10}, {"ties": "pessimistic"}, {"split_queries": "separate"}])
@pytest.mark.parametrize("columns", [100, 20_000])
def test_an_update_of_plain_scores_launches_few_kernels(columns, settings):
    metric = MeanReciprocalRank(**settings).to("meta")
    given = torch.empty(512, columns, device="meta"), torch.empty(512, dtype=torch.int64, device="meta")
    with Launched() as launched:
        metric.update(*given)
    assert 0 < launched.count <= 20


@pytest.mark.parametrize("columns", [100, 20_000, 200_000])
def test_several_relevant_items_launch_few_kernels_however_many_columns_there_are(columns):
    metric = MeanReciprocalRank().to("meta")
    with Launched() as launched:
        metric.update(torch.empty(8, columns, device="meta"), torch.empty(8, columns, dtype=torch.bool, device="meta"))
    assert 0 < launched.count <= 40


@pytest.mark.parametrize("settings", [{}, {"cohorts": 2}, {"num_negatives": 20}, {"ties": "realistic"}])
def test_counts_that_wait_and_counts_that_do_not_are_one_state(settings, accelerator, on_device, monkeypatch, float64):
    monkeypatch.setattr(state, "WAITING", 4 * 150)  # numbers: those of one batch wait, the others do not
    generator = torch.Generator().manual_seed(0)
    here, there = MeanReciprocalRank([10, None], **settings), on_device([10, None], **settings)
    for queries in (100, 70, 40):
        batch = {
            "preds": torch.randint(0, 400, (queries, 1500), generator=generator),
            "target": torch.randint(0, 1500, (queries,), generator=generator),
            **({"cohort": torch.randint(0, 2, (queries,), generator=generator)} if "cohorts" in settings else {}),
        }
        here.update(**batch)
        there.update(**{name: accelerator.put(value) for name, value in batch.items()})
    with accelerator.allowed():
        waiting = sum(map(len, (getattr(there, name) for name in there._lists)))
        assert waiting == (1 if "cohorts" in settings else 2)  # of three batches
        assert getattr(there, there._names[0]).any()  # the others do not
        expected, value, words = here.compute(), there.compute(), there.describe()
        assert value.keys() == expected.keys()
        for name, number in expected.items():  # fractions of ties are added up in another order
            assert float(value[name]) == pytest.approx(float(number), rel=1e-12)
        assert words == here.describe()
        there.reset()
        assert not any(map(len, (getattr(there, name) for name in there._lists)))


def test_the_meta_device_would_notice_a_wait():
    with pytest.raises(RuntimeError, match="meta"):
        bool(torch.zeros(1, device="meta").any())


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_ranks_compile_as_one_graph_and_are_equal(form):
    torch.compiler.reset()
    given = inputs()
    eager = FORMS[form](given)
    # Whether it is one graph, and the same, is told before C++ is made of it, which takes seconds.
    backend = "inductor" if form in ("target, history", "relevance, masks", "grouped") else "aot_eager"
    compiled = torch.compile(FORMS[form], fullgraph=True, backend=backend)(given)
    queries = eager.higher.numel()  # under compile the grouped form has rows to spare, marked to be skipped
    for left, right in zip(compiled, eager, strict=True):
        assert torch.equal(left.flatten()[:queries], right.flatten())
    assert bool((compiled.relevant.flatten()[queries:] == Outcome.PADDING).all())


@pytest.fixture
def on_device(accelerator):
    """Make a metric on the accelerator."""

    def make(*arguments, **settings):
        with accelerator.allowed():
            return MeanReciprocalRank(*arguments, **settings).to(DEVICE)

    return make


def test_rows_to_spare_are_no_queries(accelerator, on_device):
    # The number of queries of a flat list is not known there; nothing may be told of the rows that are left.
    metric, indexes = on_device(5), torch.tensor([0, 0, 1, 1])
    items = torch.tensor([0.3, 0.2, 0.9, 0.1]), torch.tensor([0, 1, 0, 1])
    moved = *map(accelerator.put, items), accelerator.put(indexes)
    metric.update(*moved[:2], indexes=moved[2])
    with accelerator.allowed():
        assert metric.compute() == mean_reciprocal_rank(*moved[:2], indexes=moved[2]) == 0.5
        assert mean_reciprocal_rank(*items, indexes=indexes) == 0.5
        assert "; 2 queries;" in metric.describe()
        assert "ignored" not in metric.describe()
    by_id = on_device(5, num_queries=2)
    padding = Outcome.PADDING
    rows = torch.tensor([[0, 1, 0, 7], [0, 0, 0, 0], [1, 1, padding, padding], [2, 2, 0, 0]])
    by_id.update(Ranks(*accelerator.put(rows)), query_ids=accelerator.put(torch.tensor([0, 1, 0, 5])))
    with accelerator.allowed():
        assert by_id.compute() == 0.75


def test_of_two_errors_of_a_query_the_first_is_told_as_on_a_cpu(accelerator, on_device):
    here, there = MeanReciprocalRank(num_queries=2), on_device(num_queries=2)
    given, ids = (torch.zeros(2, 3), torch.tensor([0, 7])), torch.tensor([0, 9])
    with pytest.raises(ValueError, match=r"^target: expected ids in"):
        here.update(*given, query_ids=ids)
    there.update(*map(accelerator.put, given), query_ids=accelerator.put(ids))
    with accelerator.allowed(), pytest.raises(ValueError, match=r"^target: expected ids in"):
        there.compute()


def test_no_queries_have_no_values(accelerator):
    ranks = Ranks(*torch.zeros(4, 0, dtype=torch.int64, device=DEVICE))
    with accelerator.allowed():
        assert reciprocal_rank(ranks).shape == (0,)


def test_the_state_of_both_paths_is_the_same_without_ties(accelerator, on_device, monkeypatch):
    monkeypatch.setattr(state, "WAITING", 0)  # added up on the device, one batch at a time
    scores = torch.rand(64, 3000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = torch.arange(64)
    here, there = MeanReciprocalRank(), on_device()
    here.update(scores, target)
    there.update(accelerator.put(scores), accelerator.put(target))
    with accelerator.allowed():
        for key, value in here.metric_state.items():
            assert torch.equal(value, there.metric_state[key].cpu())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preds": torch.zeros(3, 4), "target": torch.tensor([0, 4, -1])}, "target: expected ids in .* in 2 queries"),
        (
            {"preds": torch.zeros(2, 4), "target": torch.tensor([[1, 0, 0, -1], [1, 0, 0, 0]])},
            "target: expected relevance >= 0 .* in 1 query",
        ),
        (
            {
                "preds": torch.zeros(2, 4),
                "target": torch.tensor([0, 1]),
                "exclude": torch.tensor([[9], [3]]),
            },
            "exclude: expected ids in .* in 1 query",
        ),
        (
            {
                "preds": torch.zeros(4),
                "target": torch.tensor([1, -2, 0, 0]),
                "indexes": torch.tensor([0, 0, 1, 1]),
            },
            "target: expected relevance >= 0 .* in 1 query",
        ),
    ],
    ids=["target", "relevance", "exclude", "grouped"],
)
def test_faults_are_counted_and_raised_by_compute(arguments, message, accelerator, on_device):
    metric = on_device()
    put = accelerator.put
    metric.update(**{name: put(value) for name, value in arguments.items()})
    metric.update(put(torch.zeros(2, 4)), put(torch.tensor([0, 1])))
    with accelerator.allowed():
        with pytest.raises(ValueError, match=message):
            metric.compute()
        metric.reset()
    metric.update(put(torch.tensor([[1.0, 0.0]])), put(torch.tensor([0])))
    with accelerator.allowed():
        assert metric.compute() == 1


def test_empty_queries_that_are_errors_are_raised_by_compute(accelerator, on_device):
    metric = on_device(empty_target_action="error")
    metric.update(torch.zeros(2, 3, device=DEVICE), accelerator.put(torch.tensor([[0, 0, 0], [0, 1, 0]])))
    with accelerator.allowed(), pytest.raises(ValueError, match="none in 1 query"):
        metric.compute()


def test_a_tie_that_cannot_be_followed_is_refused_rather_than_guessed(accelerator, on_device, float64, monkeypatch):
    numbers = torch.tensor([[0, 1], [3000, 2], [3, 1], [4000, 3]])
    ranks = Ranks(*accelerator.put(numbers))
    metric = on_device(10)
    metric.update(ranks)
    reference = float(reciprocal_rank(Ranks(*numbers), top_k=10).mean())
    with accelerator.allowed():
        # A cut-off does not need what lies beyond. (Float64 rounding.)
        assert float(metric.compute()) == pytest.approx(reference, abs=1e-15)
        assert float(reciprocal_rank(ranks, top_k=10).mean()) == pytest.approx(reference, abs=1e-15)
    metric = on_device()
    metric.update(ranks)
    with accelerator.allowed():  # counts that waited are added up on the host, which follows every tie
        assert float(metric.compute()) == pytest.approx(float(reciprocal_rank(Ranks(*numbers)).mean()), rel=1e-12)
        metric.reset()
    monkeypatch.setattr(state, "WAITING", 0)
    metric.update(ranks)
    with (
        accelerator.allowed(),
        pytest.raises(ValueError, match="preds: expected scores or a top_k where several relevant items tie"),
    ):
        metric.compute()
    scores, relevance = torch.zeros(1, 3003), (torch.arange(3003) < 3).long()[None]
    with accelerator.allowed():
        metric.reset()
    metric.update(accelerator.put(scores), accelerator.put(relevance))  # here the columns bound the tie
    with accelerator.allowed():
        assert float(metric.compute()) == pytest.approx(float(reciprocal_rank(scores, relevance)), abs=1e-15)


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
