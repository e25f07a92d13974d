"""What `rank_catalogue` is given: checked once for all implementations, queries' dimensions flattened to one."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.catalogue.scorers import ScoreFunction, cut_function
from mrr_torch.kernels import backend

IMPLEMENTATIONS = ("auto", "reference", "streamed")


class Embeddings(NamedTuple):
    """Queries and items whose products are the scores."""

    queries: Tensor  # (Q, D)
    items: Tensor  # (N, D)
    bias: Tensor | None  # (N,)


class Arguments(NamedTuple):
    """The arguments of `rank_catalogue`. Embeddings keep their dtype: a converted copy of the table may not fit."""

    source: Embeddings | ScoreFunction
    num_items: int
    target: Tensor  # (Q, M) int64
    several: bool  # M relevant items, padded with negative ids; else M is 1
    missed: Tensor | None  # (Q,) bool; the target is miss_index
    exclude: Tensor | None  # (Q, H) int64, or (1, H) for all queries
    ids: Tensor | None  # (N,) int64
    tile: int | None
    implementation: str
    shape: tuple[int, ...]  # what Q was


class Rows(NamedTuple):
    """Rows of the table of items, as the implementations need them. Excluded rows beyond the table mean nothing."""

    relevant: Tensor  # (Q, M); different items, padded with -1
    excluded: list[Tensor]  # each (Q, K): rows that do not compete for a query; the relevant ones among them
    shared: Tensor | None  # (N,) bool; rows that compete for no query


class Counted(NamedTuple):
    """What an implementation counts for each query, all ``(Q,)`` int64."""

    higher: Tensor  # 0 where no relevant item has a score
    tied: Tensor
    relevant: Tensor  # relevant items with the best of their scores; 0 where none has one
    competing: Tensor


def check_arguments(
    query_embeddings: Any,
    item_embeddings: Any,
    target: Any,
    *,
    score: Any,
    num_items: Any,
    bias: Any,
    exclude: Any,
    ids: Any,
    miss_index: Any,
    tile: Any,
    implementation: Any,
) -> Arguments:
    """Check types, shapes and devices; ids are checked by `check_ids`, where the number of items is known."""
    implementation = _checks.one_of("implementation", implementation, IMPLEMENTATIONS)
    tile = None if tile is None else _checks.positive_int("tile", tile)
    source: Embeddings | ScoreFunction
    if score is None:
        _checks.refuse_given({"num_items": num_items}, "None without score")
        source, shape = _check_embeddings(query_embeddings, item_embeddings, bias)
        where, num_items = source.queries, source.items.shape[0]
    else:
        given = {"query_embeddings": query_embeddings, "item_embeddings": item_embeddings, "bias": bias}
        _checks.refuse_given(given, "None beside score")
        where = _checks.dense_tensor("target", target, "a tensor of integer ids")
        num_items = _checks.positive_int("num_items", num_items)
        source = _check_function(score, num_items, where, num_items if implementation == "reference" else tile)
        shape = source.shape
    target, several = _check_target(target, shape, where)
    missed = _check_missed(miss_index, target, several)
    return Arguments(
        source=source,
        num_items=num_items,
        target=target if missed is None else target.masked_fill(missed[:, None], -1),
        several=several,
        missed=missed,
        exclude=_check_exclude(exclude, shape, where),
        ids=check_items("ids", ids, num_items, where),
        tile=tile,
        implementation=implementation,
        shape=shape,
    )


def check_floating(name: str, value: Any) -> Tensor:
    """Check that ``value`` is a plain tensor of floating-point numbers, and detach it."""
    _checks.dense_tensor(name, value, "a floating-point tensor")
    if not value.is_floating_point():
        raise TypeError(_checks.message(name, "a floating-point tensor", value.dtype))
    if hasattr(value, "placements"):
        raise TypeError(_checks.message(name, "a plain tensor (only item_embeddings may be sharded)", "a DTensor"))
    if value.ndim == 0:
        raise ValueError(_checks.message(name, "shape (..., D)", "shape ()"))
    return value.detach()  # type: ignore[no-any-return]


def check_items(name: str, value: Any, num_items: int, like: Tensor) -> Tensor | None:
    """Check ``bias`` or ``ids``, one for each item, on the device of ``like``; None stays None."""
    if value is None:
        return None
    tensor = check_floating(name, value) if name == "bias" else _integers(name, value, like)
    _checks.same_shape(name, tensor, (num_items,))
    _same_device(name, tensor, like)
    return tensor


def check_ids(given: Arguments, num_items: int) -> tuple[Tensor | None, Tensor | None]:
    """Refuse targets and excluded ids beyond the items where they can be read on the host.

    Returns:
        Elsewhere the masks ``(Q,)`` of the queries with such a target, and with such an excluded id.
    """
    judged, exclude, beyond = judged_target(given), given.exclude, None
    expected = f"ids in 0..{num_items - 1}"
    wrong = (judged < 0) | (judged >= num_items)
    outside = _checks.refuse(wrong, "target", expected, lambda: int(judged[wrong][0]))
    if exclude is not None and given.ids is None:  # beside ids, an id that no item has means nothing
        beyond = _checks.refuse(
            exclude >= num_items,
            "exclude",
            f"{expected}, padded with negative ids",
            lambda: f"{int(exclude.max())}{remedy(int(exclude.max()), num_items)}",
        )
    return None if outside is None else outside.any(1), None if beyond is None else beyond.any(1)


def judged_target(given: Arguments) -> Tensor:
    """Return the targets ``(Q, M)``, those that need not be items (padding, misses) replaced by 0."""
    if given.several:
        return given.target.clamp(min=0)
    return given.target if given.missed is None else given.target.masked_fill(given.missed[:, None], 0)


def remedy(excluded: int, num_items: int) -> str:
    """Return what to do where ``exclude`` looks padded with the number of items, else nothing."""
    if excluded != num_items:
        return ""
    return f", the number of items: if that is padding, pass exclude.masked_fill(exclude == {num_items}, -1)"


def find_rows(target: Tensor, exclude: Tensor | None, ids: Tensor | None, num_items: int) -> Rows:
    """Find the rows of relevant and of excluded items.

    Args:
        target: ``(Q, M)``; rows of relevant items; what is no row of the table is padding.
        exclude: ``(Q, H)``, or ``(1, H)`` for all queries, or None; rows, or ids where ``ids`` are given.
        ids: ``(N,)``; the item of each row, negative for padding rows; or None.
        num_items: N.
    """
    relevant = torch.where((target >= 0) & (target < num_items), target, -1)
    if relevant.shape[1] > 1:
        relevant = backend(relevant).sort_rows(relevant)
    named, excluded, shared = relevant, [relevant], None
    if ids is not None:
        # The first row of an item stands for it; its copies compete for no query, nor do padding rows.
        ordered, order = ids.sort(stable=True)

        def first_row(wanted: Tensor) -> Tensor:
            position = torch.searchsorted(ordered, wanted.contiguous()).clamp(max=num_items - 1)
            return torch.where((ordered[position] == wanted) & (wanted >= 0), order[position], -1)

        repeated = torch.zeros_like(ids, dtype=torch.bool)
        repeated[1:] = ordered[1:] == ordered[:-1]
        shared = torch.empty_like(repeated).scatter_(0, order, repeated) | (ids < 0)
        firsts = first_row(torch.where(relevant >= 0, ids[relevant.clamp(min=0)], -1))
        excluded.append(firsts)
        named = torch.where(firsts >= 0, firsts, relevant)
        exclude = None if exclude is None else first_row(exclude)
    relevant = _first_of_each(relevant, named)
    if exclude is not None and exclude.shape[0] == 1:
        marks = torch.zeros(num_items + 1, dtype=torch.bool, device=exclude.device)
        listed = torch.where((exclude[0] >= 0) & (exclude[0] < num_items), exclude[0], num_items)
        marks = marks.index_fill_(0, listed, True)[:-1]  # what is no item is marked behind the items
        shared = marks if shared is None else shared | marks
    elif exclude is not None:
        excluded.append(exclude)
    return Rows(relevant, excluded, shared)


def score_type(*embeddings: Tensor) -> torch.dtype:
    """Return the type of the scores: float32, or float64 where some embeddings have it.

    Products of half precision are accumulated in float32, since in bfloat16 scores would tie that do not.
    """
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in embeddings) else torch.float32


def _check_embeddings(queries: Any, items: Any, bias: Any) -> tuple[Embeddings, tuple[int, ...]]:
    queries, items = check_floating("query_embeddings", queries), check_floating("item_embeddings", items)
    if items.ndim != 2:
        raise ValueError(_checks.message("item_embeddings", "shape (N, D), N >= 1", f"shape {_checks.shape(items)}"))
    if queries.shape[-1] != items.shape[1]:
        wanted = f"shape (..., {items.shape[1]}), as item_embeddings"
        raise ValueError(_checks.message("query_embeddings", wanted, f"shape {_checks.shape(queries)}"))
    _same_device("item_embeddings", items, queries)
    bias = check_items("bias", bias, items.shape[0], queries)
    return Embeddings(_checks.flatten(queries), items, bias), _checks.shape(queries)[:-1]


def _check_function(score: Any, num_items: int, target: Tensor, tile: int | None) -> ScoreFunction:
    if not callable(score):
        raise TypeError(_checks.message("score", "a function of (first, last)", type(score).__name__))
    # How many queries there are is known once it was called: as many as targets, or fewer where they have several.
    return ScoreFunction(score, num_items, cut_function(target.numel(), num_items, tile, target), target)


def _check_target(target: Any, shape: tuple[int, ...], where: Tensor) -> tuple[Tensor, bool]:
    target = _integers("target", target, where)
    if _checks.shape(target) == shape:
        return target.reshape(-1, 1), False
    if target.ndim == 0 or _checks.shape(target)[:-1] != shape:
        wanted = f"shape {shape}, or {(*shape, 'M')} for several relevant items"
        raise ValueError(_checks.message("target", wanted, f"shape {_checks.shape(target)}"))
    target = _checks.flatten(target)
    return (target if target.shape[1] else target.new_full((target.shape[0], 1), -1)), True


def _check_exclude(exclude: Any, shape: tuple[int, ...], where: Tensor) -> Tensor | None:
    if exclude is None:
        return None
    exclude = _integers("exclude", exclude, where)
    if exclude.ndim == 0 or (exclude.ndim > 1 and _checks.shape(exclude)[:-1] != shape):
        wanted = f"shape {(*shape, 'H')}, or (H,) for all queries"
        raise ValueError(_checks.message("exclude", wanted, f"shape {_checks.shape(exclude)}"))
    return _checks.flatten(exclude)


def _check_missed(miss_index: Any, target: Tensor, several: bool) -> Tensor | None:
    if miss_index is None:
        return None
    number = _checks.integer("miss_index", miss_index)
    if several:
        raise ValueError(_checks.message("miss_index", "None beside several relevant items", number))
    return target[:, 0] == number


def _first_of_each(relevant: Tensor, named: Tensor) -> Tensor:
    """Keep, of each row's relevant rows (sorted) that share a name, the first; the others become padding."""
    if relevant.shape[1] == 1:
        return relevant
    named, order = named.sort(dim=1, stable=True)
    relevant = relevant.gather(1, order)
    repeated = torch.zeros_like(relevant, dtype=torch.bool)
    repeated[:, 1:] = named[:, 1:] == named[:, :-1]
    return relevant.masked_fill(repeated, -1)


def _integers(name: str, value: Any, where: Tensor) -> Tensor:
    value = _checks.integer_tensor(name, value, value if isinstance(value, Tensor) else where)
    _same_device(name, value, where)
    return value  # type: ignore[no-any-return]


def _same_device(name: str, value: Tensor, where: Tensor) -> None:
    if value.device != where.device:
        wanted = f"a tensor on {where.device}, where the others are"
        raise ValueError(_checks.message(name, wanted, value.device))
