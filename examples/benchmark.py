"""Time, memory, host reads and values of mrr_torch and of other ways to the same number, one table per workload.

`python examples/benchmark.py` runs everything on a CPU; `--device cuda`, `--only sampled small`, `--scale 0.01` and
`--json FILE` do what they say. The tables are Markdown. Packages that are not installed are skipped.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import torch
from measuring import Row, Skipped, measure, need, rates
from torch import Tensor
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.retrieval import RetrievalMRR

from mrr_torch import (
    HitRate,
    MeanReciprocalRank,
    NormalizedDCG,
    mean_reciprocal_rank,
    rank_catalogue,
    rank_retrieved,
    ranking_metrics,
)

LEGEND = """\
- ms: median over rounds that call all rows, each in another order; ratio: to the first row; peak MiB: growth of the
  peak memory in one call.
- host reads: operators that hand values, or sizes that depend on them, to the host; an accelerator is waited for then.
  On a CPU the checks of values that mrr_torch leaves to `compute` on an accelerator are among them.
- launches: operators for which an accelerator launches a kernel, Triton's own not among them.
- value: MRR, or MRR@10 where the row says so; equal: within a relative 1e-6 of the mean over all orders of tied items,
  computed in float64 by this script. Inputs are in the form that each row takes before the clock starts."""
PACKAGES = ("mrr_torch", "torch", "torchmetrics", "numpy", "torcheval", "torch_geometric", "ranx")


def oracle(scores: Tensor, relevant: Tensor) -> tuple[float, float]:
    """Return MRR and MRR@10, each the mean over all orders of tied items, place by place."""
    full, at_10, step = 0.0, 0.0, max(1, 2**22 // scores.shape[1])
    for part, mask in zip(scores.split(step), relevant.split(step), strict=True):
        part = part.double()
        best = part.masked_fill(~mask, -torch.inf).amax(1, keepdim=True)
        counts = ((part > best).sum(1), ((part == best) & ~mask).sum(1), ((part == best) & mask).sum(1))
        for higher, others, wanted in zip(*(count.tolist() for count in counts), strict=True):
            for place in range(1, others + 2 if wanted else 0):  # where the first wanted one may stand in the tie
                chance = math.comb(others + wanted - place, wanted - 1) / math.comb(others + wanted, wanted)
                full += chance / (higher + place)
                at_10 += chance / (higher + place) * (higher + place <= 10)
    return full / len(scores), at_10 / len(scores)


def ours(right: float, inputs: Callable[[], Any], negatives: int | None = None, **given: Any) -> list[Row]:
    # The same queries come again and again. What an update leaves to wait, `compute` adds up.
    updated, computed = (MeanReciprocalRank(num_negatives=negatives, split_queries="separate") for _ in range(2))

    def function() -> Tensor:
        return mean_reciprocal_rank(*inputs(), num_negatives=negatives, **given)

    def update(metric: MeanReciprocalRank) -> MeanReciprocalRank:
        metric.update(*inputs(), **given)
        return metric

    return [
        Row("mrr_torch, function", function, right),
        Row("mrr_torch, update", lambda: update(updated), right, MeanReciprocalRank.compute),
        Row("mrr_torch, update + compute", lambda: update(computed).compute(), right),
    ]


def by_comparison(scores: Tensor, own: Tensor) -> Tensor:
    return (1 / (1 + (scores > own).sum(1))).mean()


def first_hit(hits: Tensor) -> Tensor:
    return torch.where(hits.any(1), 1 / (1 + hits.int().argmax(1)), 0.0).mean()


def by_topk(scores: Tensor, relevant: Tensor) -> Tensor:
    return first_hit(relevant.gather(1, scores.topk(10).indices))


def peer(name: str, prepare: Callable[..., Callable[[], Any]], right: float, *inputs: Any, needs: float = 0) -> Row:
    return Row(name, lambda: prepare(*inputs), right, lazy=True, needs=needs)


def retrieval_mrr(preds: Tensor, relevant: Tensor, indexes: Tensor | None = None) -> Callable[[], Tensor]:
    if indexes is None:
        indexes = torch.arange(len(preds)).repeat_interleave(preds.shape[1])
    preds, target = preds.flatten(), relevant.flatten().long()

    def run() -> Tensor:
        metric = RetrievalMRR()  # it holds on to its inputs, so a new one each time
        metric.update(preds, target, indexes=indexes)
        return metric.compute()

    return run


def torcheval_mrr(scores: Tensor, target: Tensor) -> Callable[[], Tensor]:
    function = import_module("torcheval.metrics.functional").reciprocal_rank
    return lambda: function(scores, target).mean()


def pyg_mrr(k: int, retrieved: Callable[[], Tensor], labels: Tensor) -> Callable[[], Tensor]:
    metric = import_module("torch_geometric.metrics").LinkPredMRR(k).to(labels.device)

    def run() -> Tensor:
        metric.reset()
        metric.update(retrieved(), labels)
        return metric.compute()

    return run


def ranx_mrr(ranked: Callable[[], tuple[Tensor, Tensor]], ids: Tensor, relevant: Tensor) -> Callable[[], float]:
    """Give ranx arrays: ids and scores of each list, which it takes for sorted, and ids and relevance."""

    def array(*parts: Tensor) -> Any:
        return torch.stack([part.double() for part in parts], -1).cpu().numpy()

    evaluate, qrels = import_module("ranx").evaluate, array(ids, relevant)
    threads = min(torch.get_num_threads(), os.cpu_count() or 1)
    return lambda: evaluate(qrels, array(*ranked()), "mrr", threads=threads)


def on_scores(
    scores: Tensor, relevant: Tensor, target: Tensor | None, given: Any, flat: Any, **options: Any
) -> list[Row]:
    """Return the rows for a matrix of scores; this package takes it as `given`, torchmetrics as `flat`."""
    (full, at_10), number = oracle(scores, relevant), scores.numel()
    ids = torch.arange(scores.shape[1]).expand_as(scores)

    def own() -> Tensor:
        if target is not None:
            return scores.gather(1, target[:, None])
        return scores.masked_fill(~relevant, -torch.inf).amax(1, keepdim=True)

    rows = [
        *ours(full, lambda: given, **options),
        Row("1 + (scores > own).sum(1)", lambda: by_comparison(scores, own()), full, needs=13 * number),
        Row("topk(10), @10", lambda: by_topk(scores, relevant), at_10),
        Row("scores.sum(1), the floor", lambda: scores.sum(1)),
        peer("torchmetrics RetrievalMRR", retrieval_mrr, full, *flat, needs=80 * number),
        peer("torcheval reciprocal_rank", torcheval_mrr, full, scores, target, needs=9 * number),
        peer(
            "topk(10) + PyG LinkPredMRR, @10", pyg_mrr, at_10, 10, lambda: scores.topk(10).indices, relevant.nonzero().T
        ),
        peer("sort + ranx", ranx_mrr, full, lambda: scores.sort(1, True)[::-1], ids, relevant, needs=80 * number),
    ]
    return [row for row in rows if target is not None or "torcheval" not in row.name]  # which knows one target only


def size(args: argparse.Namespace, queries: int, columns: int) -> tuple[int, int]:
    factor = args.scale if columns <= 100 else args.scale**0.5
    return max(4, round(queries * factor)), columns if columns <= 100 else max(200, round(columns * factor))


def draw(relevant: Tensor, ties: float) -> Tensor:
    """Return logits, higher for what is relevant; in a part of the queries another item ties with the best of it."""
    scores = torch.randn(relevant.shape)
    scores[relevant] += 2
    for row, wanted in zip(scores[: math.ceil(ties * len(scores))], relevant, strict=False):
        row[row.argmin()] = row[wanted].max()
    return scores


def one_target(args: argparse.Namespace, queries: int, columns: int, **options: Any) -> tuple[str, list[Row]]:
    queries, columns = size(args, queries, columns)
    need(10.0 * queries * columns)
    target = torch.randint(0, 1 if options else columns, (queries,))  # of sampled mode: column 0
    relevant = torch.arange(columns) == target[:, None]
    scores = draw(relevant, args.ties)
    given = (scores,) if options else (scores, target)
    title = f"{queries:,} queries x {columns:,} scores, one relevant"
    return title, on_scores(scores, relevant, target, given, (scores, relevant), **options)


def relevance(args: argparse.Namespace) -> tuple[str, list[Row]]:
    queries, columns = size(args, 512, 2_000)
    relevant = (torch.rand(queries, columns) < 4 / columns).scatter_(1, torch.randint(0, columns, (queries, 1)), True)
    given = draw(relevant, args.ties), relevant
    return f"{queries:,} queries x {columns:,} scores, about 5 relevant", on_scores(*given, None, given, given)


def ragged(args: argparse.Namespace, shortest: int, longest: int) -> tuple[str, list[Row]]:
    queries, _ = size(args, 20_000, longest)
    lengths = torch.randint(shortest, longest + 1, (queries,))
    real = torch.arange(longest) < lengths[:, None]
    relevant = (torch.rand(queries, longest) < 0.02) & real
    relevant.scatter_(1, (torch.rand(queries, 1) * lengths[:, None]).long(), True)
    scores = draw(relevant, args.ties).masked_fill(~real, -torch.inf)
    indexes = torch.arange(queries).repeat_interleave(lengths)
    flat = scores[real], relevant[real], indexes
    each = longest if shortest == longest else f"{shortest} to {longest}"
    title = f"{queries:,} queries x {each} scores, flat with indexes; for rows that take no indexes a padded matrix"
    return title, on_scores(scores, relevant, None, flat[:2], flat, indexes=indexes)


def retrieved(args: argparse.Namespace) -> tuple[str, list[Row]]:
    queries, columns = size(args, 20_000, 100)
    ids = torch.randint(0, 1_000_000, (queries, columns))
    places = 1 / torch.arange(1.0, columns + 1).expand(queries, -1)
    wanted = ids.gather(1, (torch.rand(queries, 1) ** 4 * columns).long())
    wanted[torch.rand(queries) < 0.2] = 1_000_000  # not retrieved
    full, _ = oracle(places, ids == wanted)
    labels, ones = torch.stack([torch.arange(queries), wanted[:, 0]]), torch.ones_like(wanted)
    return f"{queries:,} lists of {columns} retrieved ids, one relevant", [
        *ours(full, lambda: (rank_retrieved(ids, wanted),)),
        Row("first of ids == wanted", lambda: first_hit(ids == wanted), full),
        Row("ids.sum(1), the floor", lambda: ids.sum(1)),
        peer("torchmetrics RetrievalMRR", retrieval_mrr, full, places, ids == wanted),
        peer("PyG LinkPredMRR", pyg_mrr, full, columns, lambda: ids, labels),
        peer("ranx", ranx_mrr, full, lambda: (ids, places), wanted, ones),
    ]


def embeddings(args: argparse.Namespace) -> tuple[str, list[Row]]:
    queries, number = size(args, 512, 100_000)
    need(20.0 * queries * number)
    # Whole numbers: products are exact in any order of summation, so that the same items tie everywhere.
    items, target = torch.randint(-127, 128, (number, 64)).float(), torch.randint(0, number, (queries, 1))
    users = (0.4 * items[target[:, 0]] + 60 * torch.randn(queries, 64)).round().clamp(-127, 127)
    exclude, tiles = torch.randint(0, number, (queries, 200)), items.split(8_192 if items.is_cuda else 1_024)
    relevant, buffer = torch.arange(number) == target, users.new_empty(queries, len(tiles[0]))

    def matrix() -> Tensor:
        return users @ items.T

    def without(scores: Tensor) -> Tensor:
        own = scores.gather(1, target)
        return scores.scatter_(1, exclude, -torch.inf).scatter_(1, target, own)

    def plain(scores: Tensor) -> Tensor:
        return by_comparison(scores, scores.gather(1, target))

    def streamed(**options: Any) -> Tensor:
        return mean_reciprocal_rank(rank_catalogue(users, items, target[:, 0], **options))

    def tiled() -> None:
        for tile in tiles:
            torch.mm(users, tile.T, out=buffer[:, : len(tile)])

    exact = users.double() @ items.double().T
    (full, at_10), (fewer, _) = oracle(exact, relevant), oracle(without(exact), relevant)
    return f"{queries:,} queries x {number:,} items, embeddings of 64", [
        Row("mrr_torch, rank_catalogue", streamed, full),
        Row("mrr_torch, rank_catalogue, 200 excluded", lambda: streamed(exclude=exclude), fewer),
        Row("full matrix, 1 + (scores > own).sum(1)", lambda: plain(matrix()), full),
        Row("full matrix, the same, 200 excluded", lambda: plain(without(matrix())), fewer),
        Row("full matrix, topk(10), @10", lambda: by_topk(matrix(), relevant), at_10),
        Row("matmul in tiles alone, the floor", tiled),
        Row("matmul that writes all scores", matrix),
    ] + [Row("mrr_torch, rank_catalogue, triton", lambda: streamed(implementation="triton"), full)] * items.is_cuda


def small(args: argparse.Namespace) -> tuple[str, list[Row]]:
    target = torch.randint(0, 100, (32, 1))
    relevant = torch.arange(100) == target
    scores = draw(relevant, args.ties)
    batch, (_, at_10) = (scores, target[:, 0]), oracle(scores, relevant)
    mean, nine = MeanMetric().to(scores.device), ranking_metrics([5, 10, 20])
    values = 1 / (1 + (scores > scores.gather(1, target)).sum(1))

    def calls(name: str, make: Callable[[], Any], mrr: Callable[[Any], Any]) -> list[Row]:
        updated, forwarded, computed = make(), make(), make()  # what one leaves to another would be in its time
        return [
            Row(f"{name}, update", lambda: updated.update(*batch), at_10, lambda _: mrr(updated.compute())),
            Row(f"{name}, forward", lambda: forwarded(*batch), at_10, mrr),
            Row(f"{name}, compute", lambda: computed.compute(), at_10, mrr, lambda: computed.update(*batch)),
        ]

    def collection() -> MetricCollection:
        return MetricCollection([MeanReciprocalRank(10), HitRate(10), NormalizedDCG(10)])

    rows = [
        Row("torchmetrics MeanMetric, update", lambda: mean.update(values)),
        *calls("mrr_torch MRR@10", lambda: MeanReciprocalRank(10), float),
        *calls("mrr_torch three metrics", collection, lambda found: found["MeanReciprocalRank"]),
        Row("mrr_torch ranking_metrics of nine, forward", lambda: nine(*batch), at_10, lambda found: found["mrr@10"]),
        Row("mrr_torch, function @10", lambda: mean_reciprocal_rank(*batch, 10), at_10),
    ]
    return "batches of 32 x 100 scores; three metrics: a MetricCollection of MRR@10, HitRate@10, NDCG@10", rows


def growth(args: argparse.Namespace) -> tuple[str, list[Row]]:
    def row(columns: int) -> Row:
        need(10.0 * 512 * columns)
        target = torch.randint(0, columns, (512,))
        relevant = torch.arange(columns) == target[:, None]
        scores = draw(relevant, args.ties)
        _, update, _ = ours(oracle(scores, relevant)[0], lambda: (scores, target))
        return replace(update, name=f"{update.name}, 512 x {columns:,}", scores=512 * columns)

    fewest = max(4, round(200 * args.scale))
    return "one relevant among more and more scores", [row(fewest * 10**decade) for decade in range(4)]


WORKLOADS: dict[str, Callable[[argparse.Namespace], tuple[str, list[Row]]]] = {
    "full": lambda args: one_target(args, 512, 20_000),
    "large": lambda args: one_target(args, 4_096, 100_000),
    "sampled": lambda args: one_target(args, 20_000, 100, negatives=99),
    "relevance": relevance,
    "flat": lambda args: ragged(args, 50, 50),
    "ragged": lambda args: ragged(args, 1, 99),
    "retrieved": retrieved,
    "embeddings": embeddings,
    "small": small,
    "growth": growth,
}


def table(rows: list[Row]) -> str:
    """Return the rows in Markdown."""
    columns = ["ms", "ratio", "peak MiB", "host reads", "value", "equal", "launches"]
    columns += ["ns per score", "state bytes"] if rows[0].scores else []

    def digits(number: float) -> str:
        return f"{number:,.{max(0, 2 - math.floor(math.log10(number)))}f}"

    def cells(found: dict[str, Any]) -> list[str]:
        if "skipped" in found:
            return [f"skipped: {found['skipped']}", *[""] * (len(columns) - 1)]
        peak, equal = found["peak_bytes"], {True: "yes", False: "no", None: "-"}[found.get("equal")]
        texts = [digits(found["seconds"] * 1e3), digits(found["ratio"])]
        texts += ["-" if peak is None else f"{peak / 2**20:,.1f}", f"{found['host_reads']:,}"]
        texts += [f"{found['value']:.6f}" if "value" in found else "-", equal, f"{found['launches']:,}"]
        if "scores" in found:
            texts += [digits(found["seconds"] / found["scores"] * 1e9), f"{found['state_bytes']:,}"]
        return texts

    lines = [["", *columns], ["---"] + ["---:"] * len(columns), *([row.name, *cells(row.found)] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine(args: argparse.Namespace) -> dict[str, str]:
    """Return what the numbers depend on."""
    info, versions = Path("/proc/cpuinfo"), {}
    cpu = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    device = f"{torch.cuda.get_device_name(args.device)}, " if args.device.type == "cuda" else ""
    host = f"{cpu[1] if cpu else platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    load = f", load {os.getloadavg()[0]:.1f} before the start" if hasattr(os, "getloadavg") else ""
    return {
        **({"rates": rates(args.device)} if args.device.type == "cuda" else {}),
        "machine": f"{device}{host}{load}; {platform.system()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "settings": f"scale {args.scale:g}, {args.repeats} repeats, ties in {args.ties:.0%} of the queries",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=f"NAMEs: {', '.join(WORKLOADS)}")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of scores")
    parser.add_argument("--ties", type=float, default=0.05, help="part of the queries in which another item ties")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    gc.freeze()  # what is imported is never garbage, and takes most of the time of a collection
    header, results, wrong = machine(args), {}, False
    print("\n".join(f"- {name}: {text}" for name, text in header.items()), LEGEND, sep="\n")
    for name in args.only:
        torch.manual_seed(args.seed)  # each time, so that a table is the same without the others
        try:
            with args.device:
                title, rows = WORKLOADS[name](args)
        except Skipped as reason:
            title, rows = f"skipped: {reason}", []
        measure(name, rows, args.repeats, args.device)
        print(f"\n### {name}: {title}\n\n{table(rows) if rows else ''}", flush=True)
        results[name] = {"title": title, "rows": [{"name": row.name, **row.found} for row in rows]}
        wrong |= any(row.name.startswith("mrr_torch") and not row.found.get("equal", True) for row in rows)
    if args.json:
        args.json.write_text(json.dumps({"machine": header, "workloads": results}, indent=2) + "\n", encoding="utf-8")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
