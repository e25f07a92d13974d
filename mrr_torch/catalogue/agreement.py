"""What processes tell each other before they work together: sizes, to allocate, and errors, so that all raise.

A process that raised alone would leave the others waiting for it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from mrr_torch import _checks
from mrr_torch._device import kind
from mrr_torch.catalogue.arguments import remedy


class Facts(NamedTuple):
    """What a process tells, in whole numbers."""

    error: int = 1  # its arguments are refused, and nothing below is true
    device: int = 0  # kind, as an index of `device_kinds`
    position: int = 0  # of its part of the items, in the order of rows
    whole: int = -1  # items in all parts, as its DTensor says; -1 without one
    items: int = 0
    columns: int = 0
    queries: int = 0
    relevant: int = 1  # targets of each query
    lists: int = 0  # lists of excluded items: one for each query, or 1, or none
    listed: int = 0  # length of each
    sent: int = 0  # type in which its queries can be sent
    wide: int = 0  # its queries or items are float64
    bias: int = 0  # form
    ids: int = 0  # form
    tile: int = 0
    # Values, where they can be read on the host.
    lowest: int = 0
    highest: int = -1
    excluded: int = -1


def device_kinds(group: Any) -> list[str]:
    """Return the kinds of devices on which ``group`` communicates, the same in all processes."""
    return sorted(kind(device) for device in group._device_types)


def tell(mine: Facts, group: Any) -> list[Facts]:
    """Tell the other processes this one's facts, and return those of all, in the order of their ranks."""
    # Where all processes can, whatever their arguments are: on the host, if the group communicates there.
    sent = torch.tensor([mine], device=device_kinds(group)[0])
    return [Facts(*row) for row in torch.cat(gather(sent, [1] * dist.get_world_size(group), group)).tolist()]


def gather(part: Tensor, sizes: list[int], group: Any) -> list[Tensor]:
    """Return the parts ``(sizes[i], ...)`` of all processes, padded on their way to the largest."""
    most = max(sizes)
    sent = part.new_zeros(most, *part.shape[1:])
    sent[: part.shape[0]] = part
    received = [torch.empty_like(sent) for _ in sizes]
    if sent.numel():
        dist.all_gather(received, sent, group=group)
    return [other[:size] for other, size in zip(received, sizes, strict=True)]


def check_facts(everyone: list[Facts]) -> None:
    """Check that the parts make up a catalogue; from the same facts, all processes raise the same error."""
    for rank, facts in enumerate(everyone):
        if facts.error:
            got = f"an error in process {rank}"
            raise ValueError(_checks.message("group", "valid arguments in every process", got))
    total, first = sum(facts.items for facts in everyone), everyone[0]
    for rank, facts in enumerate(everyone):
        where = f"in process {rank}"
        if facts.device != first.device:
            raise ValueError(_checks.message("item_embeddings", "parts on one kind of device", f"another {where}"))
        if facts.columns != first.columns:
            wanted = f"parts with the same number of columns, {first.columns}"
            raise ValueError(_checks.message("item_embeddings", wanted, f"{facts.columns} {where}"))
        if facts.whole not in (-1, total):
            wanted = f"parts that add up to its {facts.whole} rows"
            raise ValueError(_checks.message("item_embeddings", wanted, f"{total} rows"))
        if (facts.bias > 0) != (first.bias > 0):
            got = f"{'one' if facts.bias else 'none'} {where}"
            raise ValueError(_checks.message("bias", "a bias in all processes or in none", got))
        if facts.ids != first.ids:
            wanted = "ids in all processes or in none, all of parts or all whole"
            raise ValueError(_checks.message("ids", wanted, f"{('none', 'a part', 'whole ones')[facts.ids]} {where}"))
        if facts.tile != first.tile:
            wanted = f"the same number in all processes, {first.tile or None}"
            raise ValueError(_checks.message("tile", wanted, f"{facts.tile or None} {where}"))
    if total == 0:
        raise ValueError(_checks.message("item_embeddings", "N >= 1 rows in all parts together", 0))
    for rank, facts in enumerate(everyone):
        if facts.lowest < 0 or facts.highest >= total:
            worst = facts.lowest if facts.lowest < 0 else facts.highest
            raise ValueError(_checks.message("target", f"ids in 0..{total - 1}", f"{worst} in process {rank}"))
        if facts.excluded >= total:
            wanted = f"ids in 0..{total - 1}, padded with negative ids"
            got = f"{facts.excluded} in process {rank}{remedy(facts.excluded, total)}"
            raise ValueError(_checks.message("exclude", wanted, got))
