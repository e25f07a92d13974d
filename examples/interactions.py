"""Interactions of users with items: read from the usual files or generated, and split for leave-one-out evaluation."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import accumulate
from math import isfinite
from pathlib import Path
from typing import NamedTuple

MIN_INTERACTIONS = 3  # the test item, the validation item, and a history to predict the latter from


class DataError(Exception):
    """Data that can't be used; the message says which and why."""


class Interactions(NamedTuple):
    """What each user took, in order of time.

    Attributes:
        name: where the data comes from.
        sequences: a list of items 1..num_items for each user; 0 is left free for padding.
        num_items: size of the catalogue.
    """

    name: str
    sequences: list[list[int]]
    num_items: int

    def describe(self) -> str:
        """Say how much there is of it."""
        short = sum(len(items) < MIN_INTERACTIONS for items in self.sequences)
        return (
            f"{self.name}: {sum(map(len, self.sequences)):,} interactions of {len(self.sequences):,} users with "
            f"{self.num_items:,} items; {short:,} users with fewer than {MIN_INTERACTIONS} are used for training only"
        )


class Query(NamedTuple):
    """A user's next item to be predicted.

    Attributes:
        history: all items before it.
        target: the held-out item.
    """

    history: list[int]
    target: int


class Split(NamedTuple):
    """Leave-one-out: the last item of each user is for test, the second last for validation, the rest for training."""

    train: list[list[int]]
    validation: list[Query]
    test: list[Query]


def leave_one_out(data: Interactions) -> Split:
    """Split each user's sequence. Users with fewer than three interactions are used for training only."""
    split = Split([], [], [])
    for items in data.sequences:
        if len(items) < MIN_INTERACTIONS:
            split.train.append(items)
            continue
        split.train.append(items[:-2])
        split.validation.append(Query(items[:-2], items[-2]))
        split.test.append(Query(items[:-1], items[-1]))
    if not split.test:
        raise DataError(f"{data.name}: no user has {MIN_INTERACTIONS} interactions, so there is nothing to evaluate")
    if max(map(len, split.train)) < 2:
        raise DataError(f"{data.name}: no user has two items left to train on")
    return split


def core(data: Interactions, least: int) -> Interactions:
    """Drop users and items with fewer than ``least`` interactions until none is left; renumber the items that stay."""
    sequences, size = data.sequences, 0
    while size != sum(map(len, sequences)):
        size = sum(map(len, sequences))
        taken = Counter(item for items in sequences for item in items)
        sequences = [[item for item in items if taken[item] >= least] for items in sequences]
        sequences = [items for items in sequences if len(items) >= least]
    if size == sum(map(len, data.sequences)):
        return data
    numbers = {item: number for number, item in enumerate(sorted({i for items in sequences for i in items}), 1)}
    if not numbers:
        raise DataError(f"{data.name}: no user and item has {least} interactions with the others that have")
    name = f"{data.name}, {least}-core"
    return Interactions(name, [[numbers[item] for item in items] for items in sequences], len(numbers))


def windows(sequences: list[list[int]], length: int) -> list[list[int]]:
    """Cut sequences into windows of at most ``length`` inputs and the item that follows; each item follows once."""
    return [items[max(end - length - 1, 0) : end] for items in sequences for end in range(len(items), 1, -length)]


def generate(num_users: int, num_items: int, seed: int) -> Interactions:
    """Generate sequences in which an item is mostly followed by one of its few successors, and no item repeats.

    The current item tells a lot of the next one. Popularity tells little: it is only mildly skewed.
    """
    generator = random.Random(seed)
    items = range(1, num_items + 1)
    popularity = list(accumulate((10 + item) ** -0.5 for item in items))
    successors = {item: generator.choices(items, cum_weights=popularity, k=4) for item in items}
    sequences = []
    for _ in range(num_users):
        length = min(generator.randint(5, 25), num_items)
        sequence = generator.choices(items, cum_weights=popularity)
        seen = set(sequence)
        while len(sequence) < length:
            if generator.random() < 0.8:
                following = generator.choices(successors[sequence[-1]], weights=(8, 4, 2, 1))[0]
            else:
                following = sequence[-1]
            while following in seen:
                following = generator.choices(items, cum_weights=popularity)[0]
            sequence.append(following)
            seen.add(following)
        sequences.append(sequence)
    return Interactions(f"generated, seed {seed}", sequences, num_items)


def read(path: Path) -> Interactions:
    """Read MovieLens `u.data` or `ratings.dat`, RecBole's `.inter`, or `user item` lines in order of time.

    Which of them it is shows in the first line. Every rating is an interaction, whatever its value. Ids may be any
    strings; they are numbered in their own order (2 before 10), so the order of lines means nothing where there are
    timestamps, but for those that are equal.

    Raises:
        DataError: the file can't be read as any of them; the message names the line.
    """
    by_user: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for user, item, time in _rows(path):
        by_user[user].append((time, item))
    items = {item for rows in by_user.values() for _, item in rows}
    numbers = {item: number for number, item in enumerate(_in_order(items), 1)}
    sequences = []
    for user in _in_order(by_user):
        by_time = sorted(by_user[user], key=lambda row: row[0])  # stable: equal times stay in the order of lines
        sequences.append([numbers[item] for _, item in by_time])
    return Interactions(path.name, sequences, len(numbers))


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the place (file and number) and the text of each line that is not blank."""
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                where = f"{path}:{number}"
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                except UnicodeDecodeError as error:
                    raise DataError(f"{where}: expected text in UTF-8, got {line[:20]!r}") from error
                if text.strip():
                    yield where, text
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error


class _Format(NamedTuple):
    """How a line becomes fields, how many there are, and which of them are the user, the item and the time."""

    name: str
    split: Callable[[str], list[str]]
    width: int
    user: int
    item: int
    time: int | None


def _rows(path: Path) -> Iterator[tuple[str, str, float]]:
    """Yield user, item and time of each line; the time is always 0 where there is none."""
    form = None
    for where, line in _lines(path):
        if form is None:
            form = _sniff(line, where)
            if ":token" in line:  # the header of a RecBole file
                continue
        fields = form.split(line)
        if len(fields) != form.width or not all(fields):
            raise DataError(f"{where}: expected {form.width} fields, as {form.name} has, got {line[:80]!r}")
        time = 0 if form.time is None else _time(fields[form.time], where)
        yield fields[form.user], fields[form.item], time
    if form is None:
        raise DataError(f"{path}:1: expected interactions, got an empty file")


def _sniff(line: str, where: str) -> _Format:
    """Say which format starts with this line."""
    fields = line.split("\t")
    if ":token" in line:
        names = [field.split(":")[0] for field in fields]
        for wanted in ("user_id", "item_id"):
            if wanted not in names:
                raise DataError(f"{where}: expected a column {wanted}:token in the header, got {line[:80]!r}")
        time = names.index("timestamp") if "timestamp" in names else None
        user, item = names.index("user_id"), names.index("item_id")
        return _Format("the header", lambda text: text.split("\t"), len(fields), user, item, time)
    if len(fields) == 4:
        return _Format("u.data", lambda text: text.split("\t"), 4, 0, 1, 3)
    if len(line.split("::")) == 4:
        return _Format("ratings.dat", lambda text: text.split("::"), 4, 0, 1, 3)
    if len(line.split()) == 2:
        return _Format("a file of 'user item' lines", str.split, 2, 0, 1, None)
    raise DataError(
        f"{where}: expected 'user item', 'user<tab>item<tab>rating<tab>timestamp', 'user::item::rating::timestamp' "
        f"or the header of a RecBole .inter file, got {line[:80]!r}"
    )


def _time(field: str, where: str) -> float:
    try:
        # Nanoseconds since 1970 don't fit into a float, and "8.8e8" is no int.
        time = int(field) if field.lstrip("+-").isdecimal() else float(field)
    except ValueError:
        time = float("nan")
    if not isfinite(time):
        raise DataError(f"{where}: expected a number as timestamp, got {field[:80]!r}")
    return time


def _in_order(ids: set[str] | dict[str, list[tuple[float, str]]]) -> list[str]:
    """Sort ids by length, then by character: the order of numbers, and as good as any for others."""
    return sorted(ids, key=lambda text: (len(text), text))
