"""Fixtures that several test files use."""

from collections.abc import Iterator

import pytest
import torch
from accelerator import Accelerator
from processes import Pool


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
