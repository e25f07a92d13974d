"""Negatives for sampled evaluation: distinct, never the target, never an excluded item, and reproducible."""

from __future__ import annotations

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch.kernels import backend
from mrr_torch.ranks.ids import first_of_each, occurs

# Rounds of drawing and rejecting before the rest is drawn from the list of what is left.
ROUNDS = 32


@torch.no_grad()
def sample_negatives(
    target: Tensor,
    num_items: int,
    num_negatives: int = 99,
    *,
    exclude: Tensor | None = None,
    replacement: bool = False,
    weights: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw negatives for each query, and put the target in front of them.

    Draw once, before training, and keep the result with the data set: negatives that are drawn anew for every epoch or
    model make values that can't be compared. Score the items of the result and hand the scores to a metric with
    ``num_negatives`` set: column 0 is the target.

    Args:
        target: ``(B,)``; integer id of the relevant item, 0..num_items-1.
        num_items: size of the catalogue.
        num_negatives: how many negatives to draw for each query.
        exclude: ids that are never drawn, ``(B, H)`` per query (a user's history) or ``(H,)`` for all (the padding
            item), padded with negative ids. The target is never drawn, listed or not.
        replacement: False: the negatives of a query are distinct. True: they may repeat.
        weights: ``(num_items,)``; draw in proportion to these (popularity), not uniformly. Without replacement each
            draw is in proportion among the items that are left.
        generator: of the device of ``target``; the same state gives the same ids.

    Returns:
        ``(B, 1 + num_negatives)`` int64 ids on the device of ``target``; column 0 is the target.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: a wrong shape, device or value, or a query with too few items to draw from; it names the first.

    >>> ids = sample_negatives(torch.tensor([3, 0]), 5, 2, exclude=torch.tensor([0]))
    >>> ids.shape, ids[:, 0]
    (torch.Size([2, 3]), tensor([3, 0]))
    """
    num_items = _checks.positive_int("num_items", num_items)
    num_negatives = _checks.positive_int("num_negatives", num_negatives)
    if not isinstance(target, Tensor):
        raise TypeError(_checks.message("target", "a tensor of integer ids", type(target).__name__))
    target = _checks.integer_tensor("target", target, target)
    if target.ndim != 1:
        raise ValueError(_checks.message("target", "shape (B,)", f"shape {_checks.shape(target)}"))
    low, high = (int(target.min()), int(target.max())) if target.numel() else (0, 0)
    if low < 0 or high >= num_items:
        got = f"ids from {low} to {high}"
        raise ValueError(_checks.message("target", f"ids in 0..{num_items - 1}", got))
    if weights is not None:
        weights = _check_weights(weights, num_items, target)
    unwanted = _unwanted(target, exclude, num_items)
    _check_enough(unwanted, num_items, 1 if replacement else num_negatives, weights)

    drawn = torch.full((target.shape[0], num_negatives), -1, dtype=torch.int64, device=target.device)
    cumulated = None if weights is None else weights.cumsum(0)
    # A catalogue not much larger than what is taken from it is drawn from the list of what is left.
    crowded = not replacement and num_items <= 2 * (num_negatives + unwanted.shape[1])
    for _ in range(0 if crowded else ROUNDS):
        rows = (drawn < 0).any(1).nonzero()[:, 0]
        if rows.numel() == 0:
            break
        # Reading a stream of independent draws, and leaving out what is unwanted or has been seen, is drawing without
        # replacement; so the places that are still free are filled from the stream, round by round.
        kept = drawn[rows]
        new = torch.where(kept < 0, _independent(kept.shape, num_items, cumulated, generator, kept.device), kept)
        # Few rows have a repeat or an unwanted item: one sort of the ids tells which, and these are looked at closely.
        together = backend(target).sort_rows(torch.cat([unwanted[rows], new], 1))
        doubtful = (together[:, 1:] == together[:, :-1]).any(1).nonzero()[:, 0]
        near, taken = new[doubtful], kept[doubtful] >= 0
        fine = taken | ~occurs(near, unwanted[rows[doubtful]])
        if not replacement:
            fine &= first_of_each(near, taken)
        new[doubtful] = torch.where(fine, near, -1)
        drawn[rows] = new
    rows = (drawn < 0).any(1).nonzero()[:, 0]
    for part in backend(target).row_tiles(rows.numel(), num_items):
        index = rows[part]
        drawn[index] = _from_what_is_left(drawn[index], unwanted[index], num_items, weights, replacement, generator)
    return torch.cat([target[:, None], drawn], 1)


def _check_weights(weights: Tensor, num_items: int, target: Tensor) -> Tensor:
    if not isinstance(weights, Tensor):
        raise TypeError(_checks.message("weights", "a tensor", type(weights).__name__))
    _checks.same_shape("weights", weights, (num_items,))
    _checks.same_device("weights", weights, target)
    weights = weights.double()
    if not bool((weights >= 0).all()) or not bool(weights.sum().isfinite()):
        raise ValueError(_checks.message("weights", "finite numbers >= 0", f"{float(weights.min())} among them"))
    return weights


def _unwanted(target: Tensor, exclude: Tensor | None, num_items: int) -> Tensor:
    """Return the target and the excluded ids of each query, ``(B, 1 + H)``; padding and repeats are all negative."""
    listed = target[:, None]
    if exclude is not None:
        ids = _checks.integer_tensor("exclude", exclude, target)
        if ids.ndim == 1:
            ids = ids.expand(target.shape[0], -1)
        elif ids.ndim != 2 or ids.shape[0] != target.shape[0]:
            wanted = f"shape ({target.shape[0]}, H), or (H,) for all queries"
            raise ValueError(_checks.message("exclude", wanted, f"shape {_checks.shape(ids)}"))
        if ids.numel() and int(ids.max()) >= num_items:
            raise ValueError(
                _checks.message("exclude", f"ids in 0..{num_items - 1}, padded with negative ids", int(ids.max()))
            )
        listed = torch.cat([listed, ids], 1)
    listed = backend(target).sort_rows(listed)
    padding = listed < 0
    padding[:, 1:] |= listed[:, 1:] == listed[:, :-1]
    return torch.where(padding, -1 - torch.arange(listed.shape[1], device=target.device), listed)


def _check_enough(unwanted: Tensor, num_items: int, needed: int, weights: Tensor | None) -> None:
    if weights is None:
        left = num_items - (unwanted >= 0).sum(1)
    else:
        possible = weights > 0
        left = possible.sum() - (possible[unwanted.clamp(min=0)] & (unwanted >= 0)).sum(1)
    short = left < needed
    if bool(short.any()):
        row = int(short.nonzero()[0, 0])
        wanted = f"at most {int(left[row])}, the items left for query {row}"
        raise ValueError(_checks.message("num_negatives", wanted, needed))


def _independent(
    shape: torch.Size, num_items: int, cumulated: Tensor | None, generator: torch.Generator | None, device: torch.device
) -> Tensor:
    """Draw items independently: uniformly, or by the cumulated weights."""
    if cumulated is None:
        return torch.randint(num_items, shape, generator=generator, device=device)
    place = torch.rand(shape, generator=generator, dtype=torch.float64, device=device) * cumulated[-1]
    found = torch.searchsorted(cumulated, place, right=True)
    # Rounding may put a place at the very end; the last item that has a weight is meant.
    return found.clamp_(max=int(torch.searchsorted(cumulated, cumulated[-1])))


def _from_what_is_left(
    drawn: Tensor,
    unwanted: Tensor,
    num_items: int,
    weights: Tensor | None,
    replacement: bool,
    generator: torch.Generator | None,
) -> Tensor:
    """Fill the free places (-1) of ``drawn`` from all items that may still be drawn."""
    rate = torch.ones(num_items, dtype=torch.float64, device=drawn.device) if weights is None else weights
    rate = torch.cat([rate, rate.new_zeros(1)]).repeat(drawn.shape[0], 1)  # the last column takes the padding
    rate.scatter_(1, torch.where(unwanted < 0, num_items, unwanted), 0.0)
    free = drawn < 0
    if replacement:
        cumulated = rate.cumsum(1)
        place = torch.rand(drawn.shape, generator=generator, dtype=torch.float64, device=drawn.device)
        new = torch.searchsorted(cumulated, place * cumulated[:, -1:], right=True)
        new.clamp_(max=torch.searchsorted(cumulated, cumulated[:, -1:].contiguous()))
        return torch.where(free, new, drawn)
    rate.scatter_(1, torch.where(free, num_items, drawn), 0.0)
    # The order in which exponential clocks of these rates ring is that of draws without replacement. In logarithms,
    # where the smallest weights stay apart from none.
    clock = torch.empty_like(rate).exponential_(generator=generator).log_() - rate.log()
    order = clock.topk(int(free.sum(1).max()), dim=1, largest=False).indices
    place = (free.cumsum(1) - 1).clamp(0, order.shape[1] - 1)
    return torch.where(free, order.gather(1, place), drawn)
