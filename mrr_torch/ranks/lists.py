"""Ids in Python lists: read them, refuse types that can never match, and rank or pad them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.ranks import Outcome, Ranks, with_several

Row = list[Hashable] | set[Hashable]


def read_lists(name: str, value: Any) -> list[Row]:
    """Return the lists of ids, in their order."""
    return [_ids(f"{name}[{i}]", row, ordered=True) for i, row in enumerate(_rows(name, value))]


def read_sets(name: str, value: Any, *, tuples: bool) -> list[Row]:
    """Return the ids of each query, each of them once; an entry is a list or a set of ids, or a single id.

    Args:
        name: of the argument.
        value: an entry for each query.
        tuples: a tuple is an id, not a list of ids.
    """
    return [_entry(f"{name}[{i}]", row, tuples) for i, row in enumerate(_rows(name, value))]


def read_excluded(name: str, value: Any, queries: int | None, *, tuples: bool) -> list[Row]:
    """Return the ids to exclude from each query as `read_sets` does, or one row of them for all queries.

    Args:
        name: of the argument.
        value: an entry for each query; or, for all queries, a set or list of ids.
        queries: their number; None if they have several dimensions, which a list cannot tell.
        tuples: a tuple is an id, not a list of ids.
    """
    if isinstance(value, AbstractSet):
        return [set(_ids(name, value))]
    rows = _rows(name, value)
    if rows and any(_holds_ids(row, tuples) for row in rows):
        if len(rows) != queries:
            raise ValueError(
                _checks.message(
                    name,
                    f"ids for {_checks.queries(queries) if queries else 'all queries'}, as in retrieved",
                    len(rows),
                )
            )
        return read_sets(name, rows, tuples=tuples)
    if len(rows) == queries and queries > 1:
        expected = "[[id], ...] for one id a query, or a set of ids for all queries"
        raise ValueError(_checks.message(name, expected, f"{queries} ids for {queries} queries"))
    return [set(_ids(name, rows))]


def hold_tuples(rows: Iterable[Row]) -> bool:
    """Return True if any of the ids is a tuple."""
    return any(isinstance(item, tuple) for row in rows for item in row)


def kinds(ids: Collection[Hashable]) -> set[str]:
    """Return the types of the ids, by name; of tuples also the types of what they hold."""
    types = set(map(type, ids))
    names = kinds_of(each for each in types if not issubclass(each, tuple))
    if any(issubclass(each, tuple) for each in types):
        names |= {f"tuple of {', '.join(sorted(kinds(item)))}" for item in ids if isinstance(item, tuple)}
    return names


def kinds_of(types: Iterable[type]) -> set[str]:
    """Return the names of ``types``; integers of all kinds have one name, and so have strings."""
    bases = (next((base for base in (Integral, str) if issubclass(each, base)), each) for each in types)
    return {"int" if base is Integral else base.__name__ for base in bases}


def check_kinds(found: dict[str, set[str]], what: str = "ids") -> None:
    """Refuse ids of several types: ``"8"`` and ``8`` never match, and would only ever be silent misses.

    Args:
        found: name of the argument: `kinds` of its ids; the other arguments have to be as the first.
        what: the word for the ids.
    """
    (first, have), *others = found.items()
    if len(have) > 1:
        raise TypeError(_checks.message(first, f"{what} of one type", ", ".join(sorted(have))))
    for name, want in others:
        if len(have | want) > 1:
            expected = f"{', '.join(have)} {what}, as {first}" if have else f"{what} of one type"
            raise TypeError(_checks.message(name, expected, ", ".join(sorted(want))))


def pad(name: str, rows: Sequence[Row], padding: int, device: torch.device) -> Tensor:
    """Return integer ids as a tensor ``(queries, longest)``, short rows filled with ``padding``."""
    longest = max(map(len, rows), default=0)
    padded = [[*row, *[padding] * (longest - len(row))] for row in rows]
    try:
        ids = np.array(padded, dtype=np.int64).reshape(len(rows), longest)
    except OverflowError:
        raise ValueError(_checks.message(name, "ids within int64, as a tensor's", "larger ones")) from None
    return torch.from_numpy(ids).to(device)


def rank_lists(
    retrieved: list[Row], relevant: list[Row], exclude: list[Row] | None = None, *, padding: Hashable, unique: bool
) -> Ranks:
    """Rank the first relevant id of each list, a query at a time.

    Args:
        retrieved: lists of ids.
        relevant: sets of ids, as many.
        exclude: sets of ids, as many, or one for all.
        padding: stands for no id.
        unique: leave repeats out.
    """
    nothing = {padding}
    wanted = [set(ids) - nothing for ids in relevant]
    excluded = [set(ids) - nothing for ids in exclude or [set()]]
    excluded = excluded * len(wanted) if len(excluded) == 1 else excluded
    positions, outcomes = [], []
    for row, ids, out in zip(retrieved, wanted, excluded, strict=True):
        position = _first(row, ids, out, padding, unique)
        positions.append(position or 0)
        missing = Outcome.MISSED if ids else Outcome.EMPTY
        outcomes.append(missing.value if position is None else 1)
    higher = torch.tensor(positions, dtype=torch.int64, device="cpu")
    several = torch.tensor([len(ids) > 1 for ids in wanted], dtype=torch.bool, device="cpu")
    relevant_found = torch.tensor(outcomes, dtype=torch.int64, device="cpu")
    return Ranks(higher, torch.zeros_like(higher), relevant_found, with_several(torch.zeros_like(higher), several))


def _first(row: Row, wanted: Row, excluded: Row, padding: Hashable, unique: bool) -> int | None:
    """Return the position of the first relevant id among those that are counted; None if there is none."""
    position = 0
    seen: set[Hashable] = set()
    for item in row:
        if item in wanted:
            return position
        if item in excluded or item in seen:
            continue
        position += 1
        if unique and item != padding:
            seen.add(item)
    return None


def _rows(name: str, value: Any) -> Sequence[Any]:
    rows = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(rows, (str, bytes)) or not isinstance(rows, Sequence):
        expected = "a tensor, or a list with an entry for each query"
        raise TypeError(_checks.message(name, expected, type(value).__name__))
    return rows


def _holds_ids(row: Any, tuples: bool) -> bool:
    """Return True if ``row`` is several ids, not one."""
    if hasattr(row, "tolist"):  # arrays and tensors; NumPy's numbers are one id
        return getattr(row, "ndim", 1) > 0
    return isinstance(row, (list, AbstractSet)) or (isinstance(row, tuple) and not tuples)


def _entry(name: str, row: Any, tuples: bool) -> set[Hashable]:
    if _holds_ids(row, tuples):
        return set(_ids(name, row))
    return set(_ids(name, [row.tolist() if hasattr(row, "tolist") else row]))


def _ids(name: str, row: Any, *, ordered: bool = False) -> list[Hashable]:
    """Return a row of ids as a list; arrays and tensors are unpacked, since their elements don't hash by value."""
    if hasattr(row, "tolist"):
        row = row.tolist()
    if isinstance(row, (str, bytes)) or not isinstance(row, Sequence if ordered else (Sequence, AbstractSet)):
        raise TypeError(_checks.message(name, "a list of ids", repr(row)))
    ids = list(row)
    for kind in set(map(type, ids)):
        if issubclass(kind, Tensor) or not issubclass(kind, Hashable):
            expected = "hashable ids (tuples, not lists)" if issubclass(kind, list) else "hashable ids (not tensors)"
            raise TypeError(_checks.message(name, expected, kind.__name__))
    try:
        set(ids)  # a tuple is hashable only if what it holds is
    except TypeError:
        raise TypeError(_checks.message(name, "hashable ids", "tuples of what is not")) from None
    return ids
