"""Ranks from a run and its qrels: dictionaries of scored documents and graded documents, as pytrec_eval has them."""

from __future__ import annotations

import struct
from collections.abc import Hashable, Mapping
from itertools import chain, islice
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch

from mrr_torch import _checks
from mrr_torch.ranks import Outcome, Ranks, lists, with_several

# Queries that are counted together: few enough that their scores, objects all over memory, are fetched only once.
BLOCK = 256

Run = Mapping[Hashable, Mapping[Hashable, float]]
Qrels = Mapping[Hashable, Mapping[Hashable, int]]
Numbers = Mapping[Hashable, Any]


def rank_run(run: Run, qrels: Qrels, *, relevance_level: int = 1) -> Ranks:
    """Rank the best-scored relevant document of each query of ``qrels``.

    Equal scores are ties: any tie rule can be applied to them. A query whose relevant documents are not in ``run``, or
    that is not there itself, is a miss: reciprocal rank 0, and it stays in the mean. Queries that only ``run`` has are
    left out. A NaN score is never above the relevant document's; if all relevant documents of a query score NaN, it is
    a miss that is warned of (`Outcome.NAN`).

    Args:
        run: ``{query: {document: score}}``, higher is better; compared in float64, integers exactly where all are.
        qrels: ``{query: {document: grade}}`` with integer grades.
        relevance_level: the lowest grade of a relevant document.

    Returns:
        `Ranks` of shape ``(queries,)`` on the CPU, in the order of ``qrels``; ``candidates`` is the number of a query's
        documents in ``run``.

    Raises:
        TypeError: an argument that is no dictionary of dictionaries, scores that are no numbers, grades that are no
            integers, ids of different types (``"8"`` and ``8`` never match).
        ValueError: negative grades, ``relevance_level`` below 1.

    >>> run = {"q1": {"d1": 0.9, "d2": 0.5}, "q2": {"d3": 0.2}}
    >>> rank_run(run, {"q2": {"d3": 1}, "q1": {"d1": 0, "d2": 1}, "q3": {"d1": 1}})[:3]
    (tensor([0, 1, 0]), tensor([0, 0, 0]), tensor([ 1,  1, -1]))
    """
    level = _checks.positive_int("relevance_level", relevance_level)
    for name, value in (("run", run), ("qrels", qrels)):
        if not isinstance(value, Mapping):
            raise TypeError(_checks.message(name, "a dictionary {query: {document: number}}", type(value).__name__))
    lists.check_kinds({"qrels": lists.kinds(qrels.keys()), "run": lists.kinds(run.keys())}, "query ids")
    graded: set[type] = set()  # the types of the documents
    ranked: set[type] = set()
    queries, blocks = iter(qrels.items()), [np.zeros((5, 0), dtype=np.int64)]
    while block := list(islice(queries, BLOCK)):
        grades = _documents("qrels", block)
        scores = _documents("run", [(query, run.get(query, {})) for query, _ in block])
        graded |= _types(grades)
        ranked |= _types(scores)
        blocks.append(_rank_block(scores, grades, level))
    lists.check_kinds({"qrels": lists.kinds_of(graded), "run": lists.kinds_of(ranked)}, "document ids")
    higher, tied, relevant, candidates, wanted = map(torch.from_numpy, map(np.concatenate, zip(*blocks, strict=True)))
    return Ranks(higher, tied, relevant, with_several(candidates, wanted > 1))


def _rank_block(scores: list[Numbers], grades: list[Numbers], level: int) -> np.ndarray[Any, Any]:
    """Return the fields of `Ranks` and the number of relevant documents, each ``(queries,)``."""
    _check_grades(list(chain.from_iterable(part.values() for part in grades)))
    flat: list[Any] = []
    for part in scores:
        flat += part.values()
    score, kind = _score_array(flat)
    bests, levels, numbers = [], [], []
    zero, nan, missed, empty = kind(0), Outcome.NAN.value, Outcome.MISSED.value, Outcome.EMPTY.value
    for found, judged in zip(scores, grades, strict=True):
        wanted = [document for document, grade in judged.items() if grade >= level]
        their = [kind(number) for number in map(found.get, wanted) if number is not None]
        best, outcome = max(their, default=zero), nan if their else missed if wanted else empty
        if best != best:  # `max` passes over NaN, unless it comes first
            best = max((number for number in their if number == number), default=zero)
        bests.append(best)
        levels.append(their.count(best) or outcome)
        numbers.append(len(wanted))
    relevant, candidates = np.array(levels, dtype=np.int64), np.fromiter(map(len, scores), np.int64, len(scores))
    ends = np.cumsum(candidates)
    threshold = np.repeat(np.array(bests, dtype=kind), candidates)
    counts = []
    for hits in (score > threshold, score == threshold):
        up_to = np.searchsorted(np.flatnonzero(hits), ends)
        counts.append(np.where(relevant > 0, np.diff(up_to, prepend=0), 0))
    higher, equal = counts
    return np.stack([higher, equal - relevant.clip(min=0), relevant, candidates, np.array(numbers, dtype=np.int64)])


def _documents(name: str, block: list[tuple[Hashable, Any]]) -> list[Numbers]:
    """Return the documents of each query; raise for what is no mapping."""
    parts = [part for _, part in block]
    if set(map(type, parts)) != {dict}:
        for query, part in block:
            if not isinstance(part, Mapping):
                raise TypeError(_checks.message(f"{name}[{query!r}]", "{document: number}", type(part).__name__))
    return parts


def _types(parts: list[Numbers]) -> set[type]:
    """Return the types of the documents."""
    try:
        "".join(chain.from_iterable(parts))  # type: ignore[arg-type]  # refuses all but strings, faster than a set does
    except TypeError:
        return set(map(type, chain.from_iterable(parts)))
    return {str} if any(parts) else set()


def _check_grades(grades: list[Any]) -> None:
    for each in set(map(type, grades)):
        if not issubclass(each, (Integral, np.bool_)):
            raise TypeError(_checks.message("qrels", "integer grades", each.__name__))
    least = min(grades, default=0)
    if least < 0:
        raise ValueError(_checks.message("qrels", "grades >= 0 (0 for not relevant)", least))


def _score_array(scores: list[Any]) -> tuple[np.ndarray[Any, Any], type[int] | type[float]]:
    """Return the scores as an array, and the type in which they are compared: integers exactly."""
    integers = bool(scores) and isinstance(scores[0], Integral) and all(isinstance(each, Integral) for each in scores)
    try:
        if integers:
            return np.fromiter(scores, dtype=np.int64, count=len(scores)), int
        return np.frombuffer(struct.pack(f"{len(scores)}d", *scores)), float  # refuses None, which NumPy reads as NaN
    except (struct.error, OverflowError):
        for each in scores:
            if not isinstance(each, (Real, np.bool_)):
                wrong = type(each).__name__
                raise TypeError(_checks.message("run", "scores that are real numbers", wrong)) from None
        raise ValueError(_checks.message("run", "scores within int64 or float64", "larger ones")) from None
