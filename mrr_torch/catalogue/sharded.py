"""The items split over the processes of a group: queries travel to all parts, and counts come back.

What is sent grows with the queries alone (and with ``ids``, where given). Every process makes products of the same
shape, so that equal items tie wherever they are. Before, each tells the others what it has: sizes, to allocate for
them, and errors, so that all raise where otherwise the others would wait.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from mrr_torch import _checks
from mrr_torch._device import kind
from mrr_torch.catalogue.agreement import Facts, check_facts, device_kinds, gather, tell
from mrr_torch.catalogue.arguments import (
    Arguments,
    Counted,
    Embeddings,
    check_arguments,
    check_ids,
    check_items,
    find_rows,
    judged_target,
)
from mrr_torch.catalogue.scorers import DotProducts, cut_products
from mrr_torch.catalogue.tiled import best_relevant, count_competitors, score_relevant
from mrr_torch.kernels import readable

# What queries may be sent as; other types are sent in float32. All processes have to send the same.
SENT = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# Where `bias` or `ids` are: nowhere, in parts like the items, or whole in each process.
NONE, PARTS, WHOLE = range(3)


def find_group(items: Any, group: Any) -> Any:
    """Return the group over which the items are split, or None. All that is refused here is ``group`` itself."""
    if group is None:
        if not hasattr(items, "placements"):
            return None
        return items.device_mesh.get_group(([*_split_dimensions(items), 0])[0])
    if not dist.is_available() or not isinstance(group, dist.ProcessGroup):
        raise TypeError(_checks.message("group", "a process group that this process belongs to", repr(group)))
    return group


def count_sharded(
    group: Any, queries: Any, items: Any, target: Any, group_given: Any, options: dict[str, Any]
) -> tuple[Arguments, Tensor, Counted, tuple[Tensor | None, Tensor | None]]:
    """Count the competitors of each query of this process in all parts of the items.

    Returns:
        The arguments, checked; the relevant rows ``(Q, M)``; the counts; the masks of `check_ids`.
    """
    try:
        given, mine = _check_part(group, queries, items, target, group_given, options)
    except Exception:
        tell(Facts(), group)  # else the others would wait for it
        raise
    everyone = tell(mine, group)
    check_facts(everyone)

    total = sum(facts.items for facts in everyone)
    relevant, counts, tied = _count_all(given, mine, everyone, group)
    first = sum(facts.queries for facts in everyone[: dist.get_rank(group)])
    rows = slice(first, first + mine.queries)
    counted = Counted(counts[1, rows], counts[0, rows], tied[rows], counts[2, rows])
    return given, relevant[rows], counted, check_ids(given, total)


def _count_all(given: Arguments, facts: Facts, everyone: list[Facts], group: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the relevant rows ``(Q, M)``, the counts ``(3, Q)`` and the tied relevant items ``(Q,)`` of all."""
    assert isinstance(given.source, Embeddings)
    queries, items, bias = given.source
    dtype = torch.float64 if any(other.wide for other in everyone) else torch.float32
    kinds = {other.sent for other in everyone}
    sent = SENT[kinds.pop()] if len(kinds) == 1 else dtype
    queries = torch.cat(gather(queries.to(sent), [other.queries for other in everyone], group))
    target, exclude = _gather_ids(given, everyone, group)

    offset = sum(other.items for other in everyone if other.position < facts.position)
    here, ids = slice(offset, offset + items.shape[0]), given.ids
    if bias is not None and facts.bias == WHOLE:
        bias = bias[here]
    if ids is not None and facts.ids == PARTS:
        parts = zip(everyone, gather(ids, [other.items for other in everyone], group), strict=True)
        ids = torch.cat([part for _, part in sorted(parts, key=lambda pair: pair[0].position)])
    rows = find_rows(target, exclude, ids, sum(other.items for other in everyone))
    relevant, excluded = rows.relevant - offset, [listed - offset for listed in rows.excluded]
    shared = None if rows.shared is None else rows.shared[here]

    # Cut in the same way everywhere: from what all know.
    largest, listed = max(other.items for other in everyone), sum(part.shape[1] for part in excluded)
    cut = cut_products(queries.shape[0], largest, queries.shape[1], listed, given.tile, queries)
    scorer = DotProducts(queries, items, bias, dtype, cut)
    scores, buffer = score_relevant(scorer, relevant)  # 0 in all processes but the item's
    dist.all_reduce(scores, group=group)
    best, tied = best_relevant(scores, rows.relevant)
    counts = count_competitors(scorer, buffer, best, excluded, shared)
    dist.all_reduce(counts, group=group)
    return rows.relevant, counts, tied


def _check_part(
    group: Any, queries: Any, items: Any, target: Any, group_given: Any, options: dict[str, Any]
) -> tuple[Arguments, Facts]:
    for name in ("score", "num_items"):
        _checks.refuse_given({name: options[name]}, "None for items in parts")
    position, whole = dist.get_rank(group), -1
    beside = {name: (options[name], PARTS) for name in ("bias", "ids")}
    if hasattr(items, "placements"):
        if group_given is not None:
            got = type(group_given).__name__
            raise ValueError(_checks.message("group", "None beside a DTensor, which has its own", got))
        table, (items, position) = items, _local_part(items)
        whole = table.shape[0]
        beside = {name: _like_table(name, value, table) for name, (value, _) in beside.items()}
    parts = {name: value if form == PARTS else None for name, (value, form) in beside.items()}
    given = check_arguments(queries, items, target, **(options | parts))
    if given.implementation in ("reference", "triton"):
        expected = "'auto' or 'streamed' for items in parts"
        raise ValueError(_checks.message("implementation", expected, repr(given.implementation)))
    embeddings = given.source
    assert isinstance(embeddings, Embeddings)
    kinds = device_kinds(group)
    if kind(embeddings.queries) not in kinds:
        wanted = f"a tensor on {' or '.join(kinds)}, where the group communicates"
        raise ValueError(_checks.message("item_embeddings", wanted, items.device))
    bias, ids = (
        check_items(name, value, given.num_items if form == PARTS else whole, embeddings.queries)
        for name, (value, form) in beside.items()
    )
    forms = {name: NONE if value is None else form for name, (value, form) in beside.items()}
    facts = _facts(given, embeddings)._replace(
        position=position, whole=whole, device=kinds.index(kind(embeddings.items)), **forms
    )
    return given._replace(source=embeddings._replace(bias=bias), ids=ids), facts


def _split_dimensions(table: Any) -> list[int]:
    return [dim for dim, placement in enumerate(table.placements) if not placement.is_replicate()]


def _local_part(table: Any) -> tuple[Tensor, int]:
    """Return this process's part of a DTensor, and its index among the parts."""
    placements, split = tuple(table.placements), _split_dimensions(table)
    # By its name: the rows of a strided shard, another class, are not in the order of the processes.
    if len(split) != 1 or type(placements[split[0]]).__name__ != "Shard" or placements[split[0]].dim != 0:
        raise ValueError(_checks.message("item_embeddings", "a DTensor sharded once, on dimension 0", placements))
    return table.to_local(), table.device_mesh.get_local_rank(split[0])


def _like_table(name: str, value: Any, table: Any) -> tuple[Any, int]:
    """Return ``bias`` or ``ids`` beside a DTensor, and in which form it came."""
    if not hasattr(value, "placements"):
        return value, WHOLE
    placements = tuple(table.placements)
    if value.device_mesh != table.device_mesh or tuple(value.placements) != placements:
        raise ValueError(_checks.message(name, f"placements {placements}, as item_embeddings", value.placements))
    return value.to_local(), PARTS


def _facts(given: Arguments, embeddings: Embeddings) -> Facts:
    queries, items, _ = embeddings
    judged, exclude, seen = judged_target(given), given.exclude, readable(given.target)
    lowest, highest = map(int, judged.aminmax()) if seen and judged.numel() else (0, -1)
    highest_excluded = -1
    if exclude is not None and given.ids is None and seen and exclude.numel():
        highest_excluded = int(exclude.max())
    return Facts(
        error=0,
        items=items.shape[0],
        columns=items.shape[1],
        queries=queries.shape[0],
        relevant=given.target.shape[1],
        lists=0 if exclude is None else exclude.shape[0],
        listed=0 if exclude is None else exclude.shape[1],
        sent=SENT.index(queries.dtype) if queries.dtype in SENT else 0,
        wide=int(torch.float64 in (queries.dtype, items.dtype)),
        tile=given.tile or 0,
        lowest=lowest,
        highest=highest,
        excluded=highest_excluded,
    )


def _gather_ids(given: Arguments, everyone: list[Facts], group: Any) -> tuple[Tensor, Tensor | None]:
    """Return the targets ``(Q, M)`` and the excluded items of all processes, in one exchange.

    The excluded items are ``(Q, H)``; or ``(1, H)`` where all processes exclude the same for all their queries, since
    such a list may be long.
    """
    mine = (
        given.target.flatten()
        if given.exclude is None
        else torch.cat([given.target.flatten(), given.exclude.flatten()])
    )
    sizes = [facts.queries * facts.relevant + facts.lists * facts.listed for facts in everyone]
    most, longest = (max(getattr(facts, name) for facts in everyone) for name in ("relevant", "listed"))
    targets, lists = [], []
    for facts, numbers in zip(everyone, gather(mine, sizes, group), strict=True):
        edge = facts.queries * facts.relevant
        target, listed = numbers[:edge], numbers[edge:]
        targets.append(F.pad(target.view(facts.queries, facts.relevant), (0, most - facts.relevant), value=-1))
        listed = F.pad(listed.view(facts.lists, facts.listed), (0, longest - facts.listed), value=-1)
        if facts.queries:
            lists.append(listed if facts.lists else listed.new_full((1, longest), -1))
    if longest == 0 or not lists:
        return torch.cat(targets), None
    if all(listed.shape[0] == 1 and torch.equal(listed, lists[0]) for listed in lists):
        return torch.cat(targets), lists[0]
    heights = [facts.queries for facts in everyone if facts.queries]
    return torch.cat(targets), torch.cat([part.expand(n, -1) for part, n in zip(lists, heights, strict=True)])
