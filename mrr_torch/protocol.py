"""How ranks are taken: the settings that change what a query adds to the state, and so decide what may be compared."""

from __future__ import annotations

from numbers import Real
from typing import Any, Literal, NamedTuple, get_args

from torchmetrics.utilities import rank_zero_warn

from mrr_torch import _checks
from mrr_torch.distribution import TIES, Ties
from mrr_torch.ranks.base import EMPTY, FAULTS, NAN, Ranks

EmptyTargetAction = Literal["neg", "pos", "skip", "error"]


class Protocol(NamedTuple):
    """Settings that metrics have to share to be computed from one state.

    Attributes:
        ties: the rule for tied scores.
        empty_target_action: what a query without any relevant item counts.
        ignore_index: target value or label to skip.
        num_negatives: negatives beside the target in sampled mode; None: every column competes.
    """

    ties: Ties = "expected"
    empty_target_action: EmptyTargetAction = "neg"
    ignore_index: int | None = None
    num_negatives: int | None = None

    @classmethod
    def check(cls, ties: Any, empty_target_action: Any, ignore_index: Any, num_negatives: Any) -> Protocol:
        """Check the settings and return them as one value."""
        _checks.one_of("ties", ties, TIES)
        _checks.one_of("empty_target_action", empty_target_action, get_args(EmptyTargetAction))
        if ignore_index is not None:
            ignore_index = _checks.integer("ignore_index", ignore_index, expected="an int or None")
        if num_negatives is not None:
            num_negatives = _checks.positive_int("num_negatives", num_negatives)
        return cls(ties, empty_target_action, ignore_index, num_negatives)

    @property
    def state_name(self) -> str:
        """Return the state's name, which says all that changes its contents.

        torchmetrics merges, for good, metrics whose states agree in name and value after the first batch; a batch
        without ties, say, can't tell two tie rules apart.
        """
        ignore = "none" if self.ignore_index is None else str(self.ignore_index).replace("-", "minus")
        mode = "full" if self.num_negatives is None else f"sampled{self.num_negatives}"
        return f"ranks_{self.ties}_{self.empty_target_action}_ignore_{ignore}_{mode}"

    @property
    def candidates_name(self) -> str:
        """Return the name of the state that keeps the range of the number of candidates."""
        return f"candidates_of_{self.state_name}"


def check_top_k(top_k: Any) -> int | None:
    """Check one cut-off: a positive int, or None for no cut-off."""
    return None if top_k is None else _checks.positive_int("top_k", top_k)


def check_confidence(confidence: Any) -> float | None:
    """Check a confidence level: a number between 0 and 1, or None for no interval."""
    if confidence is None:
        return None
    if isinstance(confidence, bool) or not isinstance(confidence, Real):
        raise TypeError(_checks.message("confidence", "a number between 0 and 1, or None", repr(confidence)))
    if not 0 < float(confidence) < 1:
        raise ValueError(_checks.message("confidence", "a number between 0 and 1, or None", confidence))
    return float(confidence)


def check_catalogue_size(catalogue_size: Any, num_negatives: int | None) -> int | None:
    """Check the size of the full catalogue, which has to hold the target and its negatives; None for no estimate."""
    if catalogue_size is None:
        return None
    size = _checks.positive_int("catalogue_size", catalogue_size)
    if num_negatives is None:
        raise ValueError(_checks.message("catalogue_size", "None without num_negatives", size))
    if size < 1 + num_negatives:
        raise ValueError(_checks.message("catalogue_size", f"at least 1 + num_negatives, {1 + num_negatives}", size))
    return size


def outcome_count(outcomes: list[float], code: int) -> int:
    """Return how many queries ended as ``code`` says; ``outcomes`` starts with those that were found."""
    return int(outcomes[1 - code])


def refuse_faults(outcomes: list[float], action: EmptyTargetAction) -> None:
    """Raise for bad values that could not be looked at before, and warn of targets without a score."""
    for code, message in FAULTS.items():
        if outcome_count(outcomes, code):
            raise ValueError(message.format(count=outcome_count(outcomes, code)))
    if action == "error" and outcome_count(outcomes, EMPTY):
        raise ValueError(NO_RELEVANT.format(count=outcome_count(outcomes, EMPTY)))
    if outcome_count(outcomes, NAN):
        rank_zero_warn(
            f"The score of the relevant item was NaN in {outcome_count(outcomes, NAN)} queries; they count as misses.",
            UserWarning,
        )


def refuse_empty(ranks: Ranks, action: EmptyTargetAction) -> None:
    """Raise for queries without a relevant item where ``empty_target_action="error"`` and they can be seen."""
    if action == "error" and _checks.on_host(ranks.relevant):
        count = int((ranks.relevant == EMPTY).sum())
        if count:
            raise ValueError(NO_RELEVANT.format(count=count))


NO_RELEVANT = _checks.message(
    "target", "a relevant item in every query (empty_target_action='error')", "none in {count} queries"
)
