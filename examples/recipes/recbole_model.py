"""RecBole: a model that it has trained, beside RecBole's own MRR, which has to be the same.

RecBole scores padding as item 0, and hides it and the user's history by -inf; here they are excluded by a mask, so that
no target can tie with them.
"""

import torch
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.model.general_recommender import BPR
from recbole.trainer import Trainer

from mrr_torch import MeanReciprocalRank

SETTINGS = {
    "eval_args": {"split": {"LS": "valid_and_test"}, "order": "TO", "mode": "full"},
    "metrics": ["MRR"],
    "topk": [10],
    "valid_metric": "MRR@10",
    "metric_decimal_place": 6,
    "epochs": 15,
    "use_gpu": False,
    "show_progress": False,
}


@torch.no_grad()
def main() -> None:
    config = Config(BPR, "ml-100k", config_dict=SETTINGS)  # MovieLens 100K comes with RecBole
    torch.manual_seed(0)
    train, _, test = data_preparation(config, create_dataset(config))
    model = BPR(config, train.dataset)
    trainer = Trainer(config, model)
    with torch.enable_grad():
        trainer.fit(train, saved=False)
    metric = MeanReciprocalRank(10)
    for users, history, _, target in test:
        scores = model.full_sort_predict(users).view(len(users), -1)
        unwanted = torch.zeros_like(scores, dtype=torch.bool)
        unwanted[:, 0] = unwanted[history] = True
        metric.update(scores, target, exclude=unwanted)
    print(f"mrr@10 {metric.compute():.6f}")
    print(f"RecBole {trainer.evaluate(test, load_best_model=False)['mrr@10']:.6f}")


if __name__ == "__main__":
    main()
