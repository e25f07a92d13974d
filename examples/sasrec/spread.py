"""Mean and standard deviation over runs of different seeds: `python spread.py runs/*/results.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean, stdev

METRICS = ("mrr@10", "hit_rate@10", "ndcg@10")


def spread(paths: list[Path]) -> str:
    """Return a table of the runs' values, those that `train_sasrec.py --output` keeps."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    row = "{:<23}{:<12}" + 3 * "{:<20}"
    lines = [row.format(f"{len(runs)} runs", "model", *METRICS).rstrip()]
    for protocol, models in runs[0].items():
        for model in models:
            seen = ([run[protocol][model][name] for run in runs] for name in METRICS)
            lines.append(row.format(protocol, model, *(f"{mean(x):.4f} ± {stdev(x):.4f}" for x in seen)).rstrip())
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    print(spread([Path(argument) for argument in sys.argv[1:]]))
