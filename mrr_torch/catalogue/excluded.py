"""Which scores of a tile take no part: the target's own, which is told by its place, and those of excluded items.

They are overwritten with NaN, which is neither above a score nor equal to it. Ids stay ids: there is no mask of
(queries x items).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.ranks.competitors import sort_rows

# Gives the places of a tile's scores, counted row by row, that take no part. The tile is told by its first item.
Places = Callable[[int], Tensor]


def places_taken_out(own: Tensor, ids: Tensor | None, items: int, step: int, width: int) -> tuple[Places, Tensor]:
    """Find the scores that take no part, tile by tile, and count them.

    Args:
        own: ``(rows,)``; the target of each row.
        ids: ``(rows, H)``; the items that each row excludes, or None. Ids outside 0..items-1 mean nothing, in ``own``
            neither; repeats count once.
        items: number of items.
        step: number of items in a tile.
        width: length of a row in the buffer of scores.

    Returns:
        The function that gives a tile's places, and how many items of each row, ``(rows,)``, take no part.
    """
    gone = own[:, None] if ids is None else sort_rows(torch.cat([ids, own[:, None]], 1))
    used = (gone >= 0) & (gone < items)
    used[:, 1:] &= gone[:, 1:] != gone[:, :-1]  # the first of each
    rows = torch.arange(own.shape[0], device=own.device)[:, None]
    cells = own.shape[0] * width

    def by_mask(first: int) -> Tensor:
        inside = used & (gone >= first) & (gone < first + step)
        # Shapes may not depend on values that nobody may look at: what is not in this tile lands behind the scores.
        return torch.where(inside, rows * width + gone - first, cells).flatten()

    if not _checks.on_host(gone):
        return by_mask, used.sum(1)
    # Sorted by tile and place: the places of one tile are a slice, and all tiles together cost one pass over the ids.
    listed, row = gone[used], rows.expand_as(gone)[used]
    keys = (listed // step * cells + row * width + listed % step).sort().values
    edges = torch.searchsorted(keys, torch.arange(-(-items // step) + 1, device=keys.device) * cells).tolist()
    places = keys % cells

    def by_slice(first: int) -> Tensor:
        tile = first // step
        return places[edges[tile] : edges[tile + 1]]

    return by_slice, used.sum(1)


def shared_out(ids: Tensor, bias: Tensor | None, items: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Take items out for all queries at once: a bias of NaN makes their scores NaN.

    Args:
        ids: ``(H,)``; ids outside 0..items-1 mean nothing.
        bias: ``(items,)``, or None.
        items: number of items.
        dtype: type of the scores.

    Returns:
        The bias with NaN for the excluded items, and which they are, ``(items,)`` bool.
    """
    gone = torch.zeros(items + 1, dtype=torch.bool, device=ids.device)
    # What is no item lands behind the last one.
    gone.index_fill_(0, torch.where((ids >= 0) & (ids < items), ids, items), True)
    gone = gone[:items]
    bias = torch.zeros(items, dtype=dtype, device=ids.device) if bias is None else bias.to(dtype)
    return bias.masked_fill(gone, torch.nan), gone
