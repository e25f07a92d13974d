"""Ranks from a run and its qrels: dictionaries of scored documents and graded documents, as pytrec_eval has them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import chain, islice
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch

from mrr_torch import _checks
from mrr_torch.ranks import Outcome, Ranks, lists, with_several

# Queries that are counted together: their scores are copied into one array.
BLOCK = 1024

Run = Mapping[Hashable, Mapping[Hashable, float]]
Qrels = Mapping[Hashable, Mapping[Hashable, int]]


def rank_run(run: Run, qrels: Qrels, *, relevance_level: int = 1) -> Ranks:
    """Rank the best-scored relevant document of each query of ``qrels``.

    Equal scores are ties: any tie rule can be applied to them. A query whose relevant documents are not in ``run``, or
    that is not there itself, is a miss: reciprocal rank 0, and it stays in the mean. Queries that only ``run`` has are
    left out. A NaN score is never above the relevant document's; if all relevant documents of a query score NaN, it is
    a miss that is warned of (`Outcome.NAN`).

    Args:
        run: ``{query: {document: score}}``, higher is better.
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
    kind = _check(run, qrels)
    queries = iter(qrels.items())
    blocks = []
    while block := [(run.get(query, {}), grades) for query, grades in islice(queries, BLOCK)]:
        try:
            blocks.append(_rank(block, level, kind))
        except OverflowError:
            raise ValueError(_checks.message("run", "scores within int64 or float64", "larger ones")) from None
    fields = np.concatenate(blocks, axis=1) if blocks else np.zeros((5, 0), dtype=np.int64)
    higher, tied, relevant, candidates, several = torch.from_numpy(fields).unbind()
    return Ranks(higher.clone(), tied.clone(), relevant.clone(), with_several(candidates, several > 1))


def _rank(queries: list[tuple[Mapping[Hashable, Any], Mapping[Hashable, Any]]], level: int, kind: type) -> np.ndarray:
    """Return the four fields of `Ranks` and the number of relevant documents, each ``(queries,)``.

    Args:
        queries: each query's part of the run, and of the qrels.
        level: the lowest grade of a relevant document.
        kind: the type in which scores are compared.
    """
    fields = np.zeros((5, len(queries)), dtype=np.int64)
    higher, tied, relevant, candidates, several = fields
    ranked, best, equals = [], [], []
    for i, (scores, grades) in enumerate(queries):
        wanted = [document for document, grade in grades.items() if grade >= level]
        found = [kind(scores[document]) for document in wanted if document in scores]
        candidates[i], several[i] = len(scores), len(wanted)
        numbers = [score for score in found if score == score]
        if numbers:
            ranked.append(i)
            best.append(max(numbers))
            equals.append(numbers.count(best[-1]))
        elif wanted:
            relevant[i] = Outcome.NAN if found else Outcome.MISSED
    if ranked:
        rows = [queries[i][0] for i in ranked]
        lengths = candidates[ranked]
        starts = np.cumsum(lengths) - lengths
        score = np.fromiter(chain.from_iterable(row.values() for row in rows), dtype=kind, count=int(lengths.sum()))
        threshold = np.repeat(np.array(best, dtype=kind), lengths)
        relevant[ranked] = equals
        higher[ranked] = np.add.reduceat(score > threshold, starts, dtype=np.int64)
        tied[ranked] = np.add.reduceat(score == threshold, starts, dtype=np.int64) - relevant[ranked]
    return fields


def _check(run: Any, qrels: Any) -> type:
    """Check types, ids and grades of the queries of ``qrels``; return the type in which scores are compared."""
    for name, value in (("run", run), ("qrels", qrels)):
        if not isinstance(value, Mapping):
            raise TypeError(_checks.message(name, "a dictionary {query: {document: number}}", type(value).__name__))
    lists.check_kinds({"qrels": lists.kinds(qrels.keys()), "run": lists.kinds(run.keys())}, "query ids")
    graded: set[type] = set()  # the types of documents
    ranked: set[type] = set()
    numbers: set[type] = set()  # the types of scores
    for query, grades in qrels.items():
        _check_grades(f"qrels[{query!r}]", grades)
        graded.update(map(type, grades))
        scores = run.get(query, {})
        if not isinstance(scores, Mapping):
            raise TypeError(_checks.message(f"run[{query!r}]", "{document: score}", type(scores).__name__))
        ranked.update(map(type, scores))
        numbers.update(map(type, scores.values()))
    documents = {"qrels": lists.kinds_of(graded), "run": lists.kinds_of(ranked)}
    lists.check_kinds(documents, "document ids")
    for each in numbers:
        if not issubclass(each, (Real, np.bool_)):
            raise TypeError(_checks.message("run", "scores that are real numbers", each.__name__))
    return int if all(issubclass(each, (Integral, np.bool_)) for each in numbers) else float


def _check_grades(name: str, grades: Any) -> None:
    if not isinstance(grades, Mapping):
        raise TypeError(_checks.message(name, "{document: grade}", type(grades).__name__))
    for each in set(map(type, grades.values())):
        if not issubclass(each, (Integral, np.bool_)):
            raise TypeError(_checks.message(name, "integer grades", each.__name__))
    least = min(grades.values(), default=0)
    if least < 0:
        raise ValueError(_checks.message(name, "grades >= 0 (0 for not relevant)", least))
