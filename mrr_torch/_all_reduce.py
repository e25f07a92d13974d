"""States of all processes together, by at most two collectives whose size does not depend on the number of processes.

The first is of one size whatever the states are, and carries what all processes have to agree about; where they do not,
it raises on all of them. So no process is left waiting in the second, and states of different sizes never meet.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics.utilities.data import dim_zero_max, dim_zero_sum

from mrr_torch import _checks
from mrr_torch._device import state_dtype

HEADER = 128  # numbers in the first collective
FACTS = 3
OPERATIONS = {dim_zero_sum: dist.ReduceOp.SUM, dim_zero_max: dist.ReduceOp.MAX}
DTYPES = (torch.float64, torch.float32, torch.int64, torch.int32)


def reducible(state: Any, reduction: Any) -> bool:
    """Return True for a state whose reduction over processes is one `all_reduce` with a result of the same type."""
    if reduction not in OPERATIONS or not isinstance(state, Tensor) or state.dtype not in DTYPES:
        return False
    return reduction is dim_zero_max or state.dtype != torch.int32  # torchmetrics adds int32 up in int64


def all_reduce(
    states: dict[str, Tensor], reductions: dict[str, Any], alike: bool, group: Any
) -> tuple[dict[str, Tensor], bool]:
    """Reduce ``states`` over the processes of ``group``.

    Sums of whole numbers in float64 are exact, so the result does not depend on the order of the processes.

    Args:
        states: by name; all `reducible`.
        reductions: of the states, by name; names that are not in ``states`` have to agree too.
        alike: a fact of this process.
        group: a process group, or None for all processes.

    Returns:
        The reduced states, new tensors; and whether ``alike`` holds on all processes.

    Raises:
        ValueError: on all processes, if the states are not of the same names, shapes and dtypes on all.
    """
    device = next((state.device for state in states.values()), torch.get_default_device())
    layout = [(name, str(state.dtype), tuple(state.shape)) for name, state in states.items()]
    fingerprint = zlib.crc32(repr((layout, sorted(reductions))).encode()) % 2**24  # exact in float32 too
    header = torch.zeros(HEADER, dtype=state_dtype(device), device=device)
    header[:FACTS] = header.new_tensor([fingerprint, -fingerprint, not alike])
    # Maxima of a few numbers travel in the first collective, so that sums of one dtype are the second and last.
    few = [name for name, state in states.items() if reductions[name] is dim_zero_max and state.dtype == header.dtype]
    if sum(states[name].numel() for name in few) > HEADER - FACTS:
        few = []
    _fill(header[FACTS:], [states[name] for name in few])
    dist.all_reduce(header, dist.ReduceOp.MAX, group)
    highest, lowest, different = header[:FACTS].tolist()
    if highest != -lowest:
        raise ValueError(_checks.message("states", "the same names and shapes on all processes", layout))
    reduced = dict(zip(few, _split(header[FACTS:], [states[name] for name in few]), strict=True))
    for operation, dtype in dict.fromkeys((reductions[name], state.dtype) for name, state in states.items()):
        names = [n for n, s in states.items() if n not in few and (reductions[n], s.dtype) == (operation, dtype)]
        if names:
            parts = [states[name] for name in names]
            together = torch.cat([part.reshape(-1) for part in parts])
            dist.all_reduce(together, OPERATIONS[operation], group)
            reduced.update(zip(names, _split(together, parts), strict=True))
    return reduced, not different


def _fill(buffer: Tensor, parts: list[Tensor]) -> None:
    if parts:
        flat = torch.cat([part.reshape(-1) for part in parts])
        buffer[: flat.shape[0]] = flat


def _split(together: Tensor, like: list[Tensor]) -> list[Tensor]:
    """Return the parts of ``together``, of the shapes of ``like``, in memory of their own."""
    sizes = [part.numel() for part in like]
    parts = torch.split(together[: sum(sizes)], sizes)
    return [part.reshape(old.shape).clone() for part, old in zip(parts, like, strict=True)]
