"""What the package promises as a whole: light imports, public names, typed."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import mrr_torch


def test_importing_pulls_in_no_heavy_package():
    def heavy(packages):
        program = f"import sys, {packages}; print({{'triton', 'matplotlib', 'lightning'}} & sys.modules.keys())"
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    # torch and torchmetrics may import some of these themselves; that is not ours to say.
    assert heavy("mrr_torch") == heavy("torch, torchmetrics")


def test_every_public_name_exists_and_is_documented():
    for name in mrr_torch.__all__:
        assert getattr(mrr_torch, name).__doc__


def test_the_version_is_that_of_the_installed_package_and_types_are_shipped():
    assert metadata.version("mrr_torch") == mrr_torch.__version__
    assert (Path(mrr_torch.__file__).parent / "py.typed").exists()
