"""The recipes run beside the libraries that they are for, on one process and on two; each needs its library."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import scripts
import torch

RECIPES = Path(__file__).parents[1] / "examples" / "recipes"
NEEDED = {
    "accelerate_loop": "accelerate",
    "faiss_search": "faiss",
    "hugging_face_trainer": "transformers",
    "lightning_processes": "lightning",
    "recbole_model": "recbole",
    "rectools_sasrec": "rectools",
    "replay_callback": "replay",
    "sentence_transformers_search": "sentence_transformers",
}
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")

pytestmark = pytest.mark.recipes


def run(name: str, cwd: Path, *launcher: str) -> list[str]:
    """Return the lines that a recipe prints."""
    if not find_spec(NEEDED[name]):
        pytest.skip(f"{NEEDED[name]} is not installed")
    if not launcher:
        return scripts.finish(scripts.start(RECIPES / f"{name}.py", cwd=cwd))[0].splitlines()
    command = [sys.executable, *launcher, RECIPES / f"{name}.py"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, encoding="utf-8", timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def expected() -> str:
    """MRR@10 of the queries that most recipes make, from the matrix of all scores."""
    torch.manual_seed(0)
    items, target = torch.randn(500, 16), torch.randint(500, (301,))
    scores = (items[target] + torch.randn(301, 16)) @ items.T
    rank = 1 + (scores > scores.gather(1, target[:, None])).sum(1)
    return f"mrr@10 {torch.where(rank <= 10, 1 / rank.double(), 0.0).mean():.6f}"


def test_each_recipe_has_a_test_and_at_most_forty_lines_of_code():
    files = {path.stem: path.read_text(encoding="utf-8") for path in RECIPES.glob("*.py")}
    assert set(files) == set(NEEDED)
    for name, text in files.items():
        code = text.split('"""', 2)[2]
        assert sum(bool(line.strip()) for line in code.splitlines()) <= 40, name


@pytest.mark.distributed
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("name", ["accelerate_loop", "hugging_face_trainer", "lightning_processes"])
def test_queries_count_once_on_one_process_and_on_two(name, processes, expected, tmp_path):
    # 301 queries: two processes can't have as many each, so that a sampler repeats one.
    assert run(name, tmp_path, *(TORCHRUN if processes == 2 else ())) == [expected]


def test_an_index_that_finds_all_has_the_value_of_all_scores(expected, tmp_path):
    one_cell, all_cells, exact = run("faiss_search", tmp_path)
    assert all_cells == f"nprobe 50: {expected}"
    assert exact == f"exact: {expected}"
    assert float(one_cell.split()[-1]) < float(expected.split()[-1])


@pytest.mark.parametrize("name", ["recbole_model", "rectools_sasrec", "replay_callback"])
def test_a_model_has_the_value_that_its_own_library_gives(name, tmp_path):
    ours, theirs = run(name, tmp_path)
    assert ours.split()[1] == theirs.split()[1]
    assert 0 < float(theirs.split()[1]) < 1


def test_the_first_of_several_relevant_documents_counts(tmp_path):
    # "bread" and "repair bicycle" find a document with the words first; "red cake" has "red paint" and "butter cake" in
    # one order or the other, and only the latter is relevant.
    [line] = run("sentence_transformers_search", tmp_path)
    assert line in ("mrr@10 1.000000", "mrr@10 0.833333")
