"""Ranks from lists of retrieved ids: what an ANN index or a search engine returns, scores unknown."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.ranks.base import EMPTY, MISSED, Ranks, mark
from mrr_torch.ranks.competitors import flatten
from mrr_torch.ranks.tiles import row_tiles


@torch.no_grad()
def rank_retrieved(
    retrieved: Tensor | Sequence[Sequence[Hashable]],
    relevant: Tensor | Sequence[Iterable[Hashable] | Hashable],
    padding: int = -1,
) -> Ranks:
    """Rank the first relevant id of each retrieved list. The rank is the position as displayed.

    A repeated id takes its positions, and its first occurrence counts. Relevant ids that were not retrieved are a
    miss: reciprocal rank 0, and the query stays in the mean. A query without any relevant id has none.

    Args:
        retrieved: ``(..., K)`` integer ids in the order of the list, short lists filled with ``padding``; or nested
            lists of hashable ids, of any lengths.
        relevant: ``(...)`` or ``(..., M)`` integer ids, filled with ``padding``; or, with nested lists, one id or a
            list or set of ids per query.
        padding: the id that stands for "nothing" in tensors; it takes no part in any match.

    Returns:
        `Ranks` of shape ``(...)``, with ``candidates`` 0: how many there were is not known from the list.

    Raises:
        TypeError: ids of different types (``"8"`` and ``8`` never match), tensors mixed with lists, float tensors.
        ValueError: different numbers of queries, a wrong shape or device.

    >>> rank_retrieved([["donut", "roll"], ["bagel"]], [{"roll", "muffin"}, {"roll"}])[:3]
    (tensor([1, 0]), tensor([0, 0]), tensor([ 1, -1]))
    """
    if isinstance(retrieved, Tensor) != isinstance(relevant, Tensor):
        expected = "a tensor" if isinstance(retrieved, Tensor) else "nested lists"
        raise TypeError(_checks.message("relevant", f"{expected}, as retrieved is", type(relevant).__name__))
    if not isinstance(retrieved, Tensor) or not isinstance(relevant, Tensor):
        return _rank_lists(retrieved, relevant)
    padding = _checks.integer("padding", padding)
    retrieved = _checks.integer_tensor("retrieved", retrieved, retrieved)
    relevant = _checks.integer_tensor("relevant", relevant, retrieved)
    if retrieved.ndim == 0:
        raise ValueError(_checks.message("retrieved", "shape (..., K)", "shape ()"))
    queries = _checks.shape(retrieved)[:-1]
    if relevant.ndim == retrieved.ndim - 1:
        relevant = relevant[..., None]
    if _checks.shape(relevant)[:-1] != queries:
        expected = f"shape {queries} or {(*queries, 'M')}"
        raise ValueError(_checks.message("relevant", expected, f"shape {_checks.shape(relevant)}"))
    position, found, some = _first_match(flatten(retrieved), flatten(relevant), padding)
    outcome = mark(mark(torch.ones_like(position), ~found, MISSED), ~some, EMPTY)
    fields = (position, torch.zeros_like(position), outcome, torch.zeros_like(position))
    return Ranks(*(field.reshape(queries) for field in fields))


def _first_match(retrieved: Tensor, relevant: Tensor, padding: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return, per row: the first position of a relevant id, if there is one, and if there are relevant ids at all."""
    rows, length = retrieved.shape
    position = torch.full((rows,), length, dtype=torch.int64, device=retrieved.device)
    places = torch.arange(length, dtype=torch.int32, device=retrieved.device)
    for part in row_tiles(rows, length, retrieved.device) if length else ():
        hits = torch.zeros_like(retrieved[part], dtype=torch.bool)
        for wanted in relevant[part].unbind(1):
            hits |= retrieved[part] == wanted[:, None]
        hits &= retrieved[part] != padding
        position[part] = torch.where(hits, places, length).amin(1).long()
    found = position < length
    return position.masked_fill(~found, 0), found, (relevant != padding).any(1)


def _rank_lists(retrieved: Any, relevant: Any) -> Ranks:
    """Rank nested Python lists: one pass over each list, membership in a set."""
    lists = [_ids(row, f"retrieved[{i}]") for i, row in enumerate(_rows(retrieved, "retrieved"))]
    wanted = [_wanted(row, f"relevant[{i}]") for i, row in enumerate(_rows(relevant, "relevant"))]
    if len(lists) != len(wanted):
        raise ValueError(_checks.message("relevant", f"ids for {len(lists)} queries, as in retrieved", len(wanted)))
    _one_kind(lists, wanted)
    positions = [
        next((i for i, item in enumerate(row) if item in ids), MISSED if ids else None)
        for row, ids in zip(lists, wanted, strict=True)
    ]
    outcome = [EMPTY if p is None else min(p, 0) or 1 for p in positions]
    higher = torch.tensor([max(p or 0, 0) for p in positions], dtype=torch.int64)
    zeros = torch.zeros_like(higher)
    return Ranks(higher, zeros, torch.tensor(outcome, dtype=torch.int64), zeros.clone())


def _rows(value: Any, name: str) -> Sequence[Any]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise TypeError(_checks.message(name, "a tensor, or a list with an entry for each query", type(value).__name__))
    return value


def _ids(row: Any, name: str) -> list[Hashable]:
    """Return a row of ids as a list; arrays and tensors are unpacked, since their elements don't hash by value."""
    if hasattr(row, "tolist"):
        row = row.tolist()
    if isinstance(row, (str, bytes)) or not isinstance(row, (Sequence, AbstractSet)):
        raise TypeError(_checks.message(name, "a list of ids", repr(row)))
    ids = list(row)
    for item in ids:
        if isinstance(item, Tensor) or not isinstance(item, Hashable):
            raise TypeError(_checks.message(name, "hashable ids (not tensors)", type(item).__name__))
    return ids


def _wanted(row: Any, name: str) -> set[Hashable]:
    """Return the relevant ids of a query: a list or a set of them, or a single id."""
    several = isinstance(row, (list, AbstractSet)) or (hasattr(row, "tolist") and getattr(row, "ndim", 0) > 0)
    return set(_ids(row if several else [row.tolist() if hasattr(row, "tolist") else row], name))


def _one_kind(lists: list[list[Hashable]], wanted: list[set[Hashable]]) -> None:
    """Refuse ids of several types: ``"8"`` and ``8`` never match, and would only ever be silent misses."""

    def kinds(ids: Iterable[Iterable[Hashable]]) -> set[str]:
        types = {type(item) for row in ids for item in row}
        bases = {kind: next((base for base in (Integral, str) if issubclass(kind, base)), kind) for kind in types}
        return {"int" if base is Integral else base.__name__ for base in bases.values()}

    have, want = kinds(lists), kinds(wanted)
    if len(have) > 1:
        raise TypeError(_checks.message("retrieved", "ids of one type", ", ".join(sorted(have))))
    if len(have | want) > 1:
        expected = f"{', '.join(have)} ids, as retrieved" if have else "ids of one type"
        raise TypeError(_checks.message("relevant", expected, ", ".join(sorted(want))))
