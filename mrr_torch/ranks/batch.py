"""Which form of input is this call? The one place where the arguments of ``update`` become `Ranks`."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.ranks import Known, Outcome, Ranks, check_ranks
from mrr_torch.ranks.grouped import Items, check_items, rank_items
from mrr_torch.ranks.scores import rank_first, rank_ids, rank_relevant, rank_target


class Batch(NamedTuple):
    """The arguments of ``update`` that say what is ranked. Each is None where it is not given."""

    preds: Any
    target: Any = None
    indexes: Any = None
    candidates: Any = None
    exclude: Any = None
    mask: Any = None
    relevant: Any = None


class Ranked(NamedTuple):
    """Ranks, and what is known of all of them together.

    Attributes:
        ranks: the ranks.
        known: what is known of all of them.
        ids: ``(queries,)``; ids of the queries of a flat list.
        items: the items of a flat list that is to be ranked later; there are no ranks yet.
    """

    ranks: Ranks
    known: Known = Known()
    ids: Tensor | None = None
    items: Items | None = None


def rank_batch(
    batch: Batch,
    *,
    ignore_index: int | None = None,
    miss_index: int | None = None,
    num_negatives: int | None = None,
    gather: bool = False,
) -> Ranked:
    """Rank a batch, in whichever form it comes; with ``gather`` a flat list is not ranked yet."""
    preds, target, relevant = batch.preds, batch.target, batch.relevant
    if isinstance(preds, Ranked):  # of a collection, which ranks for all its members
        return preds
    if isinstance(preds, Ranks):
        _checks.refuse_given(batch._asdict() | {"preds": None}, "None, since preds are already ranks")
        return Ranked(_one_relevant(check_ranks("preds", preds), num_negatives))
    preds = _checks.scores_tensor("preds", preds, may_be_empty=batch.indexes is not None)
    shape = _checks.shape(preds)
    options = {"candidates": batch.candidates, "exclude": batch.exclude, "mask": batch.mask}
    if batch.indexes is not None:
        _checks.refuse_given({"relevant": relevant}, "None with indexes")
        items = check_items(preds, target, batch.indexes, **options, ignore_index=ignore_index)
        if gather:
            nothing = torch.zeros(0, dtype=torch.int64, device=preds.device)
            return Ranked(Ranks(nothing, nothing, nothing, nothing), items=items)
        return ranked_items(items, num_negatives)
    if relevant is not None:
        _checks.refuse_given({"target": target}, "None beside relevant")
        _check_relevant(shape, ignore_index, miss_index, num_negatives)
        ranks = rank_ids(preds, relevant, **options)
        return Ranked(_one_relevant(ranks, num_negatives), _known(shape[-1], *options.values()))
    _check_columns(shape, num_negatives)
    if target is None:
        _check_target_first(shape, num_negatives)
        return Ranked(rank_first(preds, **options), _known(shape[-1], *options.values(), single=True))
    target = _checks.dense_tensor("target", target, "a tensor")
    if _checks.shape(target) == shape:
        if num_negatives is not None and shape[-1] != 1 + num_negatives:
            expected = f"{1 + num_negatives} columns with relevance and num_negatives={num_negatives}"
            raise ValueError(_checks.message("preds", expected, f"shape {shape}"))
        ranks = rank_relevant(preds, target, **options, ignore_index=ignore_index)
        return Ranked(ranks, _known(shape[-1], *options.values(), ignore_index))
    if _checks.shape(target) != shape[:-1]:
        expected = f"shape {shape[:-1]} (a column per query) or {shape} (relevance), for preds of shape {shape}"
        raise ValueError(_checks.message("target", expected, f"shape {_checks.shape(target)}"))
    ranks = rank_target(preds, target, **options, ignore_index=ignore_index, miss_index=miss_index)
    return Ranked(ranks, _known(shape[-1], *options.values(), single=True))


def ranked_items(items: Items, num_negatives: int | None) -> Ranked:
    """Rank the items of a flat list."""
    ranks, known, ids = rank_items(items)
    return Ranked(_one_relevant(ranks, num_negatives), known, ids)


def _known(columns: int, *options: object, single: bool = False) -> Known:
    """Return what is known of rows of ``columns``; where no ``options`` are given all columns are candidates."""
    all_of_them = all(option is None for option in options)
    return Known(columns, single, all_of_them, columns if all_of_them else 0, columns)


def _check_columns(shape: tuple[int, ...], num_negatives: int | None) -> None:
    """Check that sampled mode has columns for the target and its negatives."""
    if num_negatives is not None and shape[-1] < 1 + num_negatives:
        expected = f"at least {1 + num_negatives} columns with num_negatives={num_negatives}"
        raise ValueError(_checks.message("preds", expected, f"shape {shape}"))


def _check_relevant(
    shape: tuple[int, ...], ignore_index: int | None, miss_index: int | None, num_negatives: int | None
) -> None:
    """Check what else is asked for where relevant items are given by their ids, which negative ids pad."""
    _check_columns(shape, num_negatives)
    if ignore_index is not None and ignore_index >= 0:  # it would be ranked as an item
        raise ValueError(_checks.message("ignore_index", "a negative number, or None, with relevant", ignore_index))
    _checks.refuse_given({"miss_index": miss_index}, "None with relevant")


def _check_target_first(shape: tuple[int, ...], num_negatives: int | None) -> None:
    """Check that the target may be left out: in sampled mode, where it is column 0."""
    if num_negatives is None:
        expected = "the column of each query's relevant item, or relevance (only with num_negatives is it column 0)"
        raise ValueError(_checks.message("target", expected, "None"))
    if shape[-1] != 1 + num_negatives:
        expected = f"the target's column, unless preds has exactly {1 + num_negatives} columns (target first)"
        raise ValueError(_checks.message("target", expected, f"None with preds of shape {shape}"))


def _one_relevant(ranks: Ranks, num_negatives: int | None) -> Ranks:
    """Refuse several relevant items where an expectation over draws of negatives would be needed."""
    if num_negatives is None:
        return ranks
    several = ranks.several & (ranks.num_candidates > 1 + num_negatives)
    expected = f"one relevant item, or {1 + num_negatives} candidates with num_negatives={num_negatives}"
    invalid = _checks.refuse(several, "preds", expected, lambda: f"several in {int(several.sum())} queries with more")
    relevant = _checks.mark(ranks.relevant, invalid, Outcome.BAD_SEVERAL)
    return Ranks(ranks.higher, ranks.tied, relevant, ranks.candidates)
