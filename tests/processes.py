"""Run a function in several gloo processes on this machine, within a hard time limit."""

from __future__ import annotations

import multiprocessing
import pickle
import socket
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def run_processes(
    world: int, worker: Callable[..., Any], *arguments: Any, folder: Path, seconds: float = 120
) -> list[Any]:
    """Return what ``worker(*arguments)`` returns in each of ``world`` processes, in the order of their ranks.

    The worker has to be a function of a module. A process that fails or takes too long fails the test: all are killed.
    """
    context = multiprocessing.get_context("spawn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        context.Process(target=_start, args=(rank, world, port, seconds, folder, worker, arguments), daemon=True)
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    deadline = time.monotonic() + seconds
    try:
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        late = [rank for rank, process in enumerate(processes) if process.is_alive()]
    finally:
        for process in processes:
            process.kill()
            process.join()
    results = [_result(folder, rank) for rank in range(world)]
    failed = "\n".join(str(error) for ok, error in results if not ok)
    if late or failed:
        raise AssertionError(f"processes {late} were still running after {seconds} s\n{failed}")
    return [value for _, value in results]


def _start(
    rank: int,
    world: int,
    port: int,
    seconds: float,
    folder: Path,
    worker: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://127.0.0.1:{port}",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=seconds),
        )
        outcome = True, worker(*arguments)
        dist.barrier()
        dist.destroy_process_group()
    except Exception:
        outcome = False, f"process {rank}:\n{traceback.format_exc()}"
    (folder / f"{rank}.part").write_bytes(pickle.dumps(outcome))
    (folder / f"{rank}.part").rename(folder / f"{rank}.result")


def _result(folder: Path, rank: int) -> tuple[bool, Any]:
    path = folder / f"{rank}.result"
    return pickle.loads(path.read_bytes()) if path.exists() else (False, f"process {rank} left no result")
