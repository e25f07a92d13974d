"""Training through Lightning, until the full-catalogue validation MRR@10 stops improving."""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from sasrec.data import Sequences
from sasrec.models import SequenceModel


def loggers(folder: Path, name: str) -> list[Logger]:
    """Return a CSV logger, and one for TensorBoard where that is installed; a resumed run gets logs of its own."""
    chosen: list[Logger] = [CSVLogger(folder, f"{name}/csv")]
    if find_spec("tensorboard"):
        chosen.append(TensorBoardLogger(folder, f"{name}/tensorboard"))
    return chosen


def fit(name: str, model: SequenceModel, data: Sequences, options: argparse.Namespace) -> str:
    """Train the model, give it the weights of its best epoch, and say how long that took.

    Checkpoints and logs are left in ``options.output``, if that is given; ``options.resume`` goes on from the last
    checkpoint there, if there is one.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.output or Path(scratch)) / name
        monitor = {"monitor": "val/mrr@10", "mode": "max"}
        best = ModelCheckpoint(folder, "best", save_last=True, enable_version_counter=False, **monitor)
        trainer = lightning.Trainer(
            accelerator="auto",
            devices=options.devices,
            strategy="auto" if options.devices == 1 else "ddp",
            precision=options.precision,
            max_epochs=options.epochs,
            check_val_every_n_epoch=options.validate_every,
            callbacks=[EarlyStopping(patience=options.patience, **monitor), best, TQDMProgressBar(refresh_rate=10)],
            logger=loggers(options.output, name) if options.output else False,
            use_distributed_sampler=False,  # `Sequences` gives each process its part, and no query twice
            num_sanity_val_steps=0,
            enable_model_summary=False,
        )
        last = folder / "last.ckpt"
        start = time.perf_counter(), time.process_time()
        trainer.fit(model, data, ckpt_path=last if options.resume and last.exists() else None)
        minutes, busy = (time.perf_counter() - start[0]) / 60, (time.process_time() - start[1]) / 60
        # Every process sees the same file: process 0 says where it is, and Lightning passes that on.
        model.load_state_dict(torch.load(best.best_model_path, weights_only=True)["state_dict"])
    score, epoch = float(best.best_model_score), trainer.current_epoch
    return f"{name}: {minutes:.1f} minutes ({busy:.1f} of CPU time), {epoch} epochs; validation MRR@10 {score:.4f}"


def be_quiet() -> None:
    """Keep Lightning from telling what a reader of the table does not need."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)  # hints on hardware and on products
    warnings.filterwarnings("ignore", module=r"lightning\.")  # its use of deprecated parts of torch
    warnings.filterwarnings("ignore", message=".*does not have many workers")  # the data is in memory
