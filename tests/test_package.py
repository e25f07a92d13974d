"""What the package promises as a whole: light imports, public names, typed."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

import mrr_torch


@pytest.mark.slow
def test_importing_pulls_in_no_heavy_package():
    # torch and torchmetrics may import some of these themselves; that is not ours to say.
    heavy = "{'triton', 'matplotlib', 'lightning'} & sys.modules.keys()"
    program = f"import sys, torch, torchmetrics; theirs = {heavy}; import mrr_torch; print({heavy} == theirs)"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "True\n"
    )


def test_every_public_name_exists_and_is_documented():
    for name in mrr_torch.__all__:
        assert getattr(mrr_torch, name).__doc__


def test_the_version_is_that_of_the_installed_package_and_types_are_shipped():
    assert metadata.version("mrr_torch") == mrr_torch.__version__
    assert (Path(mrr_torch.__file__).parent / "py.typed").exists()


def test_the_files_that_a_plain_update_enters_are_in_the_order_of_the_data_flow():
    """Printed, so that whoever looks for a value knows where to look: `pytest -s -k data_flow`."""
    root = Path(mrr_torch.__file__).parent
    metric, scores, target = mrr_torch.MeanReciprocalRank(10), torch.rand(4, 50), torch.arange(4)
    metric.update(scores, target)
    everywhere: list[str] = []
    for step in (lambda: metric.update(scores, target), metric.compute):
        entered: dict[str, int] = {}

        def enter(frame, event, _, entered=entered):
            path = Path(frame.f_code.co_filename)
            if event == "call" and path.is_relative_to(root):
                name = path.relative_to(root).as_posix()
                entered[name] = entered.get(name, 0) + 1

        sys.setprofile(enter)
        try:
            step()
        finally:
            sys.setprofile(None)
        print(f"{len(entered)} files: " + ", ".join(f"{name} ({calls})" for name, calls in entered.items()))
        everywhere += [name for name in entered if name not in everywhere]
    flow = ["ranks/batch.py", "ranks/scores.py", "ranks/tile.py", "state.py", "ties.py"]
    assert sorted(flow, key=everywhere.index) == flow
