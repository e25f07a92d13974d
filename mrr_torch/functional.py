"""Reciprocal ranks as functions: per query, and their mean."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.distribution import (
    Ties,
    first_step,
    reciprocals_between,
    several_relevant,
    state_dtype,
    steps_per_rank,
)
from mrr_torch.expectation import more_than_sampled, sampled_ranks
from mrr_torch.protocol import EmptyTargetAction, Protocol, check_top_k, refuse_faults
from mrr_torch.ranks.base import ABSENT, EMPTY, IGNORED, OUTCOMES, Ranks
from mrr_torch.ranks.forms import Ranked, rank


@torch.no_grad()
def reciprocal_rank(
    preds: Tensor | Ranks,
    target: Tensor | None = None,
    top_k: int | None = None,
    *,
    ties: Ties = "expected",
    empty_target_action: EmptyTargetAction = "neg",
    ignore_index: int | None = None,
    num_negatives: int | None = None,
    indexes: Tensor | None = None,
    candidates: Tensor | None = None,
    exclude: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Return the reciprocal rank of each query: 1 / rank of its first relevant item, 0 if that is beyond ``top_k``.

    Use it for paired tests between models (`scipy.stats`); for a mean over batches use `MeanReciprocalRank`.

    Args:
        preds: scores ``(..., N)``, or ``(T,)`` with ``indexes``, or a `Ranks`.
        target: columns ``(...)``, relevance of the shape of ``preds``, or None, as in `MeanReciprocalRank.update`.
        top_k: the cut-off; None for none.
        ties: the tie rule, as in `MeanReciprocalRank`.
        empty_target_action: what a query without any relevant item counts, as in `MeanReciprocalRank`.
        ignore_index: target value or label to skip.
        num_negatives: None for the full catalogue, m for sampled mode, as in `MeanReciprocalRank`.
        indexes: query ids of a flat list, ``(T,)``.
        candidates: ids of the columns, of the shape of ``preds``.
        exclude: items that never compete: ids ``(..., H)`` or ``(H,)``, or a bool mask of the shape of ``preds``.
        mask: bool, of the shape of ``preds``; True where a column is real.

    Returns:
        values of the queries' shape, in torch's default dtype: ``(...)``, or one for each distinct id of ``indexes``
        in the order of the ids. NaN for skipped queries.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: a wrong shape, device or value.

    >>> reciprocal_rank(torch.tensor([[3.0, 1.0, 2.0], [1.0, 1.0, 0.0]]), torch.tensor([2, 0]))
    tensor([0.5000, 0.7500])
    """
    protocol = Protocol.check(ties, empty_target_action, ignore_index, num_negatives)
    cut = check_top_k(top_k)
    ranked = rank(
        preds,
        target,
        indexes=indexes,
        candidates=candidates,
        exclude=exclude,
        mask=mask,
        ignore_index=protocol.ignore_index,
        num_negatives=protocol.num_negatives,
    )
    shape, outcome = ranked.ranks.relevant.shape, ranked.ranks.relevant.reshape(-1)
    value = _expected_reciprocal(ranked, cut, protocol)
    value = torch.where(outcome == EMPTY, 1.0 if empty_target_action == "pos" else 0.0, value)
    skipped = (outcome == IGNORED) | (outcome == ABSENT)
    if empty_target_action == "skip":
        skipped |= outcome == EMPTY
    value = torch.where(skipped, torch.nan, value)
    if not torch.compiler.is_compiling():
        outcomes = torch.bincount(1 - outcome.clamp(ABSENT, 1), minlength=2 + OUTCOMES)
        refuse_faults(outcomes.tolist(), empty_target_action)
        if indexes is not None and outcome.device.type != "cpu":  # the rows that `rank_grouped` could not leave out
            value = value[: int((indexes.sort().values.diff() != 0).sum()) + 1]
            shape = value.shape
    return value.to(torch.get_default_dtype()).reshape(shape)


def mean_reciprocal_rank(
    preds: Tensor | Ranks,
    target: Tensor | None = None,
    top_k: int | None = None,
    *,
    ties: Ties = "expected",
    empty_target_action: EmptyTargetAction = "neg",
    ignore_index: int | None = None,
    num_negatives: int | None = None,
    indexes: Tensor | None = None,
    candidates: Tensor | None = None,
    exclude: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Return the mean of `reciprocal_rank` over the queries that are not skipped; 0 if there are none.

    Args:
        preds: as in `reciprocal_rank`, like everything that follows.
        target: columns, relevance or None.
        top_k: the cut-off; None for none.
        ties: the tie rule.
        empty_target_action: what a query without any relevant item counts.
        ignore_index: target value or label to skip.
        num_negatives: None for the full catalogue, m for sampled mode.
        indexes: query ids of a flat list.
        candidates: ids of the columns.
        exclude: items that never compete.
        mask: True where a column is real.

    Returns:
        a scalar in torch's default dtype.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: a wrong shape, device or value.

    >>> mean_reciprocal_rank(torch.tensor([[3.0, 1.0, 2.0], [1.0, 5.0, 0.0]]), torch.tensor([2, 1]))
    tensor(0.7500)
    """
    values = reciprocal_rank(
        preds,
        target,
        top_k,
        ties=ties,
        empty_target_action=empty_target_action,
        ignore_index=ignore_index,
        num_negatives=num_negatives,
        indexes=indexes,
        candidates=candidates,
        exclude=exclude,
        mask=mask,
    )
    return values.nanmean().nan_to_num(nan=0.0)


def _expected_reciprocal(ranked: Ranked, top_k: int | None, protocol: Protocol) -> Tensor:
    """Return the reciprocal ranks ``(queries,)`` in float64; 0 where nothing was found."""
    higher, tied, relevant, candidates = map(_checks.flat, ranked.ranks)
    ties, found = protocol.ties, relevant > 0
    dtype, steps = state_dtype(higher.device), steps_per_rank(ties)
    start = first_step(higher, tied, ties)
    # The plain division where there is one rank: to the last bit what anyone would compute by hand. A realistic rank
    # half a step above the cut-off is beyond it.
    limit = None if top_k is None else (top_k - 1) * steps + 1
    value = 1 / (1 + start.to(dtype) / steps)
    if limit is not None:
        value = torch.where(start < limit, value, 0.0)
    rows = _checks.rows_at(tied > 0) if ties == "expected" else None
    if rows is not None and rows.numel():  # of one relevant item; several are seen to below
        first, length = start[rows], tied[rows] + 1
        stop = first + length
        if limit is not None:
            first, stop = first.clamp(max=limit), stop.clamp(max=limit)
        value[rows] = torch.where(length > 1, reciprocals_between(first, stop) / length, value[rows])
    blocks: list[tuple[Tensor, Iterable[tuple[Tensor, Tensor, Tensor]]]] = []
    if ties == "expected" and not ranked.single:
        several = (relevant > 1) & (tied > 0)
        last = ranked.last if top_k is None or ranked.last is None else min(top_k, ranked.last)
        if last is None and higher.numel() and not _checks.on_host(several):
            last = int((higher + tied).max()) + 1
        unevenly = several_relevant(higher, tied, relevant, several, last)
        blocks.append((several, ((rows, rank, chance) for rows, _, rank, chance in unevenly)))
    sampled = more_than_sampled(found, candidates, protocol.num_negatives, ranked.last)
    if sampled is not None:
        negatives = protocol.num_negatives or 0
        blocks.append((sampled, sampled_ranks(higher, tied, candidates, sampled, negatives, ties)))
    for where, parts in blocks:
        value = torch.where(where, 0.0, value)
        for rows, places, chance in parts:
            counted = chance if top_k is None else chance * (places <= top_k)
            value[rows] += torch.where(where[rows], (counted / places).sum(1), 0.0)
    return torch.where(found, value, 0.0)
