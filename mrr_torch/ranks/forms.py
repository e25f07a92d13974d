"""Which form of input is this? The one place where a call with ``preds`` and ``target`` becomes `Ranks`."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.ranks.base import BAD_SEVERAL, Ranks, check_ranks, mark
from mrr_torch.ranks.dense import rank_relevant, rank_target
from mrr_torch.ranks.grouped import rank_grouped


class Ranked(NamedTuple):
    """Ranks, and what is known of all of them together.

    Attributes:
        ranks: the ranks.
        last: no rank is beyond it; None if unknown.
        single: no query has several relevant items.
        found: each query has a relevant item that was found; False where that can't be seen.
        width: each query has so many candidates; None if they differ, or may.
    """

    ranks: Ranks
    last: int | None = None
    single: bool = False
    found: bool = False
    width: int | None = None


def rank(
    preds: Tensor | Ranks,
    target: Tensor | None,
    *,
    indexes: Tensor | None,
    candidates: Tensor | None,
    exclude: Tensor | None,
    mask: Tensor | None,
    ignore_index: int | None,
    num_negatives: int | None,
) -> Ranked:
    """Rank the input of ``update``, in whichever form it comes."""
    if isinstance(preds, Ranks):
        given = {"target": target, "indexes": indexes, "candidates": candidates, "exclude": exclude, "mask": mask}
        _refuse(given, "None, since preds are already ranks")
        return Ranked(_one_relevant(check_ranks("preds", preds), num_negatives))
    preds = _checks.scores_tensor("preds", preds, may_be_empty=indexes is not None)
    shape = _checks.shape(preds)
    if indexes is not None:
        _refuse({"candidates": candidates, "num_negatives": num_negatives}, "None with indexes")
        ranks = rank_grouped(preds, target, indexes, exclude=exclude, mask=mask, ignore_index=ignore_index)  # type: ignore[arg-type]
        return Ranked(ranks, shape[0])
    target = _default_target(preds, target, num_negatives)
    options: dict[str, Any] = {"candidates": candidates, "exclude": exclude, "mask": mask, "ignore_index": ignore_index}
    if _checks.shape(target) == shape:
        if num_negatives is not None and shape[-1] != 1 + num_negatives:
            wanted = f"{1 + num_negatives} columns with relevance and num_negatives={num_negatives}"
            raise ValueError(_checks.message("preds", wanted, f"shape {shape}"))
        return _with_facts(rank_relevant(preds, target, **options), shape[-1], single=False)
    if _checks.shape(target) != shape[:-1]:
        wanted = f"shape {shape[:-1]} (a column per query) or {shape} (relevance), for preds of shape {shape}"
        raise ValueError(_checks.message("target", wanted, f"shape {_checks.shape(target)}"))
    return _with_facts(rank_target(preds, target, **options), shape[-1], single=True)


def _with_facts(ranks: Ranks, columns: int, single: bool) -> Ranked:
    """Say what is known of ranks that come from rows of scores."""
    # A count that is one number for all queries is so by its form: no look at values was needed for it.
    width = columns if _checks.is_one_number(ranks.candidates) else None
    found = _checks.all_are(ranks.relevant, 1)
    if not found and _checks.on_host(ranks.relevant):
        found = ranks.relevant.numel() > 0 and int(ranks.relevant.min()) > 0
    return Ranked(ranks, columns, single, found, width)


def _refuse(given: dict[str, Any], expected: str) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(_checks.message(name, expected, type(value).__name__))


def _default_target(preds: Tensor, target: Tensor | None, num_negatives: int | None) -> Tensor:
    """Check the target's type, and the columns of sampled mode, where the target may be left out: it is column 0."""
    columns = preds.shape[-1]
    if num_negatives is not None and columns < 1 + num_negatives:
        wanted = f"at least {1 + num_negatives} columns with num_negatives={num_negatives}"
        raise ValueError(_checks.message("preds", wanted, f"shape {_checks.shape(preds)}"))
    if target is None:
        if num_negatives is None:
            wanted = "the column of each query's relevant item, or relevance (only with num_negatives is it column 0)"
            raise ValueError(_checks.message("target", wanted, "None"))
        if columns != 1 + num_negatives:
            wanted = f"the target's column, unless preds has exactly {1 + num_negatives} columns (target first)"
            raise ValueError(_checks.message("target", wanted, f"None with preds of shape {_checks.shape(preds)}"))
        return preds.new_zeros((), dtype=torch.int64).expand(preds.shape[:-1])
    if not isinstance(target, Tensor):
        raise TypeError(_checks.message("target", "a tensor", type(target).__name__))
    return target


def _one_relevant(ranks: Ranks, num_negatives: int | None) -> Ranks:
    """Refuse several relevant items where an expectation over draws of negatives would be needed; mark if unseen."""
    if num_negatives is None:
        return ranks
    several = (ranks.relevant > 1) & (ranks.candidates > 1 + num_negatives)
    if _checks.on_host(several) and bool(several.any()):
        wanted = f"one relevant item, or {1 + num_negatives} candidates with num_negatives={num_negatives}"
        raise ValueError(_checks.message("preds", wanted, f"several in {int(several.sum())} queries with more"))
    return ranks._replace(relevant=mark(ranks.relevant, several, BAD_SEVERAL))
