"""RecTools: the lists that its SASRec recommends, beside RecTools' own MRR, which has to be the same.

A user without recommendations would be missing from RecTools' frame: asked for by name, they count 0.
"""

import pandas as pd
import torch
from pytorch_lightning import Trainer
from rectools import Columns
from rectools.dataset import Dataset
from rectools.metrics import MRR
from rectools.models import SASRecModel

from mrr_torch import MeanReciprocalRank, rank_retrieved


def main() -> None:
    torch.manual_seed(0)
    steps = torch.rand(200, 12).argsort(1) + torch.randint(40, (200, 1))  # each user has 12 of 51 items
    rows = [
        (user, f"item {item}", time) for user, items in enumerate(steps.tolist()) for time, item in enumerate(items)
    ]
    frame = pd.DataFrame(rows, columns=[Columns.User, Columns.Item, Columns.Datetime]).assign(**{Columns.Weight: 1.0})
    frame[Columns.Datetime] = pd.to_datetime(frame[Columns.Datetime], unit="D")
    held_out = frame.groupby(Columns.User).tail(1)
    data = Dataset.construct(frame.drop(held_out.index))
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False)
    model = SASRecModel(
        n_factors=16, n_blocks=1, n_heads=1, session_max_len=20, get_trainer_func=lambda: Trainer(max_epochs=3, **quiet)
    ).fit(data)
    found = model.recommend(held_out[Columns.User], data, k=10, filter_viewed=True)

    lists = found.sort_values(Columns.Rank).groupby(Columns.User)[Columns.Item].agg(list)
    metric = MeanReciprocalRank(10)
    metric.update(rank_retrieved(lists.reindex(held_out[Columns.User]).tolist(), held_out[Columns.Item].tolist()))
    print(f"mrr@10 {metric.compute():.6f}")
    print(f"RecTools {MRR(k=10).calc(found, held_out):.6f}")


if __name__ == "__main__":
    main()
