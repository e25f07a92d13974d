"""The Triton kernels: right under the interpreter and on a GPU, and never used unasked."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from mrr_torch.kernels import triton as kernels

SUITE = Path(__file__).parent / "triton_suite.py"


def run_suite(*options, **environment):
    """Run the suite in a process of its own, since Triton chooses its interpreter when it is imported."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(SUITE)]
    result = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-20_000:] + result.stderr[-5_000:]
    assert int(re.search(r"(\d+) passed", result.stdout).group(1)) > 100 or "slow" in options


def need_interpreter():
    triton = pytest.importorskip("triton")
    if triton.__version__.startswith("3.6.") and np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        pytest.skip("the interpreter of triton 3.6 takes numbers from arrays as NumPy 2.4 refuses it")


def test_kernels_are_right_under_the_interpreter():
    need_interpreter()
    run_suite("-m", "not slow", TRITON_INTERPRET="1", OMP_NUM_THREADS="1")


@pytest.mark.slow
def test_kernels_use_offsets_of_64_bits():
    need_interpreter()
    run_suite("-m", "slow", TRITON_INTERPRET="1")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_kernels_are_right_on_the_gpu():
    run_suite(TRITON_INTERPRET="0")


def test_nothing_imports_triton_unasked():
    program = (
        "import sys, torch, torchmetrics; before = set(sys.modules); import mrr_torch.kernels.triton;"
        "print([name for name in set(sys.modules) - before if name.split('.')[0] == 'triton'])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_kernels_say_why_they_cannot_be_used(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert "cpu" in kernels.available(torch.zeros(1))
    assert "float64" in kernels.serves_embeddings(torch.zeros(1, 2), torch.zeros(1, 2, dtype=torch.float64))
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    assert kernels.available(torch.zeros(1)) == "triton is not installed"


def test_a_kernel_that_fails_is_warned_of_once_and_replaced(monkeypatch):
    monkeypatch.setattr(kernels, "_failed", {})
    tries = []

    def broken():
        tries.append(1)
        raise ValueError("no compiler found")

    with pytest.warns(RuntimeWarning, match="'scores' cannot be used: ValueError: no compiler found"):
        assert kernels.attempt("scores", broken, lambda: "plain") == "plain"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernels.attempt("scores", broken, lambda: "plain") == "plain"
        assert kernels.attempt("other", lambda: "fused", lambda: "plain") == "fused"
    assert len(tries) == 1
