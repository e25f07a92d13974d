"""Hot loops over runs of equal ids on a CPU, in NumPy, which reduces runs several times faster than torch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mrr_torch._device import lowest
from mrr_torch.kernels.runs import RunCounts, Runs

# Ids that are looked at before all are.
BLOCK_OF_IDS = 1024
# Items of runs that are ranked together, so that what is known of each stays in the caches.
BLOCK = 2**18
# Share of items up to which they are found by index.
FEW = 1 / 64


def best_of_each(scores: np.ndarray, number: np.ndarray, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Return the best of the ``scores`` of each group, and how many are the best.

    Args:
        scores: of all groups, one behind the other.
        number: how many scores each group has.
        dtype: what the scores were of: it decides what stands where there is none.
    """
    best = np.full(len(number), np.nan if dtype.is_floating_point else lowest(dtype), dtype=scores.dtype)
    if len(scores):
        filled = number > 0
        # `fmax` passes over NaN, which can't be the best.
        best[filled] = np.fmax.reduceat(scores, (np.cumsum(number) - number)[filled])
    group = np.repeat(np.arange(len(number)), number)
    return best, np.bincount(group[scores == best[group]], minlength=len(number))


def runs(indexes: Tensor) -> Runs:
    """Find the runs of equal ids in sorted ``indexes`` ``(T,)``."""
    ids = indexes.numpy()
    starts = np.append(0, np.flatnonzero(ids[1:] != ids[:-1]) + 1)[: ids.shape[0]]
    lengths = np.diff(starts, append=ids.shape[0])
    even = bool((lengths == lengths[:1]).all())
    return Runs(len(starts), even, torch.from_numpy(starts), torch.from_numpy(lengths))


def runs_if_sorted(indexes: Tensor) -> Runs | None:
    """Find the runs of ``indexes`` ``(T,)``; None if they are not sorted, or may not be."""
    first = indexes.numpy()[:BLOCK_OF_IDS]
    if not (first[1:] >= first[:-1]).all():  # what is not sorted seldom is at its beginning
        return None
    even = _runs_of_one_length(indexes, max(1, int(np.count_nonzero(first == first[:1]))))
    if even is not None:
        return even
    found = runs(indexes)
    ids = ids_of_runs(indexes, found)
    return found if bool((ids[1:] > ids[:-1]).all()) else None


def _runs_of_one_length(indexes: Tensor, length: int) -> Runs | None:
    """Return the runs if ``indexes`` are sorted and all runs have this length, as in many lists."""
    ids = indexes.numpy()
    if len(ids) % length:
        return None
    first, last = ids[::length], ids[length - 1 :: length]
    if not ((first == last).all() and (first[1:] > first[:-1]).all() and (ids[1:] >= ids[:-1]).all()):
        return None
    starts = torch.arange(0, len(ids), length, device=indexes.device)
    return Runs(len(first), True, starts, torch.full_like(starts, length))


def ids_of_runs(indexes: Tensor, runs: Runs) -> Tensor:
    """Return the id of each run."""
    return indexes.index_select(0, runs.starts)


def any_in_runs(where: Tensor, runs: Runs) -> Tensor:
    """Return the mask of the runs in which ``where`` ``(T,)`` holds."""
    return torch.from_numpy(np.logical_or.reduceat(where.numpy(), runs.starts.numpy()))


def count_runs(scores: Tensor, relevant: Tensor, competes: Tensor | None, runs: Runs) -> RunCounts:
    """Count, per run, what `RunCounts` holds, in blocks of runs.

    Args:
        scores: ``(T,)``; not bool.
        relevant: ``(T,)`` bool.
        competes: ``(T,)`` bool; items that are relevant or compete; all if None.
        runs: from `runs`.
    """
    parts = [[runs.starts.new_zeros(0)] * len(RunCounts._fields)]
    assert runs.lengths is not None
    first, ends = 0, runs.starts + runs.lengths
    while first < runs.number:
        last = max(first + 1, int(torch.searchsorted(ends, runs.starts[first] + BLOCK, right=True)))
        items = slice(int(runs.starts[first]), int(ends[last - 1]))
        block = runs.starts[first:last] - items.start, runs.lengths[first:last]
        keep = None if competes is None else competes[items]
        parts.append(_count_block(scores[items], relevant[items], keep, *(x.numpy() for x in block)))
        first = last
    return RunCounts(*(torch.cat(fields) for fields in zip(*parts, strict=True)))


def _count_block(
    scores: Tensor, relevant: Tensor, competes: Tensor | None, starts: np.ndarray, lengths: np.ndarray
) -> list[Tensor]:
    # NumPy reduces runs several times faster than torch's scatters.
    score, wanted = as_numpy(scores), relevant.numpy()

    def counts(where: np.ndarray) -> np.ndarray:
        if np.count_nonzero(where) > FEW * where.size:
            return np.add.reduceat(where, starts, dtype=np.int64)
        return np.bincount(np.searchsorted(starts, np.flatnonzero(where), side="right") - 1, minlength=len(starts))

    items = np.flatnonzero(wanted)
    number = np.diff(np.searchsorted(items, starts), append=len(items))
    best, level = best_of_each(score[items], number, scores.dtype)
    threshold = np.repeat(best, lengths)
    higher, tied, candidates = score > threshold, (score == threshold) & ~wanted, lengths
    if competes is not None:
        keep = competes.numpy()
        higher, tied, candidates = higher & keep, tied & keep, counts(keep)
    return [torch.from_numpy(x) for x in (counts(higher), counts(tied) + level, level, number, candidates)]


def as_numpy(scores: Tensor) -> np.ndarray:
    """Return scores as NumPy can compare them: it has no bfloat16, and is slow with float16."""
    half = scores.dtype in (torch.float16, torch.bfloat16)
    return (scores.float() if half else scores).resolve_neg().numpy()
