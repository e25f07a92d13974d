"""Lists of all processes together, by two collectives: their sizes and dtypes, then their bytes."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# A dtype travels as its number here.
DTYPES = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)


def gather_lists(lists: dict[str, list[Tensor]], device: torch.device, group: Any) -> dict[str, list[Tensor]]:
    """Gather lists of tensors ``(n,)``, which may differ in length and dtype, also between processes.

    Args:
        lists: by name, of the same names on all processes.
        device: where the collectives take their tensors.
        group: a process group, or None for all processes.

    Returns:
        One tensor of each process that has any, in the order of the processes, by name.
    """
    own = [joined(parts).to(device) if parts else None for parts in lists.values()]
    layout = [(0, 0) if part is None else (part.numel(), DTYPES.index(part.dtype)) for part in own]
    world = dist.get_world_size(group)
    layouts = [torch.zeros(len(own), 2, dtype=torch.int64, device=device) for _ in range(world)]
    dist.all_gather(layouts, torch.tensor(layout, dtype=torch.int64, device=device), group)
    of_all = [[(size, DTYPES[number]) for size, number in of_one.tolist()] for of_one in layouts]
    lengths = [[size * dtype.itemsize for size, dtype in of_one] for of_one in of_all]
    raw = torch.cat([part.view(torch.uint8) for part in own if part is not None] or [layouts[0].new_empty(0).byte()])
    buffer = torch.nn.functional.pad(raw, (0, max(map(sum, lengths)) - raw.numel()))
    buffers = [torch.empty_like(buffer) for _ in range(world)]
    dist.all_gather(buffers, buffer, group)
    gathered: dict[str, list[Tensor]] = {name: [] for name in lists}
    for received, of_one, sizes in zip(buffers, of_all, lengths, strict=True):
        for name, part, (size, dtype) in zip(lists, torch.split(received[: sum(sizes)], sizes), of_one, strict=True):
            if size:
                # In memory of its own, which begins where the dtype needs it to.
                gathered[name].append(part.clone().view(dtype))
    return gathered


def parts_of(state: Any) -> list[Tensor]:
    """Return the parts of a list state that hold anything; it is a tensor after a synchronisation by torchmetrics."""
    return [part for part in ([state] if isinstance(state, Tensor) else state) if part.numel()]


def joined(parts: list[Tensor]) -> Tensor:
    """Concatenate tensors whose dtypes may differ, in one that orders their values as they are."""
    dtype = functools.reduce(torch.promote_types, (part.dtype for part in parts))
    integers = any(part.dtype in (torch.int32, torch.int64) for part in parts)
    if dtype.is_floating_point and integers:
        dtype = torch.float64  # exact for integers up to 2**53
    return torch.cat([part.to(dtype) for part in parts])
