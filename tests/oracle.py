"""What the package must agree with: slow and independent, plain lists and fractions, one query at a time.

Each input form becomes the *standing* of one query: {rank: probability}, or an outcome that is not a rank. Every metric
is then a gain over the standing. Nothing here comes from the package.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from fractions import Fraction
from itertools import combinations
from math import isnan, log2

Standing = dict[Fraction, Fraction] | str | int
COUNT = "count"  # in place of a tie rule: the number of relevant items instead of a standing
EMPTY, NOT_RETRIEVED, NAN, SKIPPED = "no relevant item", "not retrieved", "score is NaN", "skipped"


def standing(items: Sequence[tuple[float, bool]], ties: str) -> Standing:
    """Rank the first relevant one among ``(score, is relevant)`` items that take part."""
    relevant = [score for score, is_relevant in items if is_relevant]
    if ties == COUNT:
        return len(relevant)
    if not relevant:
        return EMPTY
    if all(isnan(score) for score in relevant):
        return NAN
    best = max(score for score in relevant if not isnan(score))
    others = [score for score, is_relevant in items if not is_relevant and not isnan(score)]
    higher = sum(score > best for score in others)
    tied = sum(score == best for score in others)
    first, last = higher + 1, higher + 1 + tied  # before, and after, all tied others
    if ties != "expected":
        rank = {"optimistic": first, "pessimistic": last, "realistic": Fraction(first + last, 2)}[ties]
        return {Fraction(rank): Fraction(1)}
    # In a random order of the tied items, every set of places is as likely as any other to hold the relevant ones.
    level = relevant.count(best)
    outcomes = Counter(min(taken) for taken in combinations(range(first, last + level), level))
    return {Fraction(rank): Fraction(times, outcomes.total()) for rank, times in outcomes.items()}


def by_relevance(
    scores: Sequence[float],
    labels: Sequence[int],
    ties: str,
    *,
    mask: Sequence[bool] | None = None,
    ignore_index: int | None = None,
    candidates: Sequence[int] | None = None,
    exclude: Collection[int] = (),
    exclude_mask: Sequence[bool] | None = None,
) -> Standing:
    """Rank the first relevant column (label > 0). ``exclude`` holds ids, ``exclude_mask`` says it of each column."""
    columns = range(len(scores))
    ids = columns if candidates is None else candidates
    present = [c for c in columns if (mask is None or mask[c]) and labels[c] != ignore_index and ids[c] >= 0]
    relevant = [c for c in present if labels[c] > 0]
    column_of: dict[int, int] = {}  # an item is its first relevant column, else its first column
    for c in relevant + [c for c in present if c not in relevant]:
        column_of.setdefault(ids[c], c)
    out = {c for c in columns if ids[c] in exclude or (exclude_mask is not None and exclude_mask[c])} - set(relevant)
    return standing([(scores[c], c in relevant) for c in column_of.values() if c not in out], ties)


def by_target(
    scores: Sequence[float],
    target: int,
    ties: str,
    *,
    mask: Sequence[bool] | None = None,
    ignore_index: int | None = None,
    **options,
) -> Standing:
    """Rank column ``target``, which is never masked out; ``ignore_index`` here is a target, not a label."""
    if target == ignore_index:
        return SKIPPED
    labels = [int(c == target) for c in range(len(scores))]
    mask = None if mask is None else [real or c == target for c, real in enumerate(mask)]
    return by_relevance(scores, labels, ties, mask=mask, **options)


def by_group(
    scores: Sequence[float],
    labels: Sequence[int],
    indexes: Sequence[int],
    ties: str,
    *,
    mask: Sequence[bool] | None = None,
    ignore_index: int | None = None,
    exclude_mask: Sequence[bool] | None = None,
) -> list[Standing]:
    """Rank the first relevant item of each query of a flat list, the queries in the order of their ids.

    Items that are masked or ignored are not there; a query of which nothing is there has no relevant item.
    """

    def part(values: Sequence | None, query: int) -> list | None:
        return None if values is None else [v for v, index in zip(values, indexes, strict=True) if index == query]

    return [
        by_relevance(
            part(scores, query),
            part(labels, query),
            ties,
            mask=part(mask, query),
            ignore_index=ignore_index,
            exclude_mask=part(exclude_mask, query),
        )
        for query in sorted(set(indexes))
    ]


def by_retrieval(
    retrieved: Sequence[Hashable],
    relevant: Collection[Hashable],
    ties: str = "",
    *,
    padding: Hashable = None,
    exclude: Collection[Hashable] = (),
    unique: bool = False,
) -> Standing:
    """Rank the first relevant id of a list by its position as displayed, once what is left out is gone."""
    relevant = [item for item in relevant if item != padding]
    if ties == COUNT:
        return len(set(relevant))
    if not relevant:
        return EMPTY
    shown: list[Hashable] = []
    for item in retrieved:
        is_id = item != padding
        if (is_id and item in exclude and item not in relevant) or (is_id and unique and item in shown):
            continue
        shown.append(item)
    hits = [position for position, item in enumerate(shown, start=1) if item in relevant]
    return {Fraction(hits[0]): Fraction(1)} if hits else NOT_RETRIEVED


def by_run(
    run: dict[Hashable, dict[Hashable, float]], grades: dict[Hashable, int], query: Hashable, level: int, ties: str
) -> Standing:
    """Rank the best relevant document of a query among those of the run."""
    scores = run.get(query, {})
    relevant = [document for document in grades if grades[document] >= level]
    if not relevant:
        return EMPTY
    ranked = standing([(score, document in relevant) for document, score in scores.items()], ties)
    return NOT_RETRIEVED if ranked == EMPTY else ranked


def reciprocal(rank: Fraction) -> Fraction:
    return 1 / rank


def hit(rank: Fraction) -> Fraction:
    return Fraction(1)


def discount(rank: Fraction) -> float:
    return 1 / log2(1 + rank)


def value(
    query: Standing,
    gain: Callable[[Fraction], Fraction | float] = reciprocal,
    top_k: int | None = None,
    empty_target_action: str = "neg",
) -> Fraction | float | None:
    """Return what a query counts: the mean gain of its ranks up to ``top_k``; None if it is not counted at all."""
    if query == SKIPPED or (query == EMPTY and empty_target_action == "skip"):
        return None
    if query == EMPTY:
        return Fraction({"neg": 0, "pos": 1}[empty_target_action])
    if query in (NAN, NOT_RETRIEVED):
        return Fraction(0)
    return sum((mass * gain(rank) for rank, mass in query.items() if top_k is None or rank <= top_k), Fraction(0))


def mean(values: Sequence[Fraction | float | None]) -> Fraction | float:
    """Return the mean of the values that count; 0 if there are none."""
    counted = [v for v in values if v is not None]
    return sum(counted, Fraction(0)) / len(counted) if counted else Fraction(0)
