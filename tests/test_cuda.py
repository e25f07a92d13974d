"""On a GPU: the values of the CPU, no wait for the device, graphs, low precision, constant memory."""

import pytest
import torch
from forms import FORMS, inputs
from helpers import quietly

from mrr_torch import MeanReciprocalRank, rank_catalogue, rank_target, sample_negatives

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture
def no_wait():
    """Let anything that waits for the device fail."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def on_gpu():
    return {name: value.cuda() for name, value in inputs().items()}


@pytest.mark.parametrize("form", FORMS)
def test_ranks_are_those_of_the_cpu(form):
    host, device = FORMS[form](inputs()), FORMS[form](on_gpu())
    queries = host.higher.numel()  # the grouped form has rows to spare on a device
    for left, right in zip(device, host, strict=True):
        assert torch.equal(left.cpu().flatten()[:queries], right.flatten())


@pytest.mark.parametrize("ties", ["expected", "optimistic", "pessimistic", "realistic"])
@pytest.mark.parametrize("negatives", [None, 9])
def test_values_are_those_of_the_cpu(ties, negatives, float64):
    given = inputs()
    results = []
    for device in ("cpu", "cuda"):
        metric = MeanReciprocalRank([3, None], ties=ties, num_negatives=negatives).to(device)
        metric.update(given["scores"].to(device), given["target"].to(device), exclude=given["history"].to(device))
        results.append(torch.stack(list(quietly(metric.compute).values())).cpu())
    assert torch.allclose(*results, rtol=0, atol=1e-13)  # sums of float64 in another order


@pytest.mark.parametrize("form", FORMS)
def test_an_update_never_waits_for_the_device(form, no_wait):
    torch.cuda.set_sync_debug_mode("default")
    given = on_gpu()
    metrics = [MeanReciprocalRank().cuda(), MeanReciprocalRank(10, num_negatives=9).cuda()]
    torch.cuda.set_sync_debug_mode("error")
    ranks = FORMS[form](given)
    metrics[0].update(ranks)
    metrics[1].update(given["scores"], given["target"], exclude=given["history"])
    assert [metric.update_count for metric in metrics] == [1, 1]


def test_rank_functions_are_captured_in_a_graph():
    given = on_gpu()
    scores, target = given["scores"].clone(), given["target"].clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        rank_target(scores, target)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = rank_target(scores, target)
    scores.copy_(scores.flip(0))
    target.copy_(target.flip(0))
    graph.replay()
    for left, right in zip(captured, rank_target(scores, target), strict=True):
        assert torch.equal(left, right)


def test_autocast_changes_no_catalogue_rank():
    generator = torch.Generator().manual_seed(0)
    queries, items = (torch.randn(n, 32, generator=generator).cuda() for n in (50, 3000))
    target = torch.arange(50, device="cuda")
    plain = rank_catalogue(queries, items, target)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.equal(rank_catalogue(queries, items, target).higher, plain.higher)


def test_deterministic_mode_is_no_obstacle():
    torch.use_deterministic_algorithms(True)
    try:
        given = on_gpu()
        for negatives in (None, 9):
            metric = MeanReciprocalRank(num_negatives=negatives).cuda()
            metric.update(given["scores"], given["target"], exclude=given["history"])
            quietly(metric.compute)
    finally:
        torch.use_deterministic_algorithms(False)
    assert metric.update_count == 1


def test_memory_is_constant_over_a_thousand_updates():
    given = on_gpu()
    metric = MeanReciprocalRank(10).cuda()
    metric.update(given["scores"], given["target"])
    held = torch.cuda.memory_allocated()
    for _ in range(1000):
        metric.update(given["scores"], given["target"])
    assert torch.cuda.memory_allocated() == held


def test_negatives_are_drawn_on_the_device():
    generator = torch.Generator("cuda").manual_seed(0)
    target = torch.arange(100, device="cuda")
    ids = sample_negatives(target, 5000, 99, exclude=torch.tensor([0, 1], device="cuda"), generator=generator)
    assert ids.device.type == "cuda"
    ordered = ids.sort(1).values
    assert not bool((ordered[:, 1:] == ordered[:, :-1]).any())
