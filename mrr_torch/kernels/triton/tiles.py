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

    The first is for many queries. No tile spills registers, and each fits the shared memory of an A100, an H100 or an
    MI300.
    """
    power = max(triton.next_power_of_2(columns), 16)
    shapes: tuple[tuple[int, int, int, int], ...]
    if dtype == torch.float32:
        # Without tensor cores every operand of a step sits in registers: a long step spills.
        shapes = (128, 64, 16, 8), (64, 64, 16, 8), (16, 64, 16, 4)
        stages = 2
    else:
        # In one step the queries stay on the chip while the items pass by; longer embeddings take several.
        step = power if power <= 128 else 64
        shapes = (128, 128, step, 8), (64, 64 if power == 128 else 128, step, 4), (16, 64, step, 4)
        if power <= 128:
            shapes = ((128, 64, step, 4), *shapes)
        stages = 2 if amd else 3
    return tuple(Tile(queries, items, min(step, power), warps, stages) for queries, items, step, warps in shapes)


def choose(dtype: torch.dtype, columns: int, queries: int) -> Tile:
    """Choose the smallest tile that holds all queries, or else the first; always the same for the same sizes."""
    candidates = tiles(dtype, columns, amd=torch.version.hip is not None)
    enough = [tile for tile in candidates if tile.queries >= queries]
    return min(enough, key=lambda tile: tile.queries, default=candidates[0])
