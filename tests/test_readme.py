"""The README: its first example prints what it says, and each call of its table runs."""

import re
from pathlib import Path

import pytest
import torch

import mrr_torch
from mrr_torch import MeanReciprocalRank, ranking_metrics

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
CALLS = re.findall(
    r"^\| [^|]* \| `([^`|]*\([^`|]*)`[^|]*\|$", README.split("## Which call")[1].split("## What")[0], flags=re.M
)


def test_the_first_example_prints_what_it_says(capsys):
    exec(EXAMPLES[0], {})
    said = [line[2:] for line in EXAMPLES[0].splitlines() if line.startswith("# mrr")]
    assert capsys.readouterr().out.splitlines() == said


def given():
    """What a user has, by the names that the table uses."""
    generator = torch.Generator().manual_seed(0)

    def ids(*shape, low=0, high=500):
        return torch.randint(low, high, shape, generator=generator)

    scores, target = torch.randn(8, 500, generator=generator), ids(8)
    sampled_ids = torch.cat([target[:, None], ids(8, 99)], 1)
    relevance = torch.rand(8, 500, generator=generator) < 0.02
    return {name: getattr(mrr_torch, name) for name in mrr_torch.__all__} | {
        "metric": MeanReciprocalRank(10),
        "scores": scores,
        "target": target,
        "sampled": scores.gather(1, sampled_ids),
        "ids": sampled_ids,
        "relevance": relevance,
        "real": torch.rand(8, 500, generator=generator) < 0.9,
        "gold_ids": ids(8, 3, low=-1),
        "flat_scores": scores.flatten(),
        "flat_relevance": relevance.flatten(),
        "query_ids": torch.arange(8).repeat_interleave(500),
        "retrieved": scores.topk(20).indices,
        "relevant_ids": target,
        "run": {"q1": {"d1": 0.9, "d2": 0.5}},
        "qrels": {"q1": {"d2": 1}},
        "queries": torch.randn(8, 4, generator=generator),
        "items": torch.randn(500, 4, generator=generator),
        "history": ids(8, 5, low=-1),
        "score": lambda first, last: scores[:, first:last],
        "users": torch.tensor([0, 0, 1, 1, 1, 2, 2, 3]),
        "group": torch.arange(8) % 2,
    }


def test_the_table_has_calls():
    assert len(CALLS) == 13


@pytest.mark.parametrize("call", CALLS)
def test_each_call_of_the_table_runs(call):
    names = given()
    made = eval(call, names)
    if made is None and "metric" in call.split("(")[0]:
        assert 0 <= names["metric"].compute() <= 1
        assert names["metric"].update_count == 1


def test_the_other_examples_run(monkeypatch):
    names, logged = given(), []

    class Module:
        log_dict = logged.append

    names["self"] = Module()
    for example in EXAMPLES[1:]:
        exec(example, names)
    assert set(logged[0].compute()) == set(ranking_metrics([5, 10], prefix="val/"))
    assert names["Squared"](top_k=3)(torch.tensor([[0.1, 0.9]]), torch.tensor([0])) == 1 / 4


def test_no_link_within_the_repository_is_dead():
    root = Path(__file__).parents[1]
    for link in re.findall(r"\]\((?!https?:|#)([^)]+)\)", README):
        assert (root / link).exists(), link
    sections = {
        re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in README.splitlines()
        if line.startswith("#")
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", README)) <= sections
