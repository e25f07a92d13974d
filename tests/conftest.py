"""Fixtures that several test files use."""

import os
from collections.abc import Iterator

import pytest
import torch
from accelerator import Accelerator
from processes import Pool

from mrr_torch import kernels

if "PYTEST_XDIST_WORKER_COUNT" in os.environ:  # workers share the cores, also for the processes that their tests start
    threads = max(1, (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def run_processes() -> Iterator[Pool]:
    """Run a function in several processes, which are started when a test first asks for them and then kept."""
    pool = Pool()
    yield pool
    pool.close()


@pytest.fixture
def float64() -> Iterator[None]:
    """Let metrics return float64, for comparisons beyond what float32 can tell."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """Let ``cuda:0`` exist, and refuse whatever would synchronise with it."""
    with Accelerator() as accelerator:
        yield accelerator


@pytest.fixture(params=["read", "not read"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test where values can be read on the host, and where they cannot."""
    if request.param == "not read":
        monkeypatch.setattr(kernels, "HOST_TYPES", frozenset())
    return request.param


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no value be read on the host, as on an accelerator."""
    monkeypatch.setattr(kernels, "HOST_TYPES", frozenset())
