"""Ranks by the fused Triton kernel, which compares scores in registers: no matrix of scores is written."""

from __future__ import annotations

import torch

from mrr_torch import _checks
from mrr_torch.catalogue.arguments import Arguments, Counted, Embeddings, Rows
from mrr_torch.catalogue.tiled import count_in_tiles
from mrr_torch.kernels.triton import PROVEN, attempt, serves_embeddings


def choose_fused(given: Arguments) -> bool:
    """Return True if the kernel is to be used: where it is asked for, or has been shown right and faster.

    Raises:
        ValueError: it is asked for and cannot serve the arguments.
    """
    if given.implementation not in ("auto", "triton"):
        return False
    if given.implementation == "auto" and not PROVEN:
        return False
    if isinstance(given.source, Embeddings):
        reason = serves_embeddings(given.source.queries, given.source.items)
    else:
        reason = "score= is a function of its own"
    if reason is not None and given.implementation == "triton":
        raise ValueError(_checks.message("implementation", "'auto' or 'streamed' here", f"'triton': {reason}"))
    return reason is None


def count_fused(given: Arguments, rows: Rows) -> Counted:
    """Count the competitors of each query's best relevant item; in tiles where the kernel does not compile."""

    def by_kernel() -> Counted:
        from mrr_torch.kernels.triton.catalogue import count_catalogue

        queries, items, bias = given.source  # type: ignore[misc]
        excluded = torch.cat(rows.excluded[1:], 1) if len(rows.excluded) > 1 else None
        _, counts = count_catalogue(queries, items, rows.relevant, bias, excluded, shared=rows.shared)
        tied, higher, competing, in_tie = counts
        none = in_tie == 0
        return Counted(higher.masked_fill(none, 0), tied.masked_fill(none, 0), in_tie, competing)

    return attempt("catalogue", by_kernel, lambda: count_in_tiles(given, rows))
