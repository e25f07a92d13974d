"""What ``update`` is given for each query beside its rank: ids, cohorts, weights."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor

from mrr_torch import _checks
from mrr_torch._device import state_dtype
from mrr_torch.kernels import backend
from mrr_torch.ranks import Outcome
from mrr_torch.ranks.batch import Ranked
from mrr_torch.settings import Settings

# Squares of weights, and sums of them, stay finite.
HEAVIEST = 1e100


class Extras(NamedTuple):
    """What ``update`` is given for each query beside its rank, all of the queries' shape; None where it is not given.

    Attributes:
        query_ids: the queries' ids in a fixed set, int64.
        cohort: the queries' cohorts, int64.
        weights: the queries' weights, float.
    """

    query_ids: Tensor | None = None
    cohort: Tensor | None = None
    weights: Tensor | None = None

    def padded(self, rows: int) -> Extras:
        """Return cohorts and weights ``(rows,)`` for flat lists, whose ranks have padding rows on an accelerator.

        What is added is valid for no query, so too few cohorts or weights are errors all the same.
        """
        cohort, weights = self.cohort, self.weights
        if _shorter(cohort, rows, _checks.INTEGERS):
            cohort = torch.nn.functional.pad(cohort.long(), (0, rows - cohort.shape[0]), value=-1)
        if _shorter(weights, rows, _checks.SCORES - {torch.bool}):
            weights = weights.to(state_dtype(weights.device))
            weights = torch.nn.functional.pad(weights, (0, rows - weights.shape[0]), value=-1)
        return self._replace(cohort=cohort, weights=weights)


def _shorter(value: Any, rows: int, dtypes: set[torch.dtype]) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.ndim == 1 and value.shape[0] < rows and value.dtype in dtypes


def check_extras(extras: Extras, ranked: Ranked, settings: Settings) -> tuple[Extras, Ranked]:
    """Check cohorts and weights, which are given where the settings ask for them and only there."""
    relevant = ranked.ranks.relevant
    asked = (
        ("cohort", extras.cohort, "cohorts", bool(settings.cohorts)),
        ("weights", extras.weights, "weighted", settings.weighted),
    )
    for name, value, setting, needed in asked:
        if (value is not None) != needed:
            expected = f"a tensor of the queries' shape, with {setting}=" if needed else f"None without {setting}="
            raise ValueError(_checks.message(name, expected, type(value).__name__))
    if extras.cohort is None and extras.weights is None:
        return extras, ranked
    if extras.cohort is not None:
        cohort, last = _checks.integer_tensor("cohort", extras.cohort, relevant), len(settings.cohorts) - 1
        _checks.same_shape("cohort", cohort, _checks.shape(relevant))
        if not backend(cohort).within(cohort, last + 1):
            outside = ((cohort < 0) | (cohort > last)) & (relevant != Outcome.PADDING.value)
            invalid = _checks.refuse(outside, "cohort", f"ids in 0..{last}", lambda: int(cohort[outside][0]))
            relevant, cohort = _checks.mark(relevant, invalid, Outcome.BAD_COHORT), cohort.clamp(0, last)
        extras = extras._replace(cohort=cohort)
    if extras.weights is not None:
        given = _checks.numbers_tensor("weights", extras.weights, relevant)
        _checks.same_shape("weights", given, _checks.shape(relevant))
        weights = given.to(state_dtype(relevant.device))
        wrong = ~((weights >= 0) & (weights <= HEAVIEST))
        expected = f"finite numbers >= 0, at most {HEAVIEST:.0e}"
        invalid = _checks.refuse(wrong, "weights", expected, lambda: float(weights[wrong][0]))
        padding = relevant == Outcome.PADDING.value
        relevant = _checks.mark(relevant, None if invalid is None else invalid & ~padding, Outcome.BAD_WEIGHTS)
        extras = extras._replace(weights=weights if invalid is None else weights.masked_fill(wrong, 0.0))
    return extras, ranked._replace(ranks=ranked.ranks._replace(relevant=relevant))
