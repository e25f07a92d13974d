"""The pool of processes: nothing that goes wrong in a task can hang the tests, or spoil the next task."""

import os
import time

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.distributed


def ranks():
    """Return what all processes see of each other."""
    seen = torch.zeros(dist.get_world_size())
    seen[dist.get_rank()] = dist.get_rank()
    dist.all_reduce(seen)
    return os.getpid(), seen.tolist()


def test_processes_are_kept_and_each_task_has_a_group_of_its_own(run_processes):
    first, second = (run_processes(world, ranks) for world in (3, 2))
    assert [seen for _, seen in first] == [[0, 1, 2]] * 3
    assert [seen for _, seen in second] == [[0, 1]] * 2
    assert [pid for pid, _ in second] == [pid for pid, _ in first[:2]]


def hang_or_return():
    if dist.get_rank():
        time.sleep(600)


def hang_in_a_collective_or_fail():
    if dist.get_rank():
        dist.barrier()
    raise RuntimeError("this was wrong")


def end():
    os._exit(3)


def leave_a_collective_behind():
    if dist.get_rank():
        dist.all_reduce(torch.ones(1), async_op=True)


@pytest.mark.parametrize(
    ("task", "world", "seconds", "message"),
    [
        (hang_or_return, 2, 2, r"processes \[(0, )?1\] were still running after 2 s"),
        (hang_in_a_collective_or_fail, 2, 300, "(?s)process 0: .*RuntimeError: this was wrong"),
        (end, 1, 300, "process 0: ended with exit code 3"),
        (leave_a_collective_behind, 2, 300, r"different numbers of collectives: \[0, 1\]"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_goes_wrong_is_told_and_its_processes_are_ended(task, world, seconds, message, run_processes):
    run_processes(world, ranks)  # they have started: the limit is one on the task
    others = run_processes.workers[world:]
    started = time.monotonic()
    processes = [worker.process for worker in run_processes.workers[:world]]
    with pytest.raises(AssertionError, match=message):
        run_processes(world, task, seconds=seconds)
    assert time.monotonic() - started < 60  # they would go on for 600 s
    for process in processes:
        assert process.exitcode is not None
    assert run_processes.workers == others


def set_the_default_dtype():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    return before


def test_settings_do_not_outlive_their_task(run_processes):
    for _ in range(2):
        assert run_processes(1, set_the_default_dtype) == [torch.float32]
