"""`ranking_metrics`: one scalar a name, one state, each batch ranked once; what loggers and wrappers take."""

import re
import warnings
from unittest import mock

import pytest
import torch
from torchmetrics import MetricCollection, MetricTracker
from torchmetrics.wrappers import BootStrapper

from mrr_torch import HitRate, MeanReciprocalRank, NormalizedDCG, RankMetric, rank_metric, ranking_metrics

KINDS = {"mrr": MeanReciprocalRank, "hit_rate": HitRate, "ndcg": NormalizedDCG}


def batch(seed=0, queries=40, columns=30):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 9, (queries, columns), generator=generator).float()  # full of ties
    return scores, torch.randint(0, columns, (queries,), generator=generator)


def separate(cuts, **settings):
    return {f"{key}@{k}": kind(k, **settings) for key, kind in KINDS.items() for k in cuts}


def ranked_batches(action):
    """Return how often a batch was ranked while ``action`` ran."""
    with mock.patch.object(rank_metric, "rank_batch", wraps=rank_metric.rank_batch) as rank:
        action()
    return sum(isinstance(call.args[0].preds, torch.Tensor) for call in rank.call_args_list)


@pytest.mark.parametrize("settings", [{}, {"ties": "realistic"}, {"num_negatives": 9}, {"ignore_index": 3}], ids=str)
def test_values_are_those_of_separate_metrics(settings, float64):
    metrics, alone = ranking_metrics([1, 5, 2000], **settings), separate([1, 5, 2000], **settings)
    for seed in range(3):
        of_batch = metrics(*batch(seed))
        assert {name: float(value) for name, value in of_batch.items()} == {
            name: float(metric(*batch(seed))) for name, metric in alone.items()
        }
    metrics.update(*batch(7))
    for metric in alone.values():
        metric.update(*batch(7))
    # Sums of ties are fractions, and forward adds them up in another order than separate metrics do.
    for name, value in metrics.compute().items():
        assert value.shape == ()
        assert float(value) == pytest.approx(float(alone[name].compute()), rel=0, abs=1e-14)


def test_update_and_forward_rank_a_batch_once():
    metrics = ranking_metrics([1, 5, 2000])  # two layouts of the state
    assert ranked_batches(lambda: metrics.update(*batch())) == 1
    assert ranked_batches(lambda: metrics(*batch())) == 1
    assert ranked_batches(lambda: MetricCollection(separate([1, 5]))(*batch())) == 6  # what torchmetrics does


def test_all_of_one_layout_share_one_state_from_the_start():
    metrics = ranking_metrics([1, 5, 20])
    metrics.update(*batch())
    (group,) = metrics.compute_groups.values()
    assert len(group) == 9
    states = [[getattr(metric, name) for name in metric._names] for metric in metrics.values(copy_state=False)]
    assert len(states[0]) > 2
    assert all(one is first for state in states for one, first in zip(state, states[0], strict=True))


def test_everything_that_one_metric_takes_is_passed_on(float64):
    scores, target = batch()
    history, ids = torch.randint(-1, 30, (40, 3)), torch.arange(40)
    metrics = ranking_metrics(5, num_queries=50, cohorts=["new", "regular"], weighted=True)
    one = HitRate(5, num_queries=50, cohorts=["new", "regular"], weighted=True)
    given = {"exclude": history, "query_ids": ids, "cohort": ids % 2, "weights": torch.rand(40)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the queries not seen
        of_batch, alone = metrics(scores, target, **given), one(scores, target, **given)
        assert {name: of_batch[name] for name in alone} == alone
        together, alone = metrics.compute(), one.compute()
    assert {name: together[name] for name in alone} == alone
    assert set(together) == {f"{key}@5{cohort}" for key in KINDS for cohort in ("", "/new", "/regular")}


def test_a_refused_batch_changes_nothing():
    metrics = ranking_metrics([1, 5])
    metrics.update(*batch())
    before = metrics.compute()
    for call in (metrics.update, metrics):
        with pytest.raises(ValueError, match="target: expected ids in"):
            call(batch()[0], torch.full((40,), 30))
    assert metrics.compute() == before
    assert all(metric.update_count == 1 for metric in metrics.values())


def test_names_are_what_loggers_take():
    metrics = ranking_metrics([5, 10], prefix="val/", separator="_at_")
    metrics.update(*batch())
    # Alphanumerics, underscores, dashes, periods, spaces and slashes: MLflow's rule for names of metrics.
    assert all(re.fullmatch(r"[\w\-. /]+", name) for name in metrics.compute())
    assert "val/mrr_at_10" in metrics.compute()
    with_ends = ranking_metrics(5, separator="_at_", confidence=0.9)
    with_ends.update(*batch())
    assert {"mrr_at_5", "mrr_at_5_low", "mrr_at_5_high"} <= set(with_ends.compute())


def test_summary_writer_takes_the_names(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard", reason="tensorboard is not installed")
    metrics = ranking_metrics([5, 10], prefix="val/")
    metrics.update(*batch())
    with tensorboard.SummaryWriter(tmp_path) as writer:
        for name, value in metrics.compute().items():
            writer.add_scalar(name, value)
    assert any(tmp_path.iterdir())


def test_metric_tracker_keeps_the_best_of_each():
    tracker = MetricTracker(ranking_metrics([1, 5]), maximize=True)
    for seed in range(3):
        tracker.increment()
        tracker.update(*batch(seed))
    best, steps = tracker.best_metric(return_step=True)
    by_step = tracker.compute_all()
    assert set(best) == set(separate([1, 5]))
    assert best == {name: pytest.approx(float(values.max())) for name, values in by_step.items()}
    assert steps == {name: int(values.argmax()) for name, values in by_step.items()}


def test_boot_strapper_takes_a_member():
    boot = BootStrapper(ranking_metrics([5])["mrr@5"], num_bootstraps=20)
    torch.manual_seed(0)
    boot.update(*batch(queries=400))
    alone = MeanReciprocalRank(5)
    alone.update(*batch(queries=400))
    result = boot.compute()
    # Means of 20 resamples lie around the value; five standard errors.
    assert abs(float(result["mean"] - alone.compute())) < 5 * float(result["std"]) / 20**0.5


def test_reset_clone_and_values_on_each_step():
    metrics = ranking_metrics([1, 5])
    metrics.update(*batch())
    other = metrics.clone(prefix="test/")
    other.update(*batch(1))
    assert metrics.compute()["mrr@5"] != other.compute()["test/mrr@5"]
    metrics.reset()
    of_batch = metrics(*batch(1))
    # What Lightning logs on each step.
    assert {name: metric._forward_cache for name, metric in metrics.items()} == of_batch
    assert metrics.compute() == of_batch


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"top_k": 0}, "top_k: expected a positive int, got 0"),
        ({"top_k": [5, 5]}, "top_k: expected one or more different cut-offs"),
        ({"top_k": None}, "top_k: expected a positive int or a sequence of them"),
        ({"separator": "."}, "separator: expected a text without a dot, got '.'"),
        ({"ties": "average"}, "ties: expected one of"),
    ],
    ids=str,
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ranking_metrics(**arguments)


def test_members_are_metrics_of_their_own():
    assert all(isinstance(metric, RankMetric) for metric in ranking_metrics([5]).values())


def test_whoever_looks_at_the_members_copies_nothing():
    metrics = ranking_metrics([1, 5])  # as `self.log_dict(metrics)` looks at them, at each step
    metrics.update(*batch())
    members = [metric for _, metric in metrics.items()]
    assert len(members) == 6
    for name in members[0]._names:
        assert len({id(getattr(metric, name)) for metric in members}) == 1


@pytest.mark.filterwarnings("ignore:40 queries were seen with different ranks")
@pytest.mark.parametrize("settings", [{}, {"num_queries": 40}], ids=str)
def test_a_member_that_is_updated_alone_changes_no_other(settings):
    metrics, scores = ranking_metrics([1, 5], **settings), -torch.arange(30.0).expand(40, 30)
    ids = {"query_ids": torch.arange(40)} if settings else {}
    metrics.update(scores, torch.full((40,), 1), **ids)
    alone = metrics["mrr@5"]
    alone.update(scores, torch.full((40,), 3), **ids)
    assert alone.compute() == (1 / 4 if settings else (1 / 2 + 1 / 4) / 2)
    assert metrics["hit_rate@5"].compute() == 1
    assert torch.allclose(metrics["ndcg@5"].compute(), 1 / torch.tensor(3.0).log2())
