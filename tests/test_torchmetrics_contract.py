"""What torchmetrics, and those who build on it, expect of a metric, and what it leaves to the metric."""

import copy
import pickle
import warnings

import lightning
import pytest
import torch
from torch import nn
from torchmetrics import MetricCollection
from torchmetrics.wrappers import BootStrapper, MultitaskWrapper

from mrr_torch import HitRate, MeanReciprocalRank, NormalizedDCG, RankDistribution, Ranks, rank_target

METRICS = [MeanReciprocalRank(), HitRate([1, 10]), NormalizedDCG(10), RankDistribution(5)]
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.*:DeprecationWarning")


def kind(metric):
    return type(metric).__name__


def batch(*ranks, columns=20):
    """Scores and targets whose ranks are as given."""
    scores = -torch.arange(columns, dtype=torch.float32).repeat(len(ranks), 1)
    return scores, torch.tensor(ranks) - 1


def states(metric):
    return {name: copy.deepcopy(state) for name, state in metric.metric_state.items()}


def same(left, right):
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return len(left) == len(right) and all(map(same, left, right))


class Listing(MeanReciprocalRank):
    """A subclass with a list state, which may fail once it has added to it."""

    failure = None

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_state("seen", [], "cat")

    def update(self, preds, target):
        super().update(preds, target)
        self.seen.append(target)
        if self.failure is not None:
            raise self.failure


class Model(nn.Module):
    def __init__(self, metric):
        super().__init__()
        self.first, self.metric, self.last = nn.Linear(2, 2), metric, nn.Linear(2, 2)
        self.metric.persistent(True)


class TestFailedCalls:
    @pytest.mark.parametrize("failure", [KeyboardInterrupt(), SystemExit(), RuntimeError("late"), ValueError("late")])
    @pytest.mark.parametrize("step", [False, True], ids=["one update", "two updates"])
    @pytest.mark.parametrize("way", ["update", "forward"])
    def test_what_fails_or_is_interrupted_leaves_the_metric_as_it_was(self, way, step, failure):
        metric = Listing(dist_sync_on_step=step)
        metric.update(*batch(2, 4))
        value, before, seen = metric.compute(), states(metric), metric.seen
        metric.failure = failure
        with pytest.raises(type(failure)):
            getattr(metric, way)(*batch(1))
        metric.failure = None
        assert same(states(metric), before)
        assert metric.seen is seen  # which members of a compute group share
        assert metric.update_count == 1
        assert metric.compute() == value == 3 / 8
        assert metric(*batch(1)) == 1
        assert metric.compute() == torch.tensor((1 / 2 + 1 / 4 + 1) / 3)
        assert torch.cat(metric.seen).tolist() == [1, 3, 0]

    def test_an_interrupted_compute_of_a_step_leaves_the_metric_as_it_was(self, monkeypatch):
        metric = MeanReciprocalRank()
        metric.update(*batch(2))
        before = states(metric)

        def interrupted(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(MeanReciprocalRank, "gain", interrupted)
            with pytest.raises(KeyboardInterrupt):
                metric(*batch(1))
        assert same(states(metric), before)
        assert not metric.batch_alone
        metric.update(*batch(1))
        assert metric.compute() == 3 / 4

    def test_a_compute_that_fails_ends_the_synchronisation(self):
        metric = MeanReciprocalRank(dist_sync_fn=lambda x, group: [x, x], distributed_available_fn=lambda: True)
        metric.update(*batch(2))
        before = states(metric)
        with pytest.raises(ZeroDivisionError), metric.sync_context(metric.dist_sync_fn):
            _ = 1 / int(same(states(metric), before))  # 1 / 0: the states are those of all together
        assert same(states(metric), before)
        metric.update(*batch(1))
        assert metric.compute() == 3 / 4

    def test_a_synchronisation_that_fails_half_way_changes_nothing(self):
        failing = [True]

        def reduce(states):
            if failing.pop():
                raise ConnectionError("gone")
            return states.sum(0)

        metric = MeanReciprocalRank(dist_sync_fn=lambda x, group: [x, x], distributed_available_fn=lambda: True)
        metric.add_state("last", torch.zeros(1), reduce)  # the states before it are reduced already
        metric.update(*batch(2))
        before = states(metric)
        with pytest.raises(ConnectionError):
            metric.compute()
        assert same(states(metric), before)
        failing.append(False)
        assert metric.compute() == 1 / 2


class TestCheckpoints:
    def test_a_state_of_another_size_is_an_error_of_torch_and_the_rest_is_loaded(self):
        saved, model = Model(MeanReciprocalRank(2000)), Model(MeanReciprocalRank(10))
        saved.metric.update(*batch(1))
        model.metric.update(*batch(2))
        before = states(model.metric)
        for strict in (True, False):
            with pytest.raises(RuntimeError, match=r"metric\.ranks_expected.*expected shape .*, got shape") as caught:
                model.load_state_dict(saved.state_dict(), strict=strict)
            assert "Unexpected key" not in str(caught.value)
        assert same(states(model.metric), before)
        assert model.metric.compute() == 1 / 2
        assert torch.equal(model.first.weight, saved.first.weight)
        assert torch.equal(model.last.weight, saved.last.weight)

    def test_one_bad_state_keeps_all_states_of_the_metric_out(self):
        saved, model = Model(Listing()), Model(Listing())
        saved.metric.update(*batch(1))
        checkpoint = saved.state_dict()
        checkpoint["metric.seen"] = torch.zeros(1)
        with pytest.raises(RuntimeError, match=r"metric\.seen: expected a list of tensors, got Tensor"):
            model.load_state_dict(checkpoint)
        assert same(states(model.metric), states(Listing()))
        assert model.metric.update_count == 0

    def test_the_state_of_a_metric_that_saw_nothing_still_warns_when_loaded(self):
        metric = MeanReciprocalRank()
        metric.update(*batch(2))
        empty = MeanReciprocalRank()
        empty.persistent(True)
        metric.load_state_dict(empty.state_dict())
        with pytest.warns(UserWarning, match="before the ``update``"):
            assert metric.compute() == 0

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"])
    def test_a_list_state_is_loaded_as_a_copy_and_merged(self, copied):
        metric, other = Listing(), Listing()
        metric.persistent(True)
        metric.update(*batch(2))
        checkpoint = copied(metric.state_dict())
        other.load_state_dict(checkpoint)
        other.update(*batch(1))
        assert torch.cat(other.seen).tolist() == [1, 0]
        assert len(checkpoint["seen"]) == 1
        other.merge_state(metric)
        assert sorted(torch.cat(other.seen).tolist()) == [0, 1, 1]
        other.merge_state(metric.metric_state)
        assert other.update_count == 4
        assert other.compute() == torch.tensor((1 / 2 * 3 + 1) / 4)
        assert torch.cat(metric.seen).tolist() == [1]

    def test_a_merge_that_is_refused_changes_nothing(self):
        metric = Listing()
        metric.update(*batch(2))
        before, value = states(metric), metric.compute()
        for wrong in (torch.zeros(2), None):
            with pytest.raises(TypeError, match="seen: expected a list of tensors"):
                metric.merge_state({**metric.metric_state, "seen": wrong})
        assert same(states(metric), before)
        assert metric._computed is value

    def test_merging_the_state_of_a_metric_that_saw_nothing_is_no_update(self):
        metric = MeanReciprocalRank()
        metric.merge_state(MeanReciprocalRank().metric_state)
        assert not metric.update_called


class TestScripts:
    @pytest.mark.parametrize("metric", [*METRICS, Listing()], ids=kind)
    def test_a_metric_can_be_scripted(self, metric):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of `torch.jit`
            torch.jit.script(copy.deepcopy(metric))

    @pytest.mark.parametrize("metric", METRICS, ids=kind)
    def test_a_lightning_module_that_holds_a_metric_can_be_scripted(self, metric):
        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer, self.metric = nn.Linear(3, 2), copy.deepcopy(metric)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.layer(x)

        module = Module()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of `torch.jit`
            script = module.to_torchscript()
        x = torch.rand(4, 3)
        assert torch.equal(script(x), module(x))


class TestWrappers:
    @pytest.fixture(autouse=True)
    def pyplot(self):
        matplotlib = pytest.importorskip("matplotlib")
        matplotlib.use("agg")
        from matplotlib import pyplot

        yield pyplot
        pyplot.close("all")

    def heights(self, ax):
        return [bar.get_height() for bar in ax.patches]

    def test_a_collection_with_a_distribution_can_be_plotted(self):
        collection = MetricCollection([MeanReciprocalRank(3), RankDistribution(3)])
        collection.update(*batch(1, 1, 2, 9))
        drawn = dict(zip(collection.keys(), collection.plot(), strict=True))
        assert self.heights(drawn["RankDistribution"][1]) == [1 / 2, 1 / 4, 0, 1 / 4]
        steps = [collection(*batch(1, 2)), collection(*batch(3, 3))]
        drawn = dict(zip(collection.keys(), collection.plot(steps), strict=True))
        assert self.heights(drawn["RankDistribution"][1]) == [1 / 2, 1 / 2, 0, 0, 0, 0, 1, 0]

    def test_tasks_with_a_distribution_can_be_plotted(self):
        tasks = MultitaskWrapper({"a": RankDistribution(2), "b": MeanReciprocalRank()})
        scores, target = batch(1, 3)
        tasks.update({"a": scores, "b": scores}, {"a": target, "b": target})
        assert self.heights(tasks.plot()[0][1]) == [1 / 2, 0, 1 / 2]

    def test_values_of_cohorts_can_be_plotted(self):
        metric = RankDistribution(3, cohorts=["new", "old"], weighted=True)
        scores, target = torch.tensor([[1.0, 2.0], [3.0, 1.0]]), torch.tensor([0, 0])
        metric.update(scores, target, cohort=torch.tensor([0, 1]), weights=torch.tensor([0.25, 0.25]))
        _, axes = metric.plot(metric.compute())
        assert [text.get_text() for text in axes.get_legend().get_texts()] == list(metric.compute())
        # Ranks 2 and 1 with a weight of 1/4 each: half of the weight at either.
        assert [bar.get_height() for bar in axes.containers[0]][:2] == [1 / 2, 1 / 2]

    def test_a_value_without_queries_can_be_plotted(self):
        assert self.heights(RankDistribution(2).plot(torch.zeros(3))[1]) == [0, 0, 0]

    def test_a_plot_of_the_metric_itself_shows_the_missed_too(self):
        metric = RankDistribution(2)
        metric.update(Ranks(*torch.tensor([[0, 4, 0], [0, 0, 0], [1, 1, -1], [9, 9, 0]])))
        assert self.heights(metric.plot()[1]) == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3], abs=1e-7)

    def test_ranks_are_resampled_field_by_field(self):
        class OfFields(MeanReciprocalRank):
            """`BootStrapper` resamples tensors, and takes the first argument for one."""

            def update(self, higher, tied, relevant, candidates):
                super().update(Ranks(higher, tied, relevant, candidates))

        torch.manual_seed(0)  # of the 13 means that there are, more than 10 are seen in most draws
        bootstrap = BootStrapper(OfFields(), num_bootstraps=200, raw=True, sampling_strategy="multinomial")
        bootstrap.update(*rank_target(*batch(1, 2, 4, 4)))
        drawn = bootstrap.compute()
        # Means of four draws from 1, 1/2, 1/4, 1/4.
        assert drawn["raw"].min() >= 1 / 4
        assert drawn["raw"].unique().numel() > 10
        assert drawn["mean"] == pytest.approx(0.5, abs=0.1)  # 0.31 / sqrt(4 * 200) = 0.011 is its standard error
