"""Negatives: never the target, never excluded, distinct, with the right frequencies, exact at both ends."""

import pytest
import torch
from scipy.stats import chisquare

from mrr_torch import MeanReciprocalRank, sample_negatives

SETTINGS = {
    "uniform": {},
    "uniform, repeats": {"replacement": True},
    "weighted": {"weights": True},
    "weighted, repeats": {"weights": True, "replacement": True},
}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def has(ids, unwanted):
    """Say for each id of a row whether its row of ``unwanted`` lists it."""
    return (ids[:, :, None] == unwanted[:, None, :]).any(2)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("items", [12, 5_000_000], ids=["crowded", "roomy"])
def test_no_target_no_excluded_item_and_no_repeat(setting, items):
    generator = seeded()
    options = dict(SETTINGS[setting])
    if "weights" in options:
        options["weights"] = torch.rand(items, generator=generator, dtype=torch.float64) ** 3
    queries, negatives = 500, 5
    target = torch.randint(0, items, (queries,), generator=generator)
    exclude = torch.randint(-1, items, (queries, 6), generator=generator)
    ids = sample_negatives(target, items, negatives, exclude=exclude, generator=generator, **options)
    assert ids.shape == (queries, 1 + negatives)
    assert ids.dtype == torch.int64
    assert torch.equal(ids[:, 0], target)
    drawn = ids[:, 1:]
    assert bool(((drawn >= 0) & (drawn < items)).all())
    assert not bool(has(drawn, torch.cat([target[:, None], exclude], 1)).any())
    if "replacement" not in options:
        ordered = drawn.sort(1).values
        assert not bool((ordered[:, 1:] == ordered[:, :-1]).any())


@pytest.mark.slow
def test_ten_million_ids_hold_no_collision_and_no_repeat():
    target = torch.randint(0, 100_000, (101_011,), generator=seeded())
    ids = sample_negatives(target, 100_000, 99, exclude=torch.arange(50), generator=seeded(1))
    drawn = ids[:, 1:]
    assert drawn.numel() > 9_999_999
    assert not bool((drawn == target[:, None]).any())
    assert not bool((drawn < 50).any())
    ordered = drawn.sort(1).values
    assert not bool((ordered[:, 1:] == ordered[:, :-1]).any())


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("items", [9, 300], ids=["crowded", "roomy"])
def test_frequencies_are_right(setting, items):
    draws, negatives = 100_000, 3
    options = dict(SETTINGS[setting])
    weights = torch.ones(items, dtype=torch.float64)
    if "weights" in options:
        weights = options["weights"] = torch.arange(items, dtype=torch.float64) % 5
    target, exclude = torch.full((draws,), 4), torch.tensor([0, 7, 7, -1])
    ids = sample_negatives(target, items, negatives, exclude=exclude, generator=seeded(), **options)
    weights = weights.index_fill(0, torch.tensor([4, 0, 7]), 0)
    possible = weights > 0
    counts = torch.bincount(ids[:, 1], minlength=items)  # the first draw of a query is in proportion to the weights
    assert int(counts[~possible].sum()) == 0
    expected = draws * weights / weights.sum()
    assert chisquare(counts[possible].numpy(), expected[possible].numpy()).pvalue > 0.001
    if "weights" not in options:  # then every draw is
        counts = torch.bincount(ids[:, 1:].flatten(), minlength=items)
        assert chisquare(counts[possible].numpy(), (negatives * expected[possible]).numpy()).pvalue > 0.001


@pytest.mark.parametrize("items", [8, 64], ids=["crowded", "roomy"])
def test_second_draws_are_in_proportion_among_what_is_left(items):
    weights = torch.zeros(items, dtype=torch.float64)
    weights[1:5] = torch.tensor([8.0, 4.0, 2.0, 1.0])
    draws = 100_000
    ids = sample_negatives(torch.zeros(draws, dtype=torch.long), items, 2, weights=weights, generator=seeded())
    pairs = torch.bincount(ids[:, 1] * items + ids[:, 2], minlength=items * items).view(items, items)
    chance = weights[:, None] * weights / (15 * (15 - weights[:, None]))
    chance.fill_diagonal_(0)
    possible = chance > 0
    assert int(pairs[~possible].sum()) == 0
    assert chisquare(pairs[possible].numpy(), (draws * chance[possible]).numpy()).pvalue > 0.001


def test_all_remaining_items_can_be_drawn():
    target = torch.tensor([2, 3, 0])
    exclude = torch.tensor([[0, -1], [0, 0], [4, 5]])
    ids = sample_negatives(target, 6, 3, exclude=exclude, generator=seeded())
    assert sorted(ids[2].tolist()) == [0, 1, 2, 3]
    ids = sample_negatives(target[:2], 6, 4, exclude=exclude[:2], generator=seeded())
    assert [sorted(row) for row in ids.tolist()] == [[1, 2, 3, 4, 5]] * 2
    ids = sample_negatives(torch.tensor([7]), 1_000_001, 1_000_000, generator=seeded())
    assert torch.equal(ids.sort(1).values, torch.arange(1_000_001)[None])


def test_weights_on_a_few_items_do_not_keep_the_draw_from_ending():
    weights = torch.full((100_000,), 1e-12, dtype=torch.float64)
    weights[5] = 1.0  # the target: nearly every draw by weight is refused
    ids = sample_negatives(torch.tensor([5, 5]), 100_000, 3, weights=weights, generator=seeded())
    assert not bool((ids[:, 1:] == 5).any())
    ids = sample_negatives(torch.tensor([5, 5]), 100_000, 3, weights=weights, replacement=True, generator=seeded())
    assert not bool((ids[:, 1:] == 5).any())


def test_the_smallest_weights_are_not_none():
    weights = torch.tensor([1.0, 1e-310, 5e-322, 0.0], dtype=torch.float64)
    ids = sample_negatives(torch.zeros(50, dtype=torch.long), 4, 2, weights=weights, generator=seeded())
    assert [sorted(row) for row in ids[:, 1:].tolist()] == [[1, 2]] * 50


def test_the_same_generator_state_gives_the_same_ids():
    target = torch.arange(50)
    first = sample_negatives(target, 10_000, generator=seeded(3))
    assert first.shape == (50, 100)
    assert torch.equal(first, sample_negatives(target, 10_000, generator=seeded(3)))
    assert not torch.equal(first, sample_negatives(target, 10_000, generator=seeded(4)))


def test_no_queries_and_an_empty_history():
    assert sample_negatives(torch.zeros(0, dtype=torch.long), 10, 3).shape == (0, 4)
    assert sample_negatives(torch.tensor([1]), 10, 3, exclude=torch.zeros(1, 0, dtype=torch.long)).shape == (1, 4)


def test_the_input_is_never_changed():
    target, exclude = torch.arange(20), torch.randint(-1, 30, (20, 5), generator=seeded())
    copies = target.clone(), exclude.clone()
    sample_negatives(target, 30, 5, exclude=exclude)
    assert torch.equal(target, copies[0])
    assert torch.equal(exclude, copies[1])


def test_sampled_scores_go_straight_into_a_sampled_metric():
    generator = seeded()
    scores = torch.rand(40, 500, generator=generator)
    target = torch.randint(0, 500, (40,), generator=generator)
    ids = sample_negatives(target, 500, 99, generator=generator)
    metric = MeanReciprocalRank(num_negatives=99)
    metric.update(scores.gather(1, ids))
    better = (scores.gather(1, ids[:, 1:]) > scores.gather(1, target[:, None])).sum(1)
    assert torch.allclose(metric.compute(), (1 / (1 + better)).mean())  # float32


@pytest.mark.parametrize("setting", ["ignore_index", "miss_index"])
def test_a_target_that_is_left_out_is_no_index_to_skip(setting):
    """It stands in column 0, whatever 0 means among the targets: as an id it is often padding."""
    metric = MeanReciprocalRank(num_negatives=2, **{setting: 0})
    metric.update(torch.tensor([[0.5, 0.9, 0.1], [0.5, 0.3, 0.1]]))
    assert float(metric.compute()) == 0.75
