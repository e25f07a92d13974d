"""A pool of gloo processes on this machine: started once a session, a new process group for each task.

Whatever goes wrong in a task ends its processes, and the next task starts others: no test can hang or spoil another.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist


class Worker(NamedTuple):
    """A process, and the end of the pipe to it."""

    process: multiprocessing.Process
    pipe: Connection


class Pool:
    """Call it to run a function in several processes.

    The function has to be one of a module, since it is sent by its name; arguments and results are pickled.
    """

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self._folder = tempfile.TemporaryDirectory()
        self._tasks = 0

    def __call__(self, world: int, function: Callable[..., Any], *arguments: Any, seconds: float = 300) -> list[Any]:
        """Return what ``function(*arguments)`` returns in each of ``world`` processes, in the order of their ranks.

        The time limit is far beyond what any test takes, also while the machine is busy.

        Raises:
            AssertionError: a process failed, ended, was too late, or took part in other collectives than the others.
        """
        while len(self.workers) < world:
            self.workers.append(_start())
        self._tasks += 1
        store = Path(self._folder.name) / str(self._tasks)
        workers = self.workers[:world]
        try:
            for rank, worker in enumerate(workers):
                worker.pipe.send_bytes(pickle.dumps((rank, world, store, seconds, function, arguments)))
            return _results(workers, time.monotonic() + seconds, seconds)
        except BaseException:
            self._end(workers)
            raise

    def close(self) -> None:
        """End all processes."""
        self._end(self.workers[:])
        self._folder.cleanup()

    def _end(self, workers: list[Worker]) -> None:
        for worker in workers:
            worker.process.kill()
            self.workers.remove(worker)
        for worker in workers:
            worker.process.join()
            worker.pipe.close()


def _start() -> Worker:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    there.close()  # so that the pipe ends when the process does
    return Worker(process, here)


def _results(workers: list[Worker], deadline: float, seconds: float) -> list[Any]:
    """Wait for all results; at the first failure, or at the deadline, for no more."""
    waiting = {worker.pipe: rank for rank, worker in enumerate(workers)}
    results, collectives = [None] * len(workers), [0] * len(workers)
    while waiting:
        ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
        if not ready:
            raise AssertionError(f"processes {sorted(waiting.values())} were still running after {seconds} s")
        for pipe in ready:
            rank = waiting.pop(pipe)
            try:
                error, results[rank], collectives[rank] = pickle.loads(pipe.recv_bytes())
            except EOFError:
                workers[rank].process.join()
                error = f"ended with exit code {workers[rank].process.exitcode}"
            if error:
                raise AssertionError(f"process {rank}: {error}")
    if len(set(collectives)) > 1:
        raise AssertionError(f"processes took part in different numbers of collectives: {collectives}")
    return results


def _serve(pipe: Connection) -> None:
    """Run tasks until the pipe ends."""
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    while True:
        try:
            task = pipe.recv_bytes()
        except EOFError:
            return
        # Not before: of the last task's group, others may still have been receiving.
        if dist.is_initialized():
            dist.destroy_process_group()
        # Not by `send`, which would share the memory of tensors instead of copying it.
        pipe.send_bytes(pickle.dumps(_run(task)))


def _run(task: bytes) -> tuple[str | None, Any, int]:
    """Return the error, the result and the number of collectives."""
    torch.set_default_dtype(torch.float32)  # whatever the last task left
    try:
        rank, world, store, seconds, function, arguments = pickle.loads(task)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",  # no port that another process could take
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=seconds),
        )
        with warnings.catch_warnings():
            result = function(*arguments)
        pickle.dumps(result)
        return None, result, dist.group.WORLD._get_sequence_number_for_group()
    except BaseException:  # pytest's own, of a comparison that failed, are no Exceptions
        return traceback.format_exc(), None, 0
