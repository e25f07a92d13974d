"""Adding queries to the vector of their group: of all queries, or of their cohort."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mrr_torch.kernels import backend


class Vectors(NamedTuple):
    """Vectors that queries are added to in place, each query with its weight to the vector of its group.

    On a CPU queries are added one after the other: a group's sums are to the last bit those of its queries alone.

    Attributes:
        vectors: ``(groups, size)``, contiguous.
        group: ``(queries,)`` int64; None where there is one group.
        weights: ``(queries,)`` of the dtype of the vectors; None for 1 each.
    """

    vectors: Tensor
    group: Tensor | None = None
    weights: Tensor | None = None

    @property
    def simple(self) -> bool:
        """True if all queries add 1 each to one vector."""
        return self.group is None and self.weights is None

    def add(self, index: Tensor) -> None:
        """Add each query at an ``index`` of its own."""
        place = index if self.group is None else torch.add(index, self.group, alpha=self.vectors.shape[1])
        if self.weights is None:
            backend(place).accumulate(self.vectors.view(-1), place)
        else:
            self.vectors.view(-1).index_add_(0, place, self.weights)

    def add_far(self, index: int, mass: Tensor) -> None:
        """Add ``mass`` ``(k, queries)`` from index ``index`` on, in any order of the queries."""
        if self.simple:
            self.vectors[0, index : index + mass.shape[0]].add_(mass.sum(1))
        else:
            for place, part in enumerate(mass, index):
                self.add_at(place, part)

    def add_at(self, index: int, mass: Tensor, rows: Tensor | None = None) -> None:
        """Add ``mass`` ``(n,)`` at one index; of all queries, or of those at ``rows`` ``(n,)``."""
        self.vectors[:, index].add_(self.total(mass, rows))

    def total(self, mass: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the sum of ``mass`` ``(n,)`` in each group; of all queries, or of those at ``rows`` ``(n,)``."""
        if mass.dtype == torch.bool and self.simple:
            return mass.sum()  # whole numbers: in any order
        total = self.vectors.new_zeros(self.vectors.shape[0])
        self._add_to(total, mass, rows)
        return total

    def add_rows(self, first: int, mass: Tensor, rows: Tensor | None) -> None:
        """Add ``mass`` ``(n, width)`` from index ``first`` on; of all queries, or of those at ``rows`` ``(n,)``."""
        self._add_to(self.vectors[:, first : first + mass.shape[1]], mass, rows)

    def add_evenly(self, bins: int, start: Tensor, stop: Tensor, share: Tensor, rows: Tensor | None) -> None:
        """Add ``share`` ``(n,)`` at each index from ``start`` to before ``stop``, all within 0..bins."""
        groups = self.vectors.shape[0]
        share = self._weighted(share.to(self.vectors.dtype), rows)  # type: ignore[assignment]
        # Two entries for a query: differences of the mass from index to index.
        change = self.vectors.new_zeros(groups * (bins + 1))
        for edge, sign in ((start, 1), (stop, -1)):
            place = edge if self.group is None else torch.add(edge, at(self.group, rows), alpha=bins + 1)
            change.index_add_(0, place, share, alpha=sign)
        self.vectors[:, :bins].add_(change.view(groups, -1).cumsum(1)[:, :bins])

    def _add_to(self, sums: Tensor, mass: Tensor, rows: Tensor | None) -> None:
        group = None if self.group is None else at(self.group, rows)
        backend(sums).add_rows(sums, group, self._weighted(mass.to(sums.dtype), rows))

    def _weighted(self, mass: Tensor | None, rows: Tensor | None) -> Tensor | None:
        if self.weights is None:
            return mass
        weights = at(self.weights, rows)
        return weights if mass is None else mass * (weights if mass.ndim == 1 else weights[:, None])


def at(values: Tensor, rows: Tensor | None) -> Tensor:
    """Return the values at ``rows`` ``(n,)``; all if None."""
    return values if rows is None else values.index_select(0, rows)
