"""Counting scores above and equal to a threshold, without sorting and without a temporary of the scores' size.

The scores are read in tiles that stay in cache while they are compared and summed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from mrr_torch import _checks

# Scores per tile. On a CPU comparisons are written to a buffer that stays in the last level of the caches, and every
# operator costs some 10 microseconds. Where masks or ids are made of a tile it is smaller. On an accelerator, where a
# comparison takes 1 byte a score, a tile has to be large enough to outweigh the launch of its kernels.
HOST_BUFFER = 2**22  # bytes
HOST_TILE = 2**19
DEVICE_TILE = 2**22

_held = threading.local()

# Gives the bool mask of a tile of the scores.
TileMask = Callable[[slice, slice], Tensor]


class Counts(NamedTuple):
    """What was counted in each row, all ``(rows,)`` int64; ``equal`` includes the relevant items."""

    higher: Tensor
    equal: Tensor
    relevant: Tensor
    candidates: Tensor


def row_tiles(rows: int, columns: int, device: torch.device, host: int = HOST_TILE) -> Iterator[slice]:
    """Cut ``rows`` so that each part has about a tile of elements (on a CPU ``host``), and at least one row."""
    size = host if device.type == "cpu" else DEVICE_TILE
    # Under `torch.compile` the passes are fused, and a loop would only be unrolled.
    height = max(1, rows if torch.compiler.is_compiling() else size // max(columns, 1))
    for top in range(0, rows, height):
        yield slice(top, min(top + height, rows))


def by_tile(
    scores: Tensor,
    part: Callable[[slice, slice], list[Tensor]],
    join: Callable[[Tensor], Tensor],
    host: int = HOST_TILE,
) -> list[Tensor]:
    """Return what ``part`` gives for each row of the scores: from tiles of whole rows, or of a part of a wider row.

    Args:
        scores: ``(rows, columns)``.
        part: gives tensors ``(rows of the tile,)`` for a tile, which is told by its slices of rows and columns.
        join: joins what the parts of one row gave, ``(parts, 1)``, along the first dimension.
        host: scores in a tile on a CPU.
    """
    rows, columns = scores.shape
    width = columns
    if not torch.compiler.is_compiling():
        width = min(columns, host if scores.device.type == "cpu" else DEVICE_TILE)
    lefts = [slice(left, min(left + width, columns)) for left in range(0, columns, width)]
    found = []
    for row in [*row_tiles(rows, columns, scores.device, host)] or [slice(0, 0)]:
        parts = [part(row, column) for column in lefts]
        found.append(parts[0] if len(parts) == 1 else [join(torch.stack(each)) for each in zip(*parts, strict=True)])
    return found[0] if len(found) == 1 else [torch.cat(each) for each in zip(*found, strict=True)]


def count(scores: Tensor, best: Tensor, competes: TileMask | None = None, relevant: TileMask | None = None) -> Counts:
    """Count, per row, the scores above ``best``, those equal to it, and the relevant ones among these.

    NaN is neither above nor equal.

    Args:
        scores: ``(rows, columns)``; not bool (see `comparable`).
        best: ``(rows, 1)``; of the dtype of the scores.
        competes: the mask of the scores that take part; all if None.
        relevant: the mask of the relevant ones; if None each row has one, and it is among the equal ones.
    """
    host = buffer_size(scores) // (1 if competes is None else 2)

    def counted(rows: slice, columns: slice) -> list[Tensor]:
        kept = None if competes is None else competes(rows, columns)
        wanted = None if relevant is None else partial(relevant, rows, columns)
        whole = columns.stop - columns.start == scores.shape[1]
        return _count_tile(scores[rows, columns], best[rows], kept, wanted, whole)

    higher, equal, *rest = (each.long() for each in by_tile(scores, counted, lambda counts: counts.long().sum(0), host))
    # One number for all rows is kept as one number, which readers can tell from the stride.
    in_tie = rest.pop(0) if relevant is not None else _one_number(1, higher)
    candidates = rest.pop(0) if competes is not None else _one_number(scores.shape[1], higher)
    return Counts(higher, equal, in_tie, candidates)


def _count_tile(
    tile: Tensor, threshold: Tensor, kept: Tensor | None, relevant: Callable[[], Tensor] | None, whole: bool
) -> list[Tensor]:
    """Return the scores above, those equal, the relevant ones among these if asked for, and those kept if not all."""
    # A comparison that writes the type of the scores, and a sum of that, are both vectorised on a CPU. Into bool
    # neither is fast, and `bool.sum(1)` makes an int64 copy, 8 bytes a score.
    room = buffer(tile)
    if kept is not None:
        spare = buffer(tile, second=True)
        # Bytes become the type of the scores several times faster than bools do.
        kept = kept if spare is None else spare.copy_(kept.view(torch.uint8))
    hits = torch.gt(tile, threshold, out=room)
    counts = [_sum(hits if kept is None else hits.mul_(kept))]
    hits = torch.eq(tile, threshold, out=room)
    counts.append(_sum(hits if kept is None else hits.mul_(kept)))
    if relevant is not None:
        if _checks.on_host(hits):
            in_tie = counts[1].clone()
            # In a whole row a score that stands alone is that of the relevant item itself (or the row has none).
            rows = (in_tie > (1 if whole else 0)).nonzero()[:, 0]
            if rows.numel():
                in_tie[rows] = _sum(hits[rows].mul_(relevant()[rows]))
        else:
            in_tie = _sum(hits.mul_(relevant()))
        counts.append(in_tie)
    if kept is not None:
        counts.append(_sum(kept))
    return counts


def _one_number(number: int, like: Tensor) -> Tensor:
    return like.new_full((1,), number).expand(like.shape[0])


def comparable(scores: Tensor) -> Tensor:
    """Return scores in a type that comparisons can write to: bool as uint8, everything else as it is."""
    return scores.view(torch.uint8) if scores.dtype == torch.bool else scores


def buffer_size(scores: Tensor) -> int:
    """Return how many scores a tile on a CPU may have for which only one `buffer` is needed."""
    return HOST_BUFFER // max(4, scores.element_size())


def buffer(like: Tensor, second: bool = False) -> Tensor | None:
    """Return room for a tile on a CPU, of type and shape of ``like``; whoever asks next in this thread gets it too.

    New memory would cost as much as counting: the system clears its pages. Elsewhere None: torch keeps memory there.
    ``second`` asks for the second half, which the first call leaves alone where the tile is no more than a half.
    """
    if like.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    rooms = _held.__dict__.setdefault("rooms", {})
    if like.dtype not in rooms:
        with torch.inference_mode(False):  # whoever comes first, all may write to it
            memory = _held.__dict__.get("memory", torch.empty(HOST_BUFFER, dtype=torch.uint8, device="cpu"))
            if type(memory) is not Tensor:  # torch is tracing, and this is only the image of a tensor
                return None
            _held.memory, rooms[like.dtype] = memory, memory.view(like.dtype)
    room: Tensor = rooms[like.dtype]
    start = room.shape[0] // 2 if second else 0
    return room[start : start + like.numel()].view(like.shape)


def _sum(hits: Tensor) -> Tensor:
    kind = None
    if hits.device.type == "cpu":
        if hits.dtype in (torch.float16, torch.bfloat16):
            kind = torch.float32  # it holds every count up to the size of a tile exactly; half precision would not
        elif not hits.is_floating_point() and hits.element_size() < 8:
            kind = torch.int32  # less to copy
    return hits.sum(-1, dtype=kind)
