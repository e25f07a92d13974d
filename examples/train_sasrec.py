"""Train SASRec, a transformer that predicts a user's next item, and evaluate it against GRU4Rec and popularity.

`python examples/train_sasrec.py` runs on generated data; `--data FILE` reads MovieLens `u.data` or `ratings.dat`, a
RecBole `.inter` file, or `user item` lines in order of time. Evaluation is leave-one-out, in two ways: the held-out
item ranked among the full catalogue, and among sampled negatives. Training stops by the full catalogue's validation
MRR@10; test items are ranked once, at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path

import lightning
import torch
from interactions import DataError, Interactions, core, generate, leave_one_out, read
from sasrec.data import Sequences, batches, candidates
from sasrec.losses import LOSSES
from sasrec.models import GRU4Rec, NextItemModel, Popularity, SASRec, Training
from sasrec.report import Tested, chance, evaluate, paired, table, tested
from sasrec.training import be_quiet, fit


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="FILE", help="interactions to read; generated if left out")
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", help="keep checkpoints, logs, negatives and values here"
    )
    parser.add_argument(
        "--negatives-file", type=Path, metavar="FILE", help="of sampled evaluation; kept here once drawn"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --output")
    parser.add_argument("--models", nargs="+", choices=("SASRec", "GRU4Rec"), default=["SASRec", "GRU4Rec"])
    parser.add_argument("--loss", choices=LOSSES, default="softmax", help="what training minimises (softmax)")
    parser.add_argument("--precision", choices=("32-true", "bf16-mixed"), default="32-true")
    parser.add_argument("--paired", action="store_true", help="compare the models query by query (needs SciPy)")
    for name, default, what in (
        ("users", 2000, "users to generate"),
        ("items", 1000, "items to generate"),
        ("core", 1, "drop users and items with fewer interactions than this, until none is left"),
        ("epochs", 30, "at most so many epochs"),
        ("validate-every", 1, "epochs between validations"),
        ("patience", 5, "stop after so many validations without a better MRR@10"),
        ("dim", 64, "size of the embeddings"),
        ("blocks", 2, "blocks of SASRec"),
        ("heads", 1, "heads of each block; a divisor of --dim"),
        ("max-len", 50, "last items of a history that the model looks at"),
        ("batch-size", 64, "sequences of mean length in a training batch"),
        ("train-negatives", 1, "negatives of the sampled losses, for a position (bce) or a batch"),
        ("num-negatives", 99, "negatives of each query in sampled evaluation"),
        ("devices", 1, "processes that torchrun has started, with a device each; on a CPU they use gloo"),
        ("threads", 1, "CPU threads; tensors this small gain little from more"),
    ):
        parser.add_argument(f"--{name}", type=positive, default=default, metavar="N", help=f"{what} ({default})")
    for name, default, what in (
        ("learning-rate", 3e-3, "of AdamW"),
        ("weight-decay", 0.01, "of AdamW"),
        ("dropout", 0.3, "share of activations dropped in training"),
    ):
        parser.add_argument(f"--{name}", type=float, default=default, metavar="X", help=f"{what} ({default})")
    parser.add_argument("--seed", type=int, default=0, help="of the training and the generated data (0)")
    options = parser.parse_args()
    if options.dim % options.heads:
        parser.error(f"argument --dim: expected a multiple of --heads {options.heads}, got {options.dim}")
    if options.resume and not options.output:
        parser.error("argument --resume: expected --output FOLDER beside it, got none")
    if options.devices > 1 and "LOCAL_RANK" not in os.environ:
        parser.error(
            f"argument --devices: start with `torchrun --nproc_per_node {options.devices}`, which was not used"
        )
    return options


def run(data: Interactions, options: argparse.Namespace) -> None:
    """Train the models, and print their test values beside those of popularity and the chance level."""
    split = leave_one_out(data)
    test = batches(split.test, options.max_len)
    # Negatives have a seed of their own: what differs between seeds is the training, not the test.
    ids = candidates(test, data.num_items, options.num_negatives, 0, options.negatives_file)
    sequences = Sequences(split, options.max_len, options.batch_size, options.seed)
    settings = Training(options.loss, options.train_negatives, options.learning_rate, options.weight_decay)
    models: dict[str, NextItemModel] = {}
    for name in options.models:
        lightning.seed_everything(options.seed)
        common = {"dropout": options.dropout, "training": settings}
        if name == "SASRec":
            shape = {"blocks": options.blocks, "heads": options.heads}
            model = SASRec(data.num_items, options.dim, options.max_len, **shape, **common)
        else:
            model = GRU4Rec(data.num_items, options.dim, **common)
        # The progress bar is sent to stderr, so that a redirected stdout holds the table alone.
        with contextlib.redirect_stdout(sys.stderr):
            print(fit(name, model, sequences, options))
        models[name] = model
    # Training is over; one process is enough to rank the test items, and its metrics must not wait for the others.
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    if int(os.environ.get("LOCAL_RANK", 0)):
        return
    models["popularity"] = Popularity(split.train, data.num_items)
    ranks: dict[str, Tested] = {name: tested(model, test, ids) for name, model in models.items()}
    compared = {**ranks, "chance": chance(ranks["popularity"])}
    results = evaluate(compared, options.num_negatives)
    print(table(results, compared, data.num_items, options.num_negatives))
    if options.paired:
        print("\n" + paired(ranks, options.num_negatives))
    if options.output:
        (options.output / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    options = parse()
    be_quiet()
    torch.set_num_threads(options.threads)
    try:
        data = read(options.data) if options.data else generate(options.users, options.items, options.seed)
        data = core(data, options.core)
        if not int(os.environ.get("LOCAL_RANK", 0)):
            print(data.describe(), flush=True)
        run(data, options)
    except DataError as error:
        sys.exit(f"{Path(__file__).name}: {error}")


if __name__ == "__main__":
    main()
