"""From embeddings, or any scorer, to `Ranks`: the rank of each target among all items of a catalogue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.catalogue.arguments import Arguments, Counted, check_arguments, check_ids, find_rows
from mrr_torch.catalogue.fused import choose_fused, count_fused
from mrr_torch.catalogue.reference import count_with_all_scores
from mrr_torch.catalogue.sharded import count_sharded, find_group
from mrr_torch.catalogue.tiled import count_in_tiles
from mrr_torch.ranks import Outcome, Ranks, with_several

__all__ = ["rank_catalogue"]


@torch.no_grad()
def rank_catalogue(
    query_embeddings: Tensor | None = None,
    item_embeddings: Tensor | None = None,
    target: Tensor | None = None,
    *,
    score: Callable[[int, int], Tensor] | None = None,
    num_items: int | None = None,
    bias: Tensor | None = None,
    exclude: Tensor | None = None,
    ids: Tensor | None = None,
    miss_index: int | None = None,
    tile: int | None = None,
    group: Any = None,
    implementation: str = "auto",
) -> Ranks:
    """Rank each query's target among all items, by the dot product of their embeddings or by a function.

    The matrix of scores is never held: the items pass by in tiles, so memory does not grow with them. Scores are
    accumulated and compared in float32, in float64 for float64 embeddings: bfloat16 scores would tie where the
    products do not. The target's score comes from the same arithmetic as the others', so equal items tie with it
    exactly. Ties, NaN and infinities are as in `rank_target`.

    A score is off by at most (D + 1) u / (1 - (D + 1) u) times the sum of its products' magnitudes, where u is half
    the eps of the scores' type (the eps itself on tensor cores, which do not round to the nearest); items can only
    change order whose exact scores differ by less than both errors.

    Of several relevant items the best-scored counts, and the others do not compete. A NaN among them is ignored; if all
    are NaN, the query is a miss that is counted.

    The items may be split over the processes of a group, in parts of any size, even empty ones. Every process then
    calls this function with its own queries, any number, even none. Queries travel and counts come back; the items
    stay where they are. Processes agree on sizes first, for which each synchronises with its device. Arguments that
    are refused in one process are an error in all.

    Args:
        query_embeddings: ``(..., D)``; any floating dtype.
        item_embeddings: ``(N, D)``; any floating dtype and strides. A DTensor sharded on dimension 0, as FSDP2 leaves
            it, is ranked in its parts. With ``group``, this process's part of the items: ids count on through the
            parts in the order of the processes.
        target: ``(...)``; integer row of the relevant item. Or ``(..., M)``: rows of several relevant items, padded
            with negative ids; repeats count once.
        score: in place of embeddings, a function that returns the scores ``(..., last - first)`` of all queries for the
            items ``first`` to ``last`` (exclusive), any floating dtype. It has to give the same scores each time:
            slices that hold a target, and the first, are scored twice (on an accelerator, where targets are not read,
            all are), since competitors can be counted only when the target's score is known.
        num_items: N; with ``score`` only.
        bias: ``(N,)``; added to the items' scores. With ``group``, this process's part of it; beside a DTensor, one
            that is sharded likewise, or a whole one.
        exclude: item ids ``(..., H)`` per query, padded with negative ids, or ``(H,)`` for all queries, that never
            compete. Rows, or ids in ``ids`` where those are given. A relevant item is never excluded.
        ids: ``(N,)``; the item of each row: rows with the same id are copies of one item. The first of them competes,
            and none where the item is relevant. Rows with negative ids never compete. With ``group``, in parts like
            ``bias``, which are exchanged.
        miss_index: queries with this target count 0, and stay in the mean: their item is not in the catalogue.
        tile: number of items scored at a time; by default what the caches hold.
        group: the process group over which the items are split.
        implementation: "streamed", in tiles; "reference", which holds all scores at once; "triton", a fused kernel for
            GPUs (experimental: interpreted and compiled in tests, never run on one); or "auto", which chooses.

    Returns:
        `Ranks` of shape ``(...)``.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: a wrong shape or device; parts that do not add up; on a CPU also ids out of range. On an
            accelerator those are marked in the result and raised when a metric is computed.

    >>> queries, items = torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 1.0], [3.0, 0.0]])
    >>> rank_catalogue(queries, items, torch.tensor([0])).higher
    tensor([1])
    >>> products = lambda first, last: queries @ items[first:last].T
    >>> rank_catalogue(score=products, num_items=2, target=torch.tensor([0])).higher
    tensor([1])
    """
    options: dict[str, Any] = {"score": score, "num_items": num_items, "bias": bias, "exclude": exclude, "ids": ids}
    options |= {"miss_index": miss_index, "tile": tile, "implementation": implementation}
    group_of_parts = find_group(item_embeddings, group)
    if group_of_parts is not None:
        return _to_ranks(*count_sharded(group_of_parts, query_embeddings, item_embeddings, target, group, options))

    given = check_arguments(query_embeddings, item_embeddings, target, **options)
    if given.num_items == 0:
        raise ValueError(_checks.message("item_embeddings", "shape (N, D), N >= 1", "no rows"))
    marks = check_ids(given, given.num_items)
    rows = find_rows(given.target, given.exclude, given.ids, given.num_items)
    count = count_with_all_scores if given.implementation == "reference" else count_in_tiles
    if choose_fused(given):
        count = count_fused
    return _to_ranks(given, rows.relevant, count(given, rows), marks)


def _to_ranks(
    given: Arguments, relevant_rows: Tensor, counted: Counted, marks: tuple[Tensor | None, Tensor | None]
) -> Ranks:
    outside, beyond = marks
    distinct = (relevant_rows >= 0).sum(1)
    # Queries without a relevant item have 0, `Outcome.EMPTY`, already.
    relevant = _checks.mark(counted.relevant, (distinct > 0) & (counted.relevant == 0), Outcome.NAN)
    relevant = _checks.mark(relevant, given.missed, Outcome.MISSED)
    relevant = _checks.mark(_checks.mark(relevant, beyond, Outcome.BAD_EXCLUDE), outside, Outcome.BAD_TARGET)
    candidates = with_several(counted.competing + distinct, distinct > 1)
    fields = (counted.higher, counted.tied, relevant, candidates)
    return Ranks(*(field.reshape(given.shape).clone() for field in fields))  # each owns its memory
