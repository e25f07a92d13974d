# ruff: noqa: D102 (methods named by Lightning and torch mean what they mean there)
"""Sequences as batches: for training of like length, for evaluation with what must not be recommended beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import lightning
import torch
from interactions import DataError, Query, Split, windows
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from mrr_torch import sample_negatives

PADDING = 0


class Batch(NamedTuple):
    """Queries as tensors.

    Attributes:
        recent: ``(B, L)``; the last items, as many as the model takes, padded at the end.
        exclude: ``(B, H)``; what is not to be recommended.
        target: ``(B,)``; the held-out item.
    """

    recent: Tensor
    exclude: Tensor
    target: Tensor


def padded(sequences: list[list[int]]) -> Tensor:
    return nn.utils.rnn.pad_sequence([torch.tensor(items) for items in sequences], True, PADDING)


def batches(queries: list[Query], max_len: int, size: int = 256) -> list[Batch]:
    """Return the queries as batches of a size, in their order."""
    parts = (queries[start : start + size] for start in range(0, len(queries), size))
    return [
        Batch(
            padded([query.history[-max_len:] for query in part]),
            # What a user had before is not recommended again. Padding is excluded too, as it is no item.
            padded([[PADDING, *query.history] for query in part]),
            torch.tensor([query.target for query in part]),
        )
        for part in parts
    ]


def candidates(test: list[Batch], num_items: int, num_negatives: int, seed: int, path: Path | None) -> list[Tensor]:
    """Return for each test batch the ids ``(B, 1 + num_negatives)`` of its targets and their negatives.

    They are drawn once: all models and all runs have to get the same. With ``path``, they are read from that file, or
    kept there where there is none.
    """
    targets = torch.cat([batch.target for batch in test])
    if path is not None and path.exists():
        ids = torch.load(path, weights_only=True)
        if ids.shape != (len(targets), 1 + num_negatives) or not torch.equal(ids[:, 0], targets):
            wanted = f"{num_negatives} negatives for each of these {len(targets)} test items"
            raise DataError(f"{path}: expected {wanted}, got those of other data")
        return list(ids.split([len(batch.target) for batch in test]))
    generator = torch.Generator().manual_seed(seed)
    try:
        drawn = [
            sample_negatives(batch.target, 1 + num_items, num_negatives, exclude=batch.exclude, generator=generator)
            for batch in test
        ]
    except ValueError as error:  # a user has seen too many of the items
        raise DataError(str(error)) from error
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(torch.cat(drawn), path)
    return drawn


class Windows(Dataset[Tensor]):
    """Training sequences; an index is a list of them, that make a batch."""

    def __init__(self, sequences: list[list[int]]) -> None:
        self.sequences = sequences

    def __getitem__(self, index: list[int]) -> Tensor:
        return padded([self.sequences[number] for number in index])


class LikeLength(Sampler[list[int]]):
    """Batches of sequences of like length, each with about as many positions as ``batch_size`` mean ones.

    Most sequences are short, and padded to the longest of a random batch, most positions would be padding. Batches of
    equal size in positions give each position the same weight in training. Each process takes its share of them.
    """

    def __init__(self, lengths: list[int], batch_size: int, seed: int, processes: int = 1, process: int = 0) -> None:
        self.lengths, self.positions = lengths, batch_size * sum(lengths) / len(lengths)
        self.seed, self.processes, self.process, self.epoch = seed, processes, process, 0
        self.steps = len(self._plan(torch.Generator())) // processes
        if not self.steps:
            raise DataError(f"expected a batch for each of {processes} processes, got fewer: lower the batch size")

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def _plan(self, generator: torch.Generator) -> list[list[int]]:
        order = torch.randperm(len(self.lengths), generator=generator).tolist()
        order.sort(key=lambda number: self.lengths[number])  # stable: in random order among those of one length
        plan: list[list[int]] = []
        for number in order:
            if not plan or self.lengths[number] * (len(plan[-1]) + 1) > self.positions:
                plan.append([])
            plan[-1].append(number)
        return plan

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + self.epoch)
        plan = self._plan(generator)
        order = torch.randperm(len(plan), generator=generator).tolist()
        for number in order[self.process : self.steps * self.processes : self.processes]:
            yield plan[number]


class Sequences(lightning.LightningDataModule):
    """Training and validation of a split. Each process gets its part of the batches, none of them twice."""

    def __init__(self, split: Split, max_len: int, batch_size: int, seed: int) -> None:
        super().__init__()
        self.windows = windows(split.train, max_len)
        # Queries of like length share a batch; their order means nothing for a mean.
        self.validation = batches(sorted(split.validation, key=lambda query: len(query.history)), max_len, 512)
        self.batch_size, self.seed = batch_size, seed

    def train_dataloader(self) -> DataLoader[Tensor]:
        lengths = [len(items) for items in self.windows]
        sampler = LikeLength(lengths, self.batch_size, self.seed, self.trainer.world_size, self.trainer.global_rank)
        return DataLoader(Windows(self.windows), batch_size=None, sampler=sampler)

    def val_dataloader(self) -> DataLoader[Batch]:
        part = self.validation[self.trainer.global_rank :: self.trainer.world_size]
        return DataLoader(part, batch_size=None)
