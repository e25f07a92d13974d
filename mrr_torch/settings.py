"""How ranks are taken: what has to agree for two values to be comparable, and so is part of the state's name."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any, Literal, NamedTuple, get_args

from mrr_torch import _checks
from mrr_torch.ties import TIES, Ties

SplitQueries = Literal["refuse", "gather", "separate"]
EmptyTargetAction = Literal["neg", "pos", "skip", "error"]
# Ranks that a state may hold one by one: 2 GiB.
MOST = 2**28


class Settings(NamedTuple):
    """Settings that metrics have to share to be computed from one state.

    Attributes:
        ties: the rule for tied scores.
        empty_target_action: what a query without any relevant item counts.
        ignore_index: target value or label to skip.
        num_negatives: negatives beside the target in sampled mode; None: every column competes.
        miss_index: target value of queries whose item is not in the catalogue.
        cohorts: names of the cohorts of queries that have values of their own.
        weighted: queries have weights.
        split_queries: what to do with queries of flat lists whose items come in several updates.
    """

    ties: Ties = "expected"
    empty_target_action: EmptyTargetAction = "neg"
    ignore_index: int | None = None
    num_negatives: int | None = None
    miss_index: int | None = None
    cohorts: tuple[str, ...] = ()
    weighted: bool = False
    split_queries: SplitQueries = "refuse"

    @classmethod
    def check(
        cls,
        ties: Any,
        empty_target_action: Any,
        ignore_index: Any,
        num_negatives: Any,
        miss_index: Any = None,
        cohorts: Any = None,
        weighted: Any = False,
        split_queries: Any = "refuse",
    ) -> Settings:
        """Check the settings and return them as one value."""
        _checks.one_of("ties", ties, TIES)
        _checks.one_of("empty_target_action", empty_target_action, get_args(EmptyTargetAction))
        if ignore_index is not None:
            ignore_index = _checks.integer("ignore_index", ignore_index, expected="an int or None")
        if miss_index is not None:
            miss_index = _checks.integer("miss_index", miss_index, expected="an int or None")
            if miss_index == ignore_index:
                raise ValueError(_checks.message("miss_index", "another value than ignore_index", miss_index))
        if num_negatives is not None:
            num_negatives = _checks.positive_int("num_negatives", num_negatives)
        if not isinstance(weighted, bool):
            raise TypeError(_checks.message("weighted", "a bool", repr(weighted)))
        names = _check_cohorts(cohorts)
        _checks.one_of("split_queries", split_queries, get_args(SplitQueries))
        if split_queries == "gather" and (names or weighted):
            raise ValueError(
                _checks.message("split_queries", "'refuse' or 'separate' with cohorts or weighted", "'gather'")
            )
        return cls(ties, empty_target_action, ignore_index, num_negatives, miss_index, names, weighted, split_queries)

    @property
    def state_name(self) -> str:
        """The state's name, which says all that changes its contents.

        torchmetrics merges, for good, metrics whose states agree in name and value after the first batch; a batch
        without ties, say, can't tell two tie rules apart.
        """
        mode = "full" if self.num_negatives is None else f"sampled{self.num_negatives}"
        name = f"ranks_{self.ties}_{self.empty_target_action}_ignore_{_word(self.ignore_index)}_{mode}"
        if self.miss_index is not None:
            name += f"_miss_{_word(self.miss_index)}"
        if self.cohorts:
            name += "_cohorts_" + "_".join(cohort.encode().hex() for cohort in self.cohorts)
        if self.split_queries != "refuse":
            name += f"_{self.split_queries}"
        return name + ("_weighted" if self.weighted else "")

    @property
    def candidates_name(self) -> str:
        """The name of the state that keeps the range of the number of candidates."""
        return f"candidates_of_{self.state_name}"

    def changed(self) -> dict[str, Any]:
        """Return the settings that are not the default."""
        given = {name: list(value) if name == "cohorts" else value for name, value in self._asdict().items()}
        return {name: value for name, value in given.items() if getattr(self, name) != self._field_defaults[name]}


def _check_cohorts(cohorts: Any) -> tuple[str, ...]:
    """Return the names of the cohorts: those given, or numbers."""
    if cohorts is None:
        return ()
    expected = "a positive int, or a sequence of different names"
    if isinstance(cohorts, Sequence) and not isinstance(cohorts, str):
        if not all(isinstance(name, str) and name for name in cohorts):
            raise TypeError(_checks.message("cohorts", expected, repr(cohorts)))
        if not cohorts or len(set(cohorts)) != len(cohorts):
            raise ValueError(_checks.message("cohorts", expected, repr(cohorts)))
        return tuple(cohorts)
    number = _checks.integer("cohorts", cohorts, expected=expected)
    if number < 1:
        raise ValueError(_checks.message("cohorts", expected, number))
    return tuple(map(str, range(number)))


def _word(number: int | None) -> str:
    return "none" if number is None else str(number).replace("-", "minus")


def check_cuts(top_k: Any, *, needs_cut_off: bool) -> list[int | None]:
    """Check the cut-off or the sequence of them, and return them as a list; None stands for no cut-off."""
    several = isinstance(top_k, Sequence) and not isinstance(top_k, str)
    cuts = [check_top_k(k) for k in (top_k if several else [top_k])]
    if needs_cut_off and None in cuts:
        raise ValueError(_checks.message("top_k", "a positive int or a sequence of them", top_k))
    if not cuts or len(set(cuts)) != len(cuts):
        raise ValueError(_checks.message("top_k", "one or more different cut-offs", list(top_k)))
    largest = max(k or 0 for k in cuts)
    if largest > MOST:
        expected = f"at most {MOST:,}, since the state holds each rank up to it"
        raise ValueError(_checks.message("top_k", expected, f"{largest:,}"))
    return cuts


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


def refuse_other_names(kwargs: dict[str, Any]) -> None:
    """Refuse what other packages call their arguments, with a hint."""
    hints = {
        "k": "top_k, the name of the cut-off here",
        "aggregation": "no such argument; RankDistribution(...).quantile(0.5) gives the median rank",
    }
    for name, expected in hints.items():
        if name in kwargs:
            raise ValueError(_checks.message(name, expected, f"{name}={kwargs[name]!r}"))
