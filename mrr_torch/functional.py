"""Reciprocal ranks as functions: per query, and their mean."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch._device import compiling, state_dtype
from mrr_torch.kernels import readable
from mrr_torch.ranks import Outcome, Ranks, read_known
from mrr_torch.ranks.batch import Batch, Ranked, rank_batch
from mrr_torch.reading import refuse_invalid
from mrr_torch.settings import EmptyTargetAction, Settings, check_top_k
from mrr_torch.ties import BLOCK, Ties, reciprocals_between, standings, steps_per_rank


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
    miss_index: int | None = None,
    indexes: Tensor | None = None,
    candidates: Tensor | None = None,
    exclude: Tensor | None = None,
    mask: Tensor | None = None,
    relevant: Tensor | None = None,
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
        miss_index: target value of queries that count 0, as in `MeanReciprocalRank`.
        indexes: query ids of a flat list, ``(T,)``.
        candidates: ids of the columns, of the shape of ``preds`` or ``(N,)``.
        exclude: items that never compete: ids ``(..., H)`` or ``(H,)``, or a bool mask of the shape of ``preds``.
        mask: bool, of the shape of ``preds`` or ``(N,)``; True where a column is real.
        relevant: ids of the relevant items ``(..., M)``, instead of ``target``, as in `MeanReciprocalRank.update`.

    Returns:
        values of the queries' shape, in torch's default dtype: ``(...)``, or one for each distinct id of ``indexes``
        in the order of the ids. A query of which all columns or items are masked has no relevant item. NaN for skipped
        queries; under `torch.compile`, where nothing can be raised, for invalid ones too.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: a wrong shape, device or value.

    >>> reciprocal_rank(torch.tensor([[3.0, 1.0, 2.0], [1.0, 1.0, 0.0]]), torch.tensor([2, 0]))
    tensor([0.5000, 0.7500])
    """
    batch = Batch(preds, target, indexes, candidates, exclude, mask, relevant)
    settings = Settings.check(ties, empty_target_action, ignore_index, num_negatives, miss_index)
    values, _ = _values(batch, top_k, settings)
    return values.to(torch.get_default_dtype())


def mean_reciprocal_rank(
    preds: Tensor | Ranks,
    target: Tensor | None = None,
    top_k: int | None = None,
    *,
    ties: Ties = "expected",
    empty_target_action: EmptyTargetAction = "neg",
    ignore_index: int | None = None,
    num_negatives: int | None = None,
    miss_index: int | None = None,
    indexes: Tensor | None = None,
    candidates: Tensor | None = None,
    exclude: Tensor | None = None,
    mask: Tensor | None = None,
    relevant: Tensor | None = None,
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
        miss_index: target value of queries that count 0.
        indexes: query ids of a flat list.
        candidates: ids of the columns.
        exclude: items that never compete.
        mask: True where a column is real.
        relevant: ids of the relevant items.

    Returns:
        a scalar in torch's default dtype; the mean is taken in float64.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: a wrong shape, device or value.

    >>> mean_reciprocal_rank(torch.tensor([[3.0, 1.0, 2.0], [1.0, 5.0, 0.0]]), torch.tensor([2, 1]))
    tensor(0.7500)
    """
    batch = Batch(preds, target, indexes, candidates, exclude, mask, relevant)
    settings = Settings.check(ties, empty_target_action, ignore_index, num_negatives, miss_index)
    values, skipped = _values(batch, top_k, settings)
    if skipped is None:
        mean = values.sum() / max(values.numel(), 1)
    else:
        mean = values.masked_fill(skipped, 0.0).sum() / (~skipped).sum().clamp(min=1)
    return mean.to(torch.get_default_dtype())


@torch.no_grad()
def _values(batch: Batch, top_k: Any, settings: Settings) -> tuple[Tensor, Tensor | None]:
    """Return the reciprocal ranks in float64, NaN where a query is skipped or invalid; and the mask of the skipped.

    The mask is None where each query is known to have a rank.
    """
    cut = check_top_k(top_k)
    ranked = rank_batch(
        batch,
        ignore_index=settings.ignore_index,
        miss_index=settings.miss_index,
        num_negatives=settings.num_negatives,
    )
    shape, ranks = ranked.ranks.relevant.shape, Ranks(*map(_checks.flat, ranked.ranks))
    outcome, known = ranks.relevant, read_known(ranks, ranked.known)
    value = _mean_gain(Ranked(ranks, known), cut, settings)
    if known.ranked:
        return value.reshape(shape), None
    if settings.empty_target_action == "pos":
        value = value.masked_fill(outcome == Outcome.EMPTY.value, 1.0)
    skipped = (outcome == Outcome.IGNORED.value) | (outcome == Outcome.PADDING.value)
    if settings.empty_target_action == "skip":
        skipped |= outcome == Outcome.EMPTY.value
    invalid = (outcome <= Outcome.BAD_TARGET.value) & (outcome != Outcome.PADDING.value)
    if settings.empty_target_action == "error":
        invalid |= outcome == Outcome.EMPTY.value
    value = value.masked_fill(skipped | invalid, torch.nan)
    if not compiling():
        _raise(outcome, settings)
        if batch.indexes is not None and not readable(outcome):  # the padding rows of `rank_grouped`
            number = int((outcome != Outcome.PADDING.value).sum())
            value, skipped, shape = value[:number], skipped[:number], torch.Size([number])
    return value.reshape(shape), skipped.reshape(shape)


def _raise(outcome: Tensor, settings: Settings) -> None:
    """Raise for invalid values that were marked, and warn of targets without a score."""
    counts = torch.bincount(-outcome.clamp(max=1) + 1, minlength=2 - min(Outcome)).tolist()
    refuse_invalid({member: counts[1 - member] for member in Outcome}, settings)


def _mean_gain(ranked: Ranked, top_k: int | None, settings: Settings) -> Tensor:
    """Return the reciprocal ranks ``(queries,)`` in float64; 0 where nothing was found."""
    relevant = ranked.ranks.relevant
    dtype, steps = state_dtype(relevant.device), steps_per_rank(settings.ties)
    last = top_k
    if last is None and ranked.known.last == math.inf and relevant.numel() and not (readable(relevant) or compiling()):
        last = int((ranked.ranks.higher + ranked.ranks.tied).max()) + 1
    stand = standings(ranked, settings.ties, settings.num_negatives, edge=BLOCK, last=last)
    # A realistic rank half a step above the cut-off is beyond it.
    limit = None if top_k is None else min((top_k - 1) * steps + 1, 2**62)  # beyond int64 it would wrap around
    # The plain division where there is one rank: to the last bit what anyone would compute by hand.
    value = (stand.step.to(dtype) / steps + 1).reciprocal()
    elsewhere = [] if ranked.known.ranked else [relevant <= 0]
    if stand.spread is not None:
        elsewhere.append(stand.spread)
    if limit is not None:
        elsewhere.append(stand.step >= limit)
    for where in elsewhere:
        value = value.masked_fill(where, 0.0)
    if stand.even is not None:
        rows, start, stop, share = stand.even
        if limit is not None:
            start, stop = start.clamp(max=limit), stop.clamp(max=limit)
        part = torch.where(share > 0, reciprocals_between(start, stop) * share, 0.0)
        value = value + part if rows is None else value.index_add_(0, rows, part)
    for block in stand.blocks:
        counted = block.probabilities if top_k is None else block.probabilities * (block.ranks <= top_k)
        value[block.rows] += (counted / block.ranks).sum(1)
        if block.rest is not None:  # nothing can be read, and nothing said of what lies beyond
            value[block.rows] = value[block.rows].masked_fill(block.rest > 0, torch.nan)
    return value
