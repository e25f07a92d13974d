"""Scripts that run as a user runs them, but in copies of one process that has imported what they import.

Importing torch and Lightning takes longer than what most scripts do in a test.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

CONTEXT = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
if sys.platform != "win32":
    CONTEXT.set_forkserver_preload(["torch", "torchmetrics", "lightning", "scripts"])


class Script(NamedTuple):
    """A script that runs, and the folder of its output."""

    process: multiprocessing.process.BaseProcess
    folder: tempfile.TemporaryDirectory[str]

    def end(self, seconds: float = 600) -> tuple[int, str, str]:
        """Wait for its end; return its exit code, and what it wrote to stdout and stderr."""
        self.process.join(seconds)
        if self.process.is_alive():
            self.process.kill()
            raise AssertionError(f"the script was still running after {seconds} s")
        with self.folder as folder:
            out, err = (Path(folder, name).read_text(encoding="utf-8") for name in ("out", "err"))
        return self.process.exitcode, out, err


def start(script: Path, *arguments: str | Path, cwd: Path, missing: tuple[str, ...] = ()) -> Script:
    """Run ``python script arguments`` in the folder ``cwd``, as if the packages ``missing`` were not installed."""
    folder = tempfile.TemporaryDirectory()
    given = (str(script), list(map(str, arguments)), str(cwd), folder.name, missing)
    process = CONTEXT.Process(target=_run, args=given)
    process.start()
    return Script(process, folder)


def finish(script: Script) -> tuple[str, str]:
    """Wait for a script that has to succeed; return what it wrote to stdout and stderr."""
    code, out, err = script.end()
    assert code == 0, err
    return out, err


def _run(script: str, arguments: list[str], cwd: str, folder: str, missing: tuple[str, ...]) -> None:
    for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
        file = os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT)
        os.dup2(file, stream.fileno())
        stream.reconfigure(encoding="utf-8")
    os.chdir(cwd)
    # Only on a CPU is training the same to the last digit each time.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    sys.modules |= dict.fromkeys(missing)
    sys.argv, sys.path[0] = [script, *arguments], str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")
