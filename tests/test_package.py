"""What the package promises as a whole: light imports, public names, typed."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

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
