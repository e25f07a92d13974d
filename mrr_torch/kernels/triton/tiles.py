"""Sizes of the catalogue kernel's tiles, by type, length of the embeddings and GPU.

They are chosen by rule, not timed at run time: timing would synchronise, and two kernels whose scores are compared have
to use the same tile.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton


class Tile(NamedTuple):
    """What one program scores at a time, and how it is compiled."""

    queries: int
    items: int
    step: int  # columns of the embeddings multiplied at a time
    warps: int
    stages: int  # loads in flight


def tiles(dtype: torch.dtype, columns: int, amd: bool = False) -> tuple[Tile, ...]:
    """Return the tiles that are compiled and tested for embeddings of ``dtype`` and length ``columns``.

    The first is for many queries, the last for few (see `choose`). No tile spills registers, and each fits the shared
    memory of an A100, an H100 or an MI300.
    """
    power = max(triton.next_power_of_2(columns), 16)
    if dtype == torch.float32:
        # Without tensor cores every operand of a step sits in registers: a long step spills.
        step = min(power, 16)
        shapes = ((64, 64, 4), (128, 64, 8), (16, 64, 4))
        return tuple(Tile(queries, items, step, warps, 2) for queries, items, warps in shapes)
    if power <= 64:
        shapes = ((128, 64, 4), (128, 128, 8), (64, 128, 4), (16, 128, 4))
    elif power <= 128:
        shapes = ((128, 64, 4), (128, 128, 8), (64, 64, 4), (16, 128, 4))
    else:
        shapes = ((128, 128, 8), (64, 128, 4), (16, 128, 4))
    # In one step the queries stay on the chip while the items pass by; longer embeddings take several.
    step = power if power <= 128 else 64
    return tuple(Tile(queries, items, step, warps, 2 if amd else 3) for queries, items, warps in shapes)


def choose(dtype: torch.dtype, columns: int, queries: int) -> Tile:
    """Choose a tile; the same for the same embeddings and number of queries."""
    candidates = tiles(dtype, columns, amd=torch.version.hip is not None)
    return candidates[-1] if queries <= candidates[-1].queries else candidates[0]
