"""Measuring one row of a benchmark: time, peak memory, and how often values are read by the host."""

from __future__ import annotations

import ctypes
import gc
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "bincount", "_unique2", "unique_consecutive"}
# Views and memory: an accelerator launches no kernel for them.
NO_KERNEL = {"view", "select", "slice", "unsqueeze", "expand", "alias", "detach", "unbind", "t", "transpose", "permute"}
NO_KERNEL |= {"_unsafe_view", "as_strided", "split", "narrow", "lift_fresh", "empty", "empty_strided", "new_empty"}
QUICK, SLOW = 0.01, 1.0  # seconds: ten times as many calls where all rows are quick, 3 calls of a slow row


class Skipped(Exception):
    """Why a row or a workload is left out."""


@dataclass
class Row:
    """One way to compute a value, and what was measured of it."""

    name: str
    run: Callable[[], Any]
    right: float | None = None  # None where no value is computed
    value: Callable[[Any], Any] = float  # makes a number of the result, untimed
    before: Callable[[], Any] = lambda: None  # called before each `run`, untimed
    lazy: bool = False  # `run` prepares and returns what is timed, and may raise ImportError
    needs: float = 0  # bytes of memory
    scores: int = 0  # how many, in a table of growth
    found: dict[str, Any] = field(default_factory=dict)


class DispatchedReads(TorchDispatchMode):
    """Counts the operators that read values, take sizes from them, or copy them to the host; and those that launch."""

    count = launches = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        self.launches += name not in NO_KERNEL
        masks = args[1] if name in ("index", "index_put", "index_put_") else ()
        copied = args if name in ("_to_copy", "copy_") and out.device.type == "cpu" else ()
        self.count += name in READS or any(mask is not None and mask.dtype == torch.bool for mask in masks)
        self.count += any(isinstance(x, Tensor) and x.device.type != "cpu" for x in copied)
        return out


class UnpackedReads(TorchFunctionMode):
    """Counts what is unpacked from a CPU without an operator; from an accelerator it takes a copy, counted above."""

    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (Tensor.tolist, Tensor.numpy) and args[0].device.type == "cpu"
        return func(*args, **(kwargs or {}))


def proc(file: str, key: str) -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc", file).read_text().splitlines() if ":" in line)
    return int(lines[key].split()[0]) * 1024


def peak_memory(run: Callable[[], Any]) -> int | None:
    gc.collect()
    if torch.get_default_device().type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - held
    try:
        ctypes.CDLL(None).malloc_trim(0)  # else memory that is free but not given back would be used unseen
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        held = proc("self/status", "VmRSS")
    except (OSError, AttributeError):
        return None
    run()
    return max(0, proc("self/status", "VmHWM") - held)


def need(size: float) -> None:
    free = math.inf
    if torch.get_default_device().type == "cuda":
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
    elif Path("/proc/meminfo").exists():
        free = proc("meminfo", "MemAvailable")
    if size > 0.9 * free:
        raise Skipped(f"needs about {size / 1e9:.0f} GB of memory")


def check(row: Row) -> None:
    """Compute the value first, then what is not timed; all of it is warm-up, too."""
    need(row.needs)
    try:
        row.run = row.run() if row.lazy else row.run
    except ImportError as error:
        raise Skipped(f"{(error.name or '').partition('.')[0]} is not installed") from None
    row.before()
    result = row.run()
    if row.right is not None:
        value = float(row.value(result))
        row.found |= {"value": value, "equal": abs(value - row.right) <= 1e-6 * row.right}
    if row.scores:
        row.found |= {"scores": row.scores, "state_bytes": sum(x.nbytes for x in result.metric_state.values())}
    del result
    row.before()
    row.found["peak_bytes"] = peak_memory(row.run)
    row.before()
    with UnpackedReads() as unpacked, DispatchedReads() as dispatched:
        row.run()
    row.found |= {"host_reads": unpacked.count + dispatched.count, "launches": dispatched.launches}


def rates(device: torch.device) -> str:
    """Return the card's measured rates of products and copies, by which a floor can be told."""

    def seconds(run: Callable[[], Any]) -> float:
        times = []
        for _ in range(5):
            torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        return min(times)

    told = []
    for dtype in (torch.bfloat16, torch.float32):
        left = torch.ones(8192, 8192, dtype=dtype, device=device)
        told.append(f"{2 * 8192**3 / seconds(lambda left=left: left @ left) / 1e12:.0f} TFLOP/s in {dtype}")
    whole = torch.ones(2**28, device=device)
    told.append(f"copies {2 * whole.nbytes / seconds(whole.clone) / 1e9:,.0f} GB/s")
    return ", ".join(told)


def measure(title: str, rows: list[Row], repeats: int, device: torch.device) -> None:
    for row in rows:
        print(f"{title}: {row.name}", file=sys.stderr, flush=True)
        try:
            with device:
                check(row)
        except (Skipped, torch.OutOfMemoryError) as error:
            row.found["skipped"] = str(error) if isinstance(error, Skipped) else "out of memory"
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    samples: dict[str, list[float]] = {row.name: [] for row in rows if "skipped" not in row.found}
    for i in range(1 + 10 * repeats):  # the first is warm-up
        if i > repeats and max((times[0] for times in samples.values()), default=SLOW) > QUICK:
            break
        for row in random.Random(i).sample(rows, len(rows)):  # what runs before a row leaves its traces in the caches
            if row.name in samples and (i <= 3 or samples[row.name][0] < SLOW):
                row.before()
                wait()
                start = time.perf_counter()
                row.run()
                wait()
                samples[row.name].append(time.perf_counter() - start)
    for row in rows:
        if row.name in samples:
            row.found["seconds"] = statistics.median(samples[row.name][1:])
            row.found["ratio"] = row.found["seconds"] / rows[0].found["seconds"]
