"""Ranks from lists of retrieved ids: what an ANN index or a search engine returns, scores unknown."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrr_torch import _checks, kernels
from mrr_torch._device import to_device
from mrr_torch.ranks import Outcome, Ranks, lists, with_several

# Sets of ids up to this size are compared one by one; larger ones are sorted, and searched.
FEW = 8


@torch.no_grad()
def rank_retrieved(
    retrieved: Tensor | np.ndarray[Any, Any] | Sequence[Sequence[Hashable]],
    relevant: Tensor | np.ndarray[Any, Any] | Sequence[Iterable[Hashable] | Hashable],
    padding: Any = -1,
    *,
    exclude: Tensor | np.ndarray[Any, Any] | Iterable[Any] | None = None,
    unique: bool = False,
) -> Ranks:
    """Rank the first relevant id of each retrieved list. The rank is the position as displayed.

    A repeated id and a padding id take up positions, and the first occurrence of a relevant id counts. Relevant ids
    that were not retrieved are a miss: reciprocal rank 0, and the query stays in the mean. Tensors, NumPy arrays and
    nested lists may be combined; lists next to a tensor hold integers and go to its device.

    Args:
        retrieved: ``(..., K)`` integer ids in the order of the list; or nested lists of hashable ids, of any lengths.
        relevant: ``(...)`` or ``(..., M)`` integer ids; or a list with an entry for each query: one id, or a list, set
            or tuple of ids. Where the retrieved ids are tuples (codes of several numbers), a tuple is one id.
        padding: the id that stands for "nothing", in all arguments: it never matches. A query whose relevant ids are
            all padding has none (`Outcome.EMPTY`).
        exclude: ids left out of the lists before positions are counted, such as the query's own document: ``(..., H)``
            or a list with an entry for each query as in ``relevant``; or ``(H,)``, or a set or list of ids, for all
            queries. A relevant id is never excluded.
        unique: leave out repeats before positions are counted.

    Returns:
        `Ranks` of shape ``(...)``, with ``candidates`` 0: how many there were is not known from the list.

    Raises:
        TypeError: ids of different types (``"8"`` and ``8`` never match), float tensors.
        ValueError: different numbers of queries, a wrong shape or device; shapes that can be read in two ways.

    >>> rank_retrieved([["donut", "roll"], ["bagel"]], [{"roll"}, {"roll"}])
    Ranks(higher=tensor([1, 0]), tied=tensor([0, 0]), relevant=tensor([ 1, -1]), candidates=tensor([0, 0]))
    >>> rank_retrieved(torch.tensor([[7, 7, 4, 5]]), [5], exclude=[[4]], unique=True).higher
    tensor([1])
    """
    if not isinstance(unique, bool):
        raise TypeError(_checks.message("unique", "True or False", repr(unique)))
    given: dict[str, Any] = {"retrieved": retrieved, "relevant": relevant}
    if exclude is not None:
        given["exclude"] = exclude
    device = next((value.device for value in given.values() if isinstance(value, Tensor)), torch.device("cpu"))
    given = {name: _unpack(name, value, device) for name, value in given.items()}
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    if len(tensors) < len(given):
        given = _read(given, padding)
        if not tensors:
            return lists.rank_lists(**given, padding=padding, unique=unique)
    padding = _checks.integer("padding", padding)
    for name in given.keys() - tensors.keys():
        tensors[name] = lists.pad(name, given[name], padding, device)
    return _rank_tensors(**tensors, padding=padding, unique=unique)


def _unpack(name: str, value: Any, device: torch.device) -> Any:
    """Return an array as a tensor on ``device``, or as lists where a tensor cannot hold its ids."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind in "bfc" and value.size:  # an empty array is float by default
        raise TypeError(_checks.message(name, "integer ids, or an array of strings or objects", value.dtype))
    fits = value.dtype.kind in "bfci" or (value.dtype.kind == "u" and int(value.max(initial=0)) < 2**63)
    # A copy: torch refuses negative strides, and warns of arrays that cannot be written to.
    return to_device(torch.from_numpy(value.astype(np.int64)), device) if fits else value.tolist()


def _read(given: dict[str, Any], padding: Any) -> dict[str, Any]:
    """Return the arguments with their lists read and the types of their ids checked."""
    if not isinstance(padding, Hashable):
        raise TypeError(_checks.message("padding", "an id", type(padding).__name__))
    retrieved, relevant, exclude = (given.get(name) for name in ("retrieved", "relevant", "exclude"))
    if isinstance(retrieved, Tensor):
        queries, tuples = retrieved.shape[0] if retrieved.ndim == 2 else None, False
    else:
        retrieved = lists.read_lists("retrieved", retrieved)
        queries, tuples = len(retrieved), lists.hold_tuples(retrieved)
    if not isinstance(relevant, Tensor):
        if queries is None:
            got = f"shape {_checks.shape(given['retrieved'])}"
            raise ValueError(_checks.message("retrieved", "shape (B, K), since relevant is a list", got))
        relevant = lists.read_sets("relevant", relevant, tuples=tuples)
        if len(relevant) != queries:
            raise ValueError(
                _checks.message("relevant", f"ids for {_checks.queries(queries)}, as in retrieved", len(relevant))
            )
    read = {"retrieved": retrieved, "relevant": relevant}
    if exclude is not None:
        is_tensor = isinstance(exclude, Tensor)
        read["exclude"] = exclude if is_tensor else lists.read_excluded("exclude", exclude, queries, tuples=tuples)
    lists.check_kinds(
        {
            name: {"int"} if isinstance(rows, Tensor) else lists.kinds([i for row in rows for i in row if i != padding])
            for name, rows in read.items()
        }
    )
    return read


def _rank_tensors(
    retrieved: Tensor, relevant: Tensor, exclude: Tensor | None = None, *, padding: int, unique: bool
) -> Ranks:
    retrieved = _checks.integer_tensor("retrieved", retrieved, retrieved)
    relevant = _checks.integer_tensor("relevant", relevant, retrieved)
    _one_reading(_checks.shape(retrieved), _checks.shape(relevant))
    queries = _checks.shape(retrieved)[:-1]
    if relevant.ndim == retrieved.ndim - 1:
        relevant = relevant[..., None]
    if _checks.shape(relevant)[:-1] != queries:
        expected = f"shape {queries} or {(*queries, 'M')}"
        raise ValueError(_checks.message("relevant", expected, f"shape {_checks.shape(relevant)}"))
    ids, wanted = _checks.flatten(retrieved), _checks.flatten(relevant)
    excluded = None if exclude is None else _check_excluded(exclude, retrieved)
    position, found = _first_match(ids, wanted, excluded, padding, unique)
    is_id = wanted != padding
    outcome = _checks.mark(torch.ones_like(position), ~found, Outcome.MISSED)
    outcome = _checks.mark(outcome, ~is_id.any(1), Outcome.EMPTY)
    candidates = torch.zeros_like(position)
    if wanted.shape[1] > 1:
        span = torch.iinfo(torch.int64)
        least, most = wanted.masked_fill(~is_id, span.max).amin(1), wanted.masked_fill(~is_id, span.min).amax(1)
        candidates = with_several(candidates, least < most)
    fields = (position, torch.zeros_like(position), outcome, candidates)
    return Ranks(*(field.reshape(queries) for field in fields))


def _one_reading(retrieved: tuple[int, ...], relevant: tuple[int, ...]) -> None:
    """Refuse shapes that can be read in two ways: only ``(B, K)`` has one reading."""
    got = f"shape {retrieved} with relevant {relevant}"
    if not retrieved:
        raise ValueError(_checks.message("retrieved", "shape (..., K)", "shape ()"))
    if len(retrieved) == 1 and relevant == retrieved:
        expected = "shape (B, K) (for one query both with [None], for one id a query retrieved[:, None])"
        raise ValueError(_checks.message("retrieved", expected, got))
    if len(retrieved) > 2 and relevant in (retrieved, (*retrieved[:-2], retrieved[-1])):
        # (B, K, L) can be B queries whose K items are codes of L numbers.
        expected = (
            "shape (B, K) (codes of several numbers: give lists of tuples, or one number made of each code;"
            " queries of several dimensions: flatten them)"
        )
        raise ValueError(_checks.message("retrieved", expected, got))


def _check_excluded(exclude: Tensor, retrieved: Tensor) -> Tensor:
    """Return the ids to exclude: ``(rows, H)``, or ``(1, H)`` for all rows."""
    exclude = _checks.integer_tensor("exclude", exclude, retrieved)
    queries, given = _checks.shape(retrieved)[:-1], _checks.shape(exclude)
    if given == queries and queries != (1,) and exclude.ndim == 1:
        expected = "exclude[:, None] for one id a query, exclude[None] for ids of all queries"
        raise ValueError(_checks.message("exclude", expected, f"shape {given} for {given[0]} queries"))
    if exclude.ndim == 0 or (given[:-1] != queries and max(given[:-1], default=1) != 1):
        expected = f"shape {(*queries, 'H')} or ('H',)"
        raise ValueError(_checks.message("exclude", expected, f"shape {given}"))
    return _checks.flatten(exclude)


def _first_match(
    retrieved: Tensor, relevant: Tensor, exclude: Tensor | None, padding: int, unique: bool
) -> tuple[Tensor, Tensor]:
    """Return, per row, the position of the first relevant id, and if there is one."""
    rows, length = retrieved.shape
    first = torch.full((rows,), length, dtype=torch.int64, device=retrieved.device)
    left_out = torch.zeros_like(first)
    places = torch.arange(length, dtype=torch.int32, device=retrieved.device)
    for part in kernels.backend(retrieved).row_tiles(rows, length) if length else ():
        ids = retrieved[part]
        is_id = ids != padding
        first[part] = torch.where(_among(ids, relevant[part]) & is_id, places, length).amin(1).long()
        if exclude is None and not unique:
            continue
        gone = _repeats(ids) if unique else torch.zeros_like(is_id)
        if exclude is not None:
            gone = gone | _among(ids, exclude.expand(rows, -1)[part])
        # No id before the first relevant one is relevant, so none that is relevant is left out.
        left_out[part] = (gone & is_id & (places < first[part][:, None])).sum(1)
    found = first < length
    return (first - left_out).masked_fill(~found, 0), found


def _among(ids: Tensor, sets: Tensor) -> Tensor:
    """Return the mask of the ids ``(rows, K)`` that are in their row of ``sets`` ``(rows, H)``."""
    if sets.shape[1] <= FEW:
        found = torch.zeros_like(ids, dtype=torch.bool)
        for wanted in sets.unbind(1):
            found |= ids == wanted[:, None]
        return found
    ordered: Tensor = kernels.backend(ids).sort_rows(sets).contiguous()  # sorting keeps strides, searching warns of it
    index = torch.searchsorted(ordered, ids.contiguous()).clamp_(max=sets.shape[1] - 1)
    return ordered.gather(1, index) == ids


def _repeats(ids: Tensor) -> Tensor:
    """Return the mask of the ids ``(rows, K)`` that stand earlier in their row, too."""
    ordered, order = ids.sort(dim=1, stable=True)
    repeated = torch.zeros_like(ids, dtype=torch.bool)
    repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(repeated).scatter(1, order, repeated)
