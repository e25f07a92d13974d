"""From embeddings to `Ranks`: the rank of each target among all items of a catalogue."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.catalogue.inputs import Inputs, check_inputs, excluded_outside, targets_outside
from mrr_torch.catalogue.reference import rank_with_all_scores
from mrr_torch.catalogue.sharded import count_sharded, find_shard
from mrr_torch.catalogue.streamed import Counted, count_streamed
from mrr_torch.ranks.base import BAD_EXCLUDE, BAD_TARGET, NAN, Ranks, mark

__all__ = ["rank_catalogue"]

IMPLEMENTATIONS = ("auto", "reference", "streamed")


@torch.no_grad()
def rank_catalogue(
    query_embeddings: Tensor,
    item_embeddings: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    exclude: Tensor | None = None,
    tile: int | None = None,
    group: Any = None,
    implementation: str = "auto",
) -> Ranks:
    """Rank each query's target among all items by the dot product of their embeddings.

    The matrix of scores is never held: the items pass by in tiles, so memory does not grow with them. Scores are
    accumulated and compared in float32, in float64 for float64 embeddings: bfloat16 scores would tie where the
    products do not. The target's score comes from the same arithmetic as the others', so equal items tie with it
    exactly. Ties, NaN and infinities are as in `rank_target`.

    A score is off by at most (D + 1) u / (1 - (D + 1) u) times the sum of its products' magnitudes, where u is half
    the eps of the scores' type; items can only change places whose exact scores differ by less than both errors.

    The items may be split over the processes of a group, in parts of any size, even empty ones. Every process then
    calls this function with its own queries, any number, even none. Queries travel and counts come back; the items
    stay where they are. Processes agree on sizes first, for which each waits for its device.

    Args:
        query_embeddings: ``(..., D)``; any floating dtype.
        item_embeddings: ``(N, D)``; any floating dtype and strides. A DTensor sharded on dimension 0, as FSDP2 leaves
            it, is ranked in its parts. With ``group``, this process's part of the items: ids count on through the
            parts in the order of the processes.
        target: ``(...)``; integer row of the relevant item.
        bias: ``(N,)``; added to the items' scores. With ``group``, this process's part of it; beside a DTensor, one
            that is sharded likewise, or a whole one.
        exclude: item ids ``(..., H)`` per query, padded with negative ids, or ``(H,)`` for all queries, that never
            compete. The target is never excluded.
        tile: number of items scored at a time; by default what the caches hold.
        group: the process group over which the items are split.
        implementation: "streamed", in tiles; "reference", which holds all scores at once; or "auto", which chooses.

    Returns:
        `Ranks` of shape ``(...)``.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: a wrong shape or device; parts that do not add up; on a CPU also ids out of range. On an
            accelerator those are marked in the result and raised when a metric is computed.

    >>> rank_catalogue(torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 1.0], [3.0, 0.0]]), torch.tensor([0])).higher
    tensor([1])
    """
    implementation = _checks.one_of("implementation", implementation, IMPLEMENTATIONS)
    tile = None if tile is None else _checks.positive_int("tile", tile)
    shard = find_shard(item_embeddings, bias, group)
    if shard is not None:
        if implementation == "reference":
            raise ValueError(
                _checks.message("implementation", "'auto' or 'streamed' for items in parts", "'reference'")
            )
        inputs, number, counted = count_sharded(query_embeddings, shard, target, exclude, tile)
        outside, beyond = targets_outside(inputs.target, number), excluded_outside(inputs.exclude, number)
        return _to_ranks(inputs, counted, outside, beyond)

    inputs = check_inputs(query_embeddings, item_embeddings, target, bias, exclude)
    number = inputs.items.shape[0]
    if number == 0:
        got = f"shape {_checks.shape(inputs.items)}"
        raise ValueError(_checks.message("item_embeddings", "shape (N, D), N >= 1", got))
    if implementation == "reference":
        return rank_with_all_scores(*inputs)
    outside, beyond = targets_outside(inputs.target, number), excluded_outside(inputs.exclude, number)
    return _to_ranks(inputs, count_streamed(*inputs[:5], tile), outside, beyond)


def _to_ranks(inputs: Inputs, counted: Counted, outside: Tensor | None, beyond: Tensor | None) -> Ranks:
    relevant = mark(torch.ones_like(counted.higher), counted.own.isnan(), NAN)
    relevant = mark(mark(relevant, beyond, BAD_EXCLUDE), outside, BAD_TARGET)
    fields = (counted.higher, counted.tied, relevant, counted.candidates)
    return Ranks(*(field.reshape(inputs.shape) for field in fields))
