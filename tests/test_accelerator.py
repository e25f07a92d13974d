"""On an accelerator: the values of the CPU in all forms and options, and no update that waits for the device.

The accelerator is an imitation (see `accelerator.py`), so these tests run everywhere.
"""

import os
import re
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from accelerator import DEVICE, SynchronisationError
from cases import TIES, case
from forms import FORMS, MORE_FORMS, inputs
from helpers import quietly

from mrr_torch import MeanReciprocalRank, Outcome, rank_target, ranking_metrics, reciprocal_rank, state

ALL_FORMS = FORMS | MORE_FORMS
# Set the variable for more of them.
RANDOM_CASES = int(os.environ.get("MRR_TORCH_RANDOM_CASES", "400"))
BLOCKS = 8
CLOSE = 1e-14  # sums of float64 in another order


class TestImitation:
    """What stands in for the device has to refuse what a device would wait for, or nothing is tested."""

    @pytest.mark.parametrize(
        "read",
        [
            lambda x, ids, where: ids[0].item(),
            lambda x, ids, where: bool(where.any()),
            lambda x, ids, where: int(ids[0]),
            lambda x, ids, where: float(x[0, 0]),
            lambda x, ids, where: range(9)[ids[0]],
            lambda x, ids, where: x[ids[0] :],
            lambda x, ids, where: f"{ids[0]}",
            lambda x, ids, where: str(ids),
            lambda x, ids, where: ids.tolist(),
            lambda x, ids, where: ids.cpu(),
            lambda x, ids, where: ids.to("cpu"),
            lambda x, ids, where: torch.zeros(3, dtype=torch.int64).copy_(ids),
            lambda x, ids, where: where.nonzero(),
            lambda x, ids, where: torch.where(where),
            lambda x, ids, where: where.argwhere(),
            lambda x, ids, where: x[where],
            lambda x, ids, where: x.__setitem__(where, 0.0),
            lambda x, ids, where: x.masked_select(where),
            lambda x, ids, where: ids.unique(),
            lambda x, ids, where: ids.unique_consecutive(),
            lambda x, ids, where: torch.isin(ids, ids),
            lambda x, ids, where: ids.repeat_interleave(ids),
            lambda x, ids, where: ids.bincount(),
            lambda x, ids, where: ids.equal(ids),
            lambda x, ids, where: x.allclose(x),
            lambda x, ids, where: torch.tensor([1, 2], device=DEVICE),
            lambda x, ids, where: x.new_tensor([1.0]),
            lambda x, ids, where: torch.ones(3).to(DEVICE),
        ],
    )
    @pytest.mark.parametrize("inference", [False, True])
    def test_it_refuses_what_would_wait(self, read, inference, accelerator):
        with torch.inference_mode(inference):
            x, ids = accelerator.put(torch.tensor([[1.0, 2.0]] * 3)), accelerator.put(torch.arange(3))
            where = x > 1
            with pytest.raises(SynchronisationError):
                read(x, ids, where)
            with accelerator.allowed():
                read(x, ids, where)

    def test_it_has_no_arrays_and_does_not_mix_devices(self, accelerator):
        ids = accelerator.put(torch.arange(3))
        for read in (lambda: ids.numpy(), lambda: np.asarray(ids)):
            with pytest.raises(TypeError, match="can't convert cuda:0"):
                read()
        for mix in (lambda: ids + torch.arange(3), lambda: ids[torch.tensor([1])]):
            with pytest.raises(RuntimeError, match="same device"):
                mix()

    def test_it_computes_with_values(self, accelerator):
        x = torch.arange(6.0, device=DEVICE).view(2, 3)
        x[0] += 1
        x.mul_(2)[:, 1] = torch.zeros(2, device=DEVICE)
        ordered, where = x.sort(1, descending=True)
        out = torch.empty_like(x)
        assert torch.add(x, x, out=out) is out
        made = [
            x.new_zeros(2),
            torch.zeros_like(x),
            torch.rand(2, device=x.device),
            torch.ones(2).to(DEVICE, non_blocking=True),
        ]
        for tensor in (x, ordered, where, out, x.T, *made):
            assert tensor.device == DEVICE
            assert tensor.is_cuda
        with accelerator.allowed():
            assert x.tolist() == [[2, 0, 6], [6, 0, 10]]
            assert ordered.tolist() == [[6, 2, 0], [10, 6, 0]]
            assert where.tolist() == [[2, 0, 1], [2, 0, 1]]
            assert out.tolist() == [[4, 0, 12], [12, 0, 20]]
            assert x.T.contiguous().cpu().tolist() == [[2, 6], [0, 0], [6, 10]]

    def test_an_asynchronous_copy_to_the_host_arrives_late(self, accelerator):
        ids = accelerator.put(torch.arange(3))
        copy = ids.to("cpu", non_blocking=True)
        assert copy.device.type == "cpu"
        assert not set(copy.tolist()) & {0, 1, 2}
        with accelerator.allowed():
            assert ids.cpu().tolist() == [0, 1, 2]
        assert copy.tolist() == [0, 1, 2]


def close(left, right, tolerance=CLOSE):
    """Compare what an evaluation gave: texts, numbers, None, and lists and dicts of them."""
    if isinstance(right, dict):
        return left.keys() == right.keys() and all(close(left[key], right[key], tolerance) for key in right)
    if isinstance(right, list):
        return len(left) == len(right) and all(close(*pair, tolerance) for pair in zip(left, right, strict=True))
    return left == right or (
        isinstance(right, float) and left == pytest.approx(right, rel=0, abs=tolerance, nan_ok=True)
    )


def plain(value):
    """Return plain numbers for tensors."""
    return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value.double().tolist()


def told(line):
    """Return the words and the numbers of a described value: the numbers are rounded, so the last digit may differ."""
    return re.sub(r"\d\.\d{4}", "#", line), [round(float(x), 3) for x in re.findall(r"\d\.\d{4}", line)]


def evaluated(make, update, allowed, per_query=None):
    """Return all that a metric tells of an update, or the argument that it names as invalid."""
    with allowed():
        metric = make()
    try:
        update(metric)
    except (TypeError, ValueError) as error:
        return {"refused": str(error).split(":")[0]}
    with allowed():
        try:
            values = {"value": plain(quietly(metric.compute))}
            if hasattr(metric, "describe"):
                values["words"] = told(quietly(metric.describe))[0]
            if metric.num_queries is not None and hasattr(metric, "per_query"):
                values["per query"] = plain(quietly(metric.per_query))
            if per_query is not None:
                values["function"] = plain(quietly(per_query))
        except (TypeError, ValueError) as error:
            return {"refused": str(error).split(":")[0]}
    return values


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("form", ALL_FORMS)
def test_all_forms_have_the_values_of_the_cpu_and_never_wait(form, ties, accelerator, float64):
    def evaluate(given, device, allowed):
        ranks = ALL_FORMS[form](given)
        return evaluated(
            lambda: MeanReciprocalRank([3, None], ties=ties).to(device),
            lambda metric: metric.update(ranks),
            allowed,
            lambda: reciprocal_rank(ranks, ties=ties),
        ), ranks

    expected, on_cpu = evaluate(inputs(), "cpu", nullcontext)
    with accelerator.allowed():
        given = {name: accelerator.put(value) for name, value in inputs().items()}
    actual, ranks = evaluate(given, DEVICE, accelerator.allowed)
    assert ranks.higher.device == DEVICE
    assert accelerator.refused == []
    queries = on_cpu.higher.numel()
    with accelerator.allowed():
        for left, right in zip(ranks, on_cpu, strict=True):
            assert left.dtype == right.dtype
            assert left.flatten()[:queries].tolist() == right.flatten().tolist()
        # The number of queries of a flat list is not known there: the rows left over are no queries.
        assert set(ranks.relevant.flatten()[queries:].tolist()) <= {Outcome.PADDING}
    actual["function"] = torch.tensor(actual["function"]).flatten()[:queries].tolist()
    expected["function"] = torch.tensor(expected["function"]).flatten().tolist()
    assert close(actual, expected)


@pytest.mark.parametrize("settings", [{}, {"num_queries": 40}], ids=["plain", "by query"])
def test_ranks_of_the_accelerator_have_arrived_when_a_metric_on_the_cpu_reads_them(settings, accelerator, float64):
    given, values = inputs(), []
    for move in (torch.clone, accelerator.put):
        metric = MeanReciprocalRank(**settings)
        ids = {"query_ids": move(torch.arange(len(given["target"])))} if settings else {}
        ranks = rank_target(move(given["scores"]), move(given["target"]))
        with accelerator.allowed():
            metric.update(ranks, **ids)
            values.append(quietly(metric.compute))
    assert values[0] == values[1]


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_cases_have_the_values_of_the_cpu_and_never_wait(block, accelerator, float64, monkeypatch):
    if block % 2:  # counts are added up at once, on the device
        monkeypatch.setattr(state, "WAITING", 0)
    differences, refused = [], 0
    for seed in range(block, RANDOM_CASES, BLOCKS):
        drawn = case(seed)
        expected = evaluate_case(drawn, "cpu", nullcontext)
        moved = drawn.moved(accelerator.put)
        try:
            actual = evaluate_case(moved, DEVICE, accelerator.allowed)
        except Exception as error:
            actual = {"failed": f"{type(error).__name__}: {error}"}
        refused += "refused" in expected
        # The ends of an interval hold the root of a difference of such sums.
        if not close(actual, expected, 1e-12 if "confidence" not in drawn.settings else 1e-7):
            differences.append(f"seed {seed}: {drawn.form}, {drawn.settings}\n  device {actual}\n  cpu    {expected}")
    assert not differences, f"{len(differences)} differences\n" + "\n".join(differences[:10])
    assert refused < RANDOM_CASES / BLOCKS / 2  # most cases are valid, or little is compared


def evaluate_case(drawn, device, allowed):
    """Evaluate a case on a device."""
    per_query = None
    settings = drawn.settings
    if drawn.metric is MeanReciprocalRank and not isinstance(settings["top_k"], list):
        mine = {k: v for k, v in settings.items() if k not in ("confidence", "num_queries")}

        def per_query():
            return reciprocal_rank(**drawn.update(), **mine)

    return evaluated(
        lambda: drawn.metric(**settings).to(device),
        lambda metric: metric.update(
            **drawn.update(), **({} if drawn.query_ids is None else {"query_ids": drawn.query_ids})
        ),
        allowed,
        per_query,
    )


def test_a_collection_there_has_the_values_of_one_on_the_cpu(accelerator, float64):
    """Counts that wait go through compute groups, forward, merging and copies."""
    here = ranking_metrics([5, 10])
    with accelerator.allowed():
        there = ranking_metrics([5, 10]).to(DEVICE)
    generator = torch.Generator().manual_seed(0)

    def batch(queries):
        scores = torch.randint(0, 9, (queries, 40), generator=generator).double()
        return scores, torch.randint(0, 40, (queries,), generator=generator)

    def same(expected, values):
        assert values.keys() == expected.keys()
        for name, number in expected.items():  # fractions of ties are added up in another order
            assert float(values[name]) == pytest.approx(float(number), rel=1e-12)

    for queries in (7, 30):
        scores, target = batch(queries)
        here.update(scores, target)
        with accelerator.allowed():  # torchmetrics compares the states of the first batch
            there.update(accelerator.put(scores), accelerator.put(target))
    scores, target = batch(5)
    with accelerator.allowed():
        same(here(scores, target), there(accelerator.put(scores), accelerator.put(target)))
        same(here.compute(), there.compute())
        metric = there["mrr@10"]
        merged = metric.clone()
        merged.reset()
        merged.merge_state(metric)
        assert merged.compute() == metric.compute()
