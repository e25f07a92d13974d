"""The life of a metric: what torchmetrics users rely on, and what torchmetrics gets wrong for others."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torchmetrics import MetricCollection, MetricTracker, MinMaxMetric
from torchmetrics.wrappers import BootStrapper, Running

from mrr_torch import (
    HitRate,
    MeanReciprocalRank,
    NormalizedDCG,
    RankDistribution,
    Ranks,
    rank_catalogue,
    rank_target,
)

METRICS = [MeanReciprocalRank(10), HitRate(10), NormalizedDCG(10), MeanReciprocalRank([1, None])]


def batch(ranks, columns=60):
    """Scores and targets whose ranks are as given: column c has rank c + 1."""
    scores = -torch.arange(columns, dtype=torch.float32).expand(len(ranks), columns)
    return scores, torch.tensor(ranks) - 1


def random_batch(queries=50, columns=30, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 12, (queries, columns), generator=generator).float()
    return scores, torch.randint(0, columns, (queries,), generator=generator)


def same(left, right):
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)
    return torch.equal(left, right)


def fresh(metric):
    return copy.deepcopy(metric)


def name(metric):
    return f"{type(metric).__name__}-{metric.top_k}"


class TestValues:
    def test_several_cut_offs_come_from_one_pass_as_a_dict(self):
        metric = MeanReciprocalRank([1, 2, None])
        metric.update(*batch([2, 1, 3]))
        result = metric.compute()
        assert list(result) == ["mrr@1", "mrr@2", "mrr"]
        assert torch.equal(result["mrr"], torch.tensor((1 / 2 + 1 + 1 / 3) / 3))
        assert torch.equal(result["mrr@2"], torch.tensor((1 / 2 + 1 + 0) / 3))

    def test_a_cut_off_may_exceed_the_candidates_and_the_ranks_of_the_usual_state(self, float64):
        scores, target = batch([1500, 3], columns=2000)
        assert MeanReciprocalRank(10**4)(scores, target) == pytest.approx((1 / 1500 + 1 / 3) / 2, abs=1e-15)
        assert HitRate(1499)(scores, target) == 1 / 2
        assert HitRate(1500)(scores, target) == 1

    def test_mrr_without_cut_off_is_exact_for_any_rank(self, float64):
        columns = 1_200_000
        scores = -torch.arange(columns, dtype=torch.float64).expand(3, columns)
        target = torch.tensor([columns - 1, 1024, 123_456])
        expected = (1 / columns + 1 / 1025 + 1 / 123_457) / 3
        assert MeanReciprocalRank()(scores, target) == pytest.approx(expected, abs=1e-17)

    def test_ties_far_down_the_list_are_spread_exactly(self, float64):
        scores = torch.zeros(2, 5000)
        scores[1, :900] = 1
        expected = sum(1 / r for r in range(1, 5001)) / 5000 + sum(1 / r for r in range(901, 5001)) / 4100
        assert MeanReciprocalRank()(scores, torch.tensor([7, 4000])) == pytest.approx(expected / 2, abs=1e-14)

    def test_a_constant_scorer_gets_chance_wherever_the_target_stands(self, float64):
        chance = sum(1 / r for r in range(1, 101)) / 100
        for column in (0, 50, 99):
            value = MeanReciprocalRank()(torch.full((4, 100), 0.3), torch.full((4,), column))
            assert value == pytest.approx(chance, abs=1e-15)

    def test_nothing_seen_is_zero_with_the_warning_of_torchmetrics_only(self):
        metric = MeanReciprocalRank()
        with pytest.warns(UserWarning, match="before the ``update``") as caught:
            assert metric.compute() == 0
        assert len(caught) == 1

    def test_all_skipped_is_zero_without_a_warning(self):
        metric = MeanReciprocalRank(ignore_index=-100)
        metric.update(torch.zeros(2, 3), torch.full((2,), -100))
        assert metric.compute() == 0

    def test_an_empty_batch_changes_nothing(self):
        metric = MeanReciprocalRank()
        metric.update(*batch([2]))
        metric.update(torch.zeros(0, 5), torch.zeros(0, dtype=torch.long))
        assert metric.compute() == 1 / 2

    def test_nan_targets_are_misses_and_counted_in_one_warning(self):
        metric = MeanReciprocalRank()
        metric.update(torch.tensor([[torch.nan, 1.0], [2.0, 1.0], [torch.nan, torch.nan]]), torch.tensor([0, 0, 1]))
        with pytest.warns(UserWarning, match="NaN in 2 queries") as caught:
            assert metric.compute() == torch.tensor(1 / 3)
        assert len(caught) == 1

    def test_results_have_the_default_dtype(self, float64):
        assert MeanReciprocalRank()(*batch([1])).dtype == torch.float64
        torch.set_default_dtype(torch.float32)
        assert MeanReciprocalRank()(*batch([1])).dtype == torch.float32


def test_states_that_require_a_gradient_are_loaded_and_merged_without_it():
    metric = MeanReciprocalRank([1, None])
    metric.persistent(True)
    metric.update(torch.eye(4), torch.tensor([0, 1, 3, 3]))
    states = {name: state.requires_grad_() for name, state in metric.state_dict().items()}
    loaded, merged = MeanReciprocalRank([1, None]), MeanReciprocalRank([1, None])
    loaded.load_state_dict(states, strict=False)
    merged.merge_state(states)
    for other in (loaded, merged):
        assert other.compute() == metric.compute()
        other.update(torch.eye(4), torch.arange(4))
        assert not any(state.requires_grad for state in other.metric_state.values())

    metric = MeanReciprocalRank(split_queries="gather")
    metric.persistent(True)
    metric.update(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 1, 0]), indexes=torch.zeros(3, dtype=torch.int64))
    states = metric.state_dict()
    scores = next(name for name in states if name.startswith("item_scores"))
    states[scores][0].requires_grad_()
    loaded, merged = (MeanReciprocalRank(split_queries="gather") for _ in range(2))
    loaded.load_state_dict(states)
    merged.merge_state(states)
    for other in (loaded, merged):
        assert other.compute() == 0.5
        assert not other.metric_state[scores][0].requires_grad


class TestLifeCycle:
    @pytest.mark.parametrize("metric", METRICS, ids=name)
    def test_forward_gives_the_batch_and_compute_gives_all(self, metric):
        metric, alone, whole = fresh(metric), fresh(metric), fresh(metric)
        first, second = random_batch(seed=1), random_batch(seed=2)
        metric(*first)
        alone.update(*second)
        assert same(metric(*second), alone.compute())
        whole.update(torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]]))
        assert all(
            torch.allclose(a, b, rtol=0, atol=1e-7)  # float32 results; ties make float64 sums differ in the last bit
            for a, b in zip(torch.tensor(list(as_dict(metric).values())), list(as_dict(whole).values()), strict=True)
        )

    @pytest.mark.parametrize("metric", METRICS, ids=name)
    def test_reset_clone_pickle_and_deepcopy(self, metric):
        metric = fresh(metric)
        metric.update(*random_batch())
        value = metric.compute()
        for other in (metric.clone(), pickle.loads(pickle.dumps(metric)), copy.deepcopy(metric)):
            assert same(other.compute(), value)
            other.update(*batch([1] * 50))
            assert not same(other.compute(), value)
        assert same(metric.compute(), value)
        metric.reset()
        metric.update(*batch([1]))
        assert all(v == 1 for v in as_dict(metric).values())

    def test_the_state_is_small_and_does_not_grow(self):
        metric = MeanReciprocalRank(10)
        sizes = []
        for seed in range(3):
            metric.update(*random_batch(100, 200, seed))
            sizes.append({key: value.shape for key, value in metric.metric_state.items()})
        assert sizes[0] == sizes[2]
        # The masses at 1,024 ranks, those that chance would give, and the range of the number of candidates.
        assert sum(value.numel() for value in metric.metric_state.values()) < 2100

    def test_state_dict_round_trip_needs_persistence_as_in_torchmetrics(self):
        metric = MeanReciprocalRank()
        metric.update(*random_batch())
        assert metric.state_dict() == {}
        metric.persistent(True)
        saved = metric.state_dict()
        other = MeanReciprocalRank()
        other.persistent(True)
        other.update(*batch([1]))
        other.compute()  # a cached value, which loading has to drop
        other.load_state_dict(saved)
        assert torch.equal(other.compute(), metric.compute())

    def test_an_update_never_alters_a_loaded_checkpoint(self):
        metric = MeanReciprocalRank()
        metric.persistent(True)
        metric.update(*random_batch())
        saved = {key: value.clone() for key, value in metric.state_dict().items()}
        given = {key: value.clone() for key, value in saved.items()}
        other = MeanReciprocalRank()
        other.load_state_dict(given)
        other.update(*random_batch(seed=3))
        assert all(torch.equal(given[key], saved[key]) for key in saved)

    def test_a_state_of_another_shape_is_refused_by_name(self):
        metric = MeanReciprocalRank(2000)
        metric.persistent(True)
        with pytest.raises(RuntimeError, match=r"ranks_expected.*expected shape"):
            MeanReciprocalRank().load_state_dict(metric.state_dict())

    def test_merge_state_drops_the_cached_value_and_adds_the_counts(self):
        left, right, whole = MeanReciprocalRank(), MeanReciprocalRank(), MeanReciprocalRank()
        left.update(*batch([1, 2]))
        right.update(*batch([4]))
        right.update(*batch([3]))
        whole.update(*batch([1, 2, 4, 3]))
        left.compute()
        left.merge_state(right)
        assert torch.equal(left.compute(), whole.compute())
        assert left.update_count == 3
        empty = MeanReciprocalRank()
        empty.merge_state(right.metric_state)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(empty.compute(), right.compute())

    def test_merging_other_settings_is_refused(self):
        with pytest.raises(ValueError, match="ranks_expected"):
            MeanReciprocalRank().merge_state(MeanReciprocalRank(ties="optimistic"))

    def test_merging_something_else_is_refused(self):
        for other in (HitRate(10), [1.0], None):
            with pytest.raises(
                TypeError, match="incoming_state: expected a MeanReciprocalRank or a dict of its states"
            ):
                MeanReciprocalRank().merge_state(other)
        with pytest.raises(ValueError, match="ranks_expected_neg_ignore_none_full: expected shape"):
            MeanReciprocalRank().merge_state(MeanReciprocalRank(5000))

    def test_a_refused_update_leaves_no_trace(self):
        metric = MeanReciprocalRank()
        metric.update(*batch([2]))
        value = metric.compute()
        before = metric.metric_state
        for call in (metric.update, metric.forward):
            with pytest.raises(ValueError, match=r"target: expected ids in 0\.\.2, got 3"):
                call(torch.zeros(2, 3), torch.tensor([0, 3]))
            assert metric.update_count == 1
            assert metric._computed is value or torch.equal(metric._computed, value)
            assert all(torch.equal(before[key], metric.metric_state[key]) for key in before)
        metric.update(*batch([1]))
        assert metric.compute() == 3 / 4

    def test_scores_with_a_gradient_and_inference_mode_are_fine(self):
        scores, target = random_batch()
        plain = MeanReciprocalRank()(scores, target)
        assert torch.equal(MeanReciprocalRank()(scores.clone().requires_grad_(), target), plain)
        metric = MeanReciprocalRank()
        with torch.inference_mode():
            metric.update(scores, target)
        metric.update(scores, target)
        assert torch.allclose(metric.compute(), plain)  # float32; the same batch twice
        assert not metric.compute().requires_grad

    def test_inputs_are_never_changed(self):
        scores, target = random_batch()
        exclude = torch.randint(-1, 30, (50, 4))
        copies = scores.clone(), target.clone(), exclude.clone()
        MeanReciprocalRank().update(scores, target, exclude=exclude)
        assert all(torch.equal(a, b) for a, b in zip((scores, target, exclude), copies, strict=True))


def as_dict(metric):
    value = metric.compute()
    return value if isinstance(value, dict) else {"value": value}


class TestDtypeMoves:
    @pytest.mark.parametrize("move", ["half", "bfloat16", "float", "double"])
    def test_moves_of_a_parent_never_cast_the_state(self, move):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(2, 2)
                self.metric = MeanReciprocalRank()

        model = Model()
        model.metric.update(*batch([1, 2, 3] * 400))
        value = model.metric.compute()
        getattr(model, move)()
        model.to(torch.bfloat16)
        assert all(state.dtype == torch.float64 for state in model.metric.metric_state.values())
        assert torch.equal(model.metric.compute(), value)
        model.metric.update(*batch([1]))
        model.metric.reset()
        assert all(state.dtype == torch.float64 for state in model.metric.metric_state.values())

    def test_moves_of_the_metric_itself_never_cast(self):
        metric = MeanReciprocalRank()
        metric.update(*batch([1, 3]))
        for moved in (metric.to(torch.float16), metric.set_dtype(torch.bfloat16), metric.half()):
            assert all(state.dtype == torch.float64 for state in moved.metric_state.values())
            assert torch.equal(moved.compute(), torch.tensor(2 / 3))

    def test_a_move_to_another_device_moves_the_state(self):
        metric = MeanReciprocalRank().to("meta")
        assert all(state.device.type == "meta" for state in metric.metric_state.values())
        assert metric.device.type == "meta"


def test_the_default_device_is_for_new_metrics_only():
    metrics = [MeanReciprocalRank([5, None], confidence=0.9), RankDistribution(5)]
    sampled = torch.rand(3, 5, device="cpu")
    for metric in metrics:
        metric.update(*random_batch())
    before = metrics[0].compute()
    with torch.device("meta"):
        metrics[0]._computed = None
        assert same(metrics[0].compute(), before)
        assert metrics[0].compute()["mrr"].device.type == "cpu"
        metrics[0].describe()
        metrics[1].quantile([0.1, 0.9])
        metrics[1].compute()
        MeanReciprocalRank(3, num_negatives=4, catalogue_size=40_000)  # its gains are solved for on the CPU
        rank_catalogue(sampled, sampled, torch.arange(3, device="cpu"), exclude=torch.tensor([[1]] * 3, device="cpu"))
        assert next(iter(MeanReciprocalRank().metric_state.values())).device.type == "meta"


def groups(**metrics):
    collection = MetricCollection(metrics)
    collection.update(*batch([1, 1]))  # a batch that can't tell cut-offs and gains apart
    collection.update(*random_batch())
    return collection


class TestComputeGroups:
    def test_metrics_of_one_protocol_share_one_group_and_keep_their_values(self):
        members = {
            "mrr10": MeanReciprocalRank(10),
            "mrr20": MeanReciprocalRank(20),
            "mrr": MeanReciprocalRank(),
            "hit": HitRate(10),
            "ndcg": NormalizedDCG(10),
        }
        alone = {key: fresh(metric) for key, metric in members.items()}
        collection = groups(**members)
        assert len(collection.compute_groups) == 1
        for metric in alone.values():
            metric.update(*batch([1, 1]))
            metric.update(*random_batch())
        for _ in range(2):  # a second compute gave the first metric's value to all, once
            values = collection.compute()
            assert all(torch.equal(values[key], metric.compute()) for key, metric in alone.items())
        assert values["mrr10"] < values["mrr20"] < values["mrr"]

    @pytest.mark.parametrize(
        ("left", "right"),
        [
            ({"ties": "expected"}, {"ties": "optimistic"}),
            ({"ties": "pessimistic"}, {"ties": "optimistic"}),
            ({"num_negatives": 59}, {}),
            ({"num_negatives": 59}, {"num_negatives": 58}),
            ({"ignore_index": -1}, {}),
            ({"ignore_index": -1}, {"ignore_index": 1}),
            ({"empty_target_action": "neg"}, {"empty_target_action": "skip"}),
        ],
        ids=str,
    )
    def test_other_settings_never_share_a_group(self, left, right):
        collection = MetricCollection({"left": MeanReciprocalRank(**left), "right": MeanReciprocalRank(**right)})
        collection.update(Ranks(*torch.tensor([[0, 1], [0, 0], [1, 1], [60, 60]])))
        assert len(collection.compute_groups) == 2

    def test_a_long_cut_off_shares_no_state_of_another_shape(self):
        collection = groups(short=MeanReciprocalRank(10), long=MeanReciprocalRank(5000))
        assert len(collection.compute_groups) == 2

    def test_a_collection_of_dict_results_is_flattened(self):
        collection = MetricCollection([MeanReciprocalRank([1, 5]), HitRate([1, 5]), NormalizedDCG([1, 5])])
        collection.update(*batch([1, 5]))
        assert set(collection.compute()) == {f"{m}@{k}" for m in ("mrr", "hit_rate", "ndcg") for k in (1, 5)}
        assert len(collection.compute_groups) == 1


class TestWrappers:
    @pytest.mark.slow
    def test_bootstrapper_resamples_queries(self):
        torch.manual_seed(0)
        scores, target = random_batch(200)
        wrapped = BootStrapper(MeanReciprocalRank(), num_bootstraps=200)
        wrapped.update(scores, target)
        result = wrapped.compute()
        values = torch.stack([MeanReciprocalRank()(scores[[i]], target[[i]]) for i in range(200)])
        standard_error = values.std() / 200**0.5
        # 200 bootstraps: their mean is within a few standard errors / sqrt(200), their spread within 20 %.
        assert abs(result["mean"] - values.mean()) < standard_error / 2
        assert abs(result["std"] / standard_error - 1) < 0.2

    def test_min_max_running_and_tracker(self):
        wrapped = MinMaxMetric(MeanReciprocalRank())
        wrapped.update(*batch([1]))
        wrapped.compute()
        wrapped.update(*batch([2]))
        result = wrapped.compute()
        assert result["raw"] == 3 / 4
        assert (result["min"], result["max"]) == (3 / 4, 1)
        running = Running(MeanReciprocalRank(), window=2)
        for rank in (1, 2, 4):
            running(*batch([rank]))
        assert running.compute() == (1 / 2 + 1 / 4) / 2
        tracker = MetricTracker(MeanReciprocalRank(), maximize=True)
        for rank in (2, 1, 4):
            tracker.increment()
            tracker.update(*batch([rank]))
        best, step = tracker.best_metric(return_step=True)
        assert (best, step) == (1, 1)

    def test_arithmetic_on_metrics(self):
        combined = (MeanReciprocalRank() + HitRate(1)) / 2
        combined.update(*batch([1, 2]))
        assert combined.compute() == (3 / 4 + 1 / 2) / 2

    def test_class_attributes_say_what_torchmetrics_asks(self):
        for metric in METRICS:
            assert metric.is_differentiable is False
            assert metric.higher_is_better is True
            assert metric.full_state_update is False
            assert (metric.plot_lower_bound, metric.plot_upper_bound) == (0.0, 1.0)

    def test_ranks_made_before_count_as_the_scores_they_come_from(self):
        scores, target = random_batch()
        metric, other = MeanReciprocalRank(10), MeanReciprocalRank(10)
        metric.update(scores, target)
        other.update(rank_target(scores, target))
        assert torch.equal(metric.compute(), other.compute())
