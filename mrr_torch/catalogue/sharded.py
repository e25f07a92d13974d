"""The items split over the processes of a group: queries travel to all parts, and counts come back.

What is sent grows with the queries alone. Every process makes products of the same shape, so that equal items tie
wherever they are, and tells the others first what it has: sizes, to make room for them, and faults, so that all raise
where otherwise the others would wait.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.catalogue.agreement import Facts, check_facts, gather, tell
from mrr_torch.catalogue.inputs import Inputs, check_embeddings, check_inputs
from mrr_torch.catalogue.streamed import Counted, Tiles, count_rivals, cut_tiles, own_scores

# What queries may be sent as; other types are sent in float32. All processes have to send the same.
SENT = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class Shard(NamedTuple):
    """This process's part of the items, and its place among the parts."""

    items: Tensor  # (n, D)
    bias: Any  # (n,), or (N,) if `whole_bias`, or None
    whole_bias: bool
    group: Any
    place: int  # in the order of ids
    whole: int  # N, the items in all parts; -1 if unknown


def find_shard(items: Any, bias: Any, group: Any) -> Shard | None:
    """Return this process's part of the items; None where they are not split."""
    if hasattr(items, "placements"):
        if group is not None:
            raise ValueError(_checks.message("group", "None beside a DTensor, which has its own", type(group).__name__))
        return _from_dtensor(items, bias)
    if group is None:
        return None
    if not dist.is_available() or not isinstance(group, dist.ProcessGroup):
        raise TypeError(_checks.message("group", "a process group that this process belongs to", repr(group)))
    return Shard(check_embeddings("item_embeddings", items), bias, False, group, dist.get_rank(group), -1)


def _from_dtensor(items: Any, bias: Any) -> Shard:
    mesh, placements = items.device_mesh, tuple(items.placements)
    split = [dim for dim, placement in enumerate(placements) if not placement.is_replicate()]
    # By its name: the rows of a strided shard, another class, are not in the order of the processes.
    if len(split) != 1 or type(placements[split[0]]).__name__ != "Shard" or placements[split[0]].dim != 0:
        raise ValueError(_checks.message("item_embeddings", "a DTensor sharded once, on dimension 0", placements))
    whole_bias = bias is not None and not hasattr(bias, "placements")
    if bias is not None and not whole_bias:
        if bias.device_mesh != mesh or tuple(bias.placements) != placements:
            raise ValueError(_checks.message("bias", f"placements {placements}, as item_embeddings", bias.placements))
        bias = bias.to_local()
    local, dim = check_embeddings("item_embeddings", items.to_local()), split[0]
    return Shard(local, bias, whole_bias, mesh.get_group(dim), mesh.get_local_rank(dim), items.shape[0])


def count_sharded(
    queries: Any, shard: Shard, target: Any, exclude: Any, tile: int | None
) -> tuple[Inputs, int, Counted]:
    """Count the competitors of each target of this process in all parts of the items.

    Returns:
        The arguments, checked; the number of items in all parts; the counts.
    """
    group, device = shard.group, shard.items.device
    try:
        inputs = check_inputs(queries, shard.items, target, None if shard.whole_bias else shard.bias, exclude)
        if shard.whole_bias:
            _checks.same_shape("bias", check_embeddings("bias", shard.bias), (shard.whole,))
            _checks.same_device("bias", shard.bias, inputs.queries)
        mine = _facts(inputs, shard, tile)
    except (TypeError, ValueError):
        tell(Facts(), group, device)  # else the others would wait for it
        raise
    everyone = tell(mine, group, device)
    check_facts(everyone)

    offset = sum(facts.items for facts in everyone if facts.place < shard.place)
    total = sum(facts.items for facts in everyone)
    own, counts = _count_all(inputs, shard, everyone, offset, tile)
    first = sum(facts.queries for facts in everyone[: dist.get_rank(group)])
    rows = slice(first, first + mine.queries)
    return inputs, total, Counted(counts[1, rows], counts[0, rows], counts[2, rows] + 1, own[rows])


def _count_all(
    inputs: Inputs, shard: Shard, everyone: list[Facts], offset: int, tile: int | None
) -> tuple[Tensor, Tensor]:
    """Return the targets' scores ``(Q,)`` and the counts ``(3, Q)`` of the queries of all processes."""
    dtype = torch.float64 if any(facts.wide for facts in everyone) else torch.float32
    kinds = {facts.sent for facts in everyone}
    sent = SENT[kinds.pop()] if len(kinds) == 1 else dtype
    queries = torch.cat(gather(inputs.queries.to(sent), [facts.queries for facts in everyone], shard.group))
    target, exclude = _gather_ids(inputs, everyone, shard.group)

    bias = shard.bias
    if shard.whole_bias:
        bias = bias[offset : offset + shard.items.shape[0]]
    # Cut in the same way everywhere: from what all know.
    largest = max(facts.items for facts in everyone)
    listed = 0 if exclude is None or exclude.shape[0] == 1 else exclude.shape[1]
    cut = cut_tiles(queries.shape[0], largest, queries.shape[1], listed, tile, queries.device)
    tiles = Tiles(shard.items, None if bias is None else bias.detach(), dtype, cut)
    own = own_scores(tiles, queries, target - offset)  # 0 in all processes but the target's
    dist.all_reduce(own, group=shard.group)
    counts = count_rivals(tiles, queries, own, target - offset, None if exclude is None else exclude - offset)
    dist.all_reduce(counts, group=shard.group)
    return own, counts


def _facts(inputs: Inputs, shard: Shard, tile: int | None) -> Facts:
    queries, items, target, _, exclude, _ = inputs
    seen = _checks.on_host(target)
    lowest, highest = map(int, target.aminmax()) if seen and target.numel() else (0, -1)
    return Facts(
        fault=0,
        place=shard.place,
        whole=shard.whole,
        items=items.shape[0],
        columns=items.shape[1],
        queries=queries.shape[0],
        lists=0 if exclude is None else exclude.shape[0],
        listed=0 if exclude is None else exclude.shape[1],
        sent=SENT.index(queries.dtype) if queries.dtype in SENT else 0,
        wide=int(torch.float64 in (queries.dtype, items.dtype)),
        bias=int(shard.bias is not None),
        tile=tile or 0,
        lowest=lowest,
        highest=highest,
        excluded=int(exclude.max()) if exclude is not None and seen and exclude.numel() else -1,
    )


def _gather_ids(inputs: Inputs, everyone: list[Facts], group: Any) -> tuple[Tensor, Tensor | None]:
    """Return the targets ``(Q,)`` and the excluded items of all processes, in one exchange.

    The excluded items are ``(Q, H)``; or ``(1, H)`` where all processes exclude the same for all their queries, since
    such a list may be long.
    """
    mine = inputs.target if inputs.exclude is None else torch.cat([inputs.target, inputs.exclude.flatten()])
    sizes = [facts.queries + facts.lists * facts.listed for facts in everyone]
    longest = max(facts.listed for facts in everyone)
    targets, lists = [], []
    for facts, ids in zip(everyone, gather(mine, sizes, group), strict=True):
        targets.append(ids[: facts.queries])
        own = ids[facts.queries :].view(facts.lists, facts.listed)
        own = F.pad(own, (0, longest - facts.listed), value=-1)
        if facts.queries:
            lists.append(own if facts.lists else own.new_full((1, longest), -1))
    target = torch.cat(targets)
    if longest == 0 or not lists:
        return target, None
    if all(own.shape[0] == 1 and torch.equal(own, lists[0]) for own in lists):
        return target, lists[0]
    heights = [facts.queries for facts in everyone if facts.queries]
    return target, torch.cat([own.expand(height, -1) for own, height in zip(lists, heights, strict=True)])
