"""The examples run as a user runs them, small, and do what they say."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import scripts
import torch
from scripts import Script, finish

EXAMPLES = Path(__file__).parents[1] / "examples"
PROTOCOLS = ("full catalogue", "target + 99 sampled", "target + 99 expected")
TINY = ("--users", "300", "--items", "200", "--epochs", "3")

# user, item, timestamp; the lines are not in order of time, and two events of user 10 are simultaneous.
EVENTS = [
    ("2", "b7", 30),
    ("10", "a", 20),
    ("10", "c", 20),
    ("2", "a", 10),
    ("10", "b7", 5),
    ("2", "b12", 20),
    ("9", "c", 1),
]
# a, c, b7, b12 are numbered 1 to 4, and the users come as 2, 9, 10.
SEQUENCES = [[1, 4, 3], [2], [3, 1, 2]]
FILES = {
    "u.data": "".join(f"{user}\t{item}\t4\t{time}\n" for user, item, time in EVENTS),
    "ratings.dat": "".join(f"{user}::{item}::4::{time}\n" for user, item, time in EVENTS),
    "x.inter": "item_id:token\ttimestamp:float\tuser_id:token\n"
    + "".join(f"{item}\t{time}.5\t{user}\n" for user, item, time in EVENTS),
    "pairs.txt": "".join(f"{user} {item}\n" for user, item, _ in sorted(EVENTS, key=lambda event: event[2])),
}


def start(script: str, *arguments: str | Path, cwd: Path) -> Script:
    return scripts.start(EXAMPLES / script, *arguments, cwd=cwd)


@pytest.fixture(scope="module")
def interactions() -> ModuleType:
    spec = importlib.util.spec_from_file_location("interactions", EXAMPLES / "interactions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_quickstart_prints_the_values_it_explains(tmp_path):
    out, err = finish(start("quickstart.py", cwd=tmp_path))
    values = [line.split()[-1] for line in out.splitlines()]
    for expected in ("0.6111", "0.5000", "0.5327", "1.0000", "0.8333", "0.6667", "0.7500"):
        assert expected in values
    assert err == ""


def values(out: str) -> dict[tuple[str, str], list[float]]:
    """Return MRR, hit rate and NDCG of each protocol and model in the table."""
    rows = (re.split(r"\s{2,}", re.sub(r"\[.*?\]", " ", line).strip()) for line in out.splitlines())
    return {
        (row[0], row[1]): [float(cell) for cell in row[2:]] for row in rows if row[0] in PROTOCOLS and len(row) == 5
    }


@pytest.mark.slow
def test_sasrec_beats_popularity_in_both_protocols_and_the_same_each_time(interactions, tmp_path):
    first, second = (start("train_sasrec.py", *TINY, cwd=tmp_path) for _ in range(2))
    (out, err), (again, _) = finish(first), finish(second)

    table = values(out)
    models = ("SASRec", "GRU4Rec", "popularity", "chance")
    assert list(table) == [(protocol, model) for protocol in PROTOCOLS for model in models]
    for protocol in PROTOCOLS:
        sasrec, popularity, chance = (table[protocol, model] for model in ("SASRec", "popularity", "chance"))
        assert all(a > b > c for a, b, c in zip(sasrec, popularity, chance, strict=True)), out
    assert table["full catalogue", "SASRec"][0] > 2 * table["full catalogue", "popularity"][0]
    assert "300 queries" in out
    # All items but padding and the whole history, the validation item included; nobody has an item twice.
    left = [200 - len(items[:-1]) for items in interactions.generate(300, 200, seed=0).sequences]
    assert f"200 items without the user's history ({sum(left) / 300:.0f} on average)" in out
    # A random order puts the target on each of the 100 places alike often.
    assert table[PROTOCOLS[1], "chance"] == pytest.approx(
        [
            sum(1 / rank for rank in range(1, 11)) / 100,
            0.1,
            sum(1 / math.log2(1 + rank) for rank in range(1, 11)) / 100,
        ],
        abs=5e-5,  # four digits are printed
    )
    # One draw of negatives for 300 queries: values of 0 to 1 have a standard error below 0.03.
    for model in models:
        drawn, expected = (table[protocol, model] for protocol in PROTOCOLS[1:])
        assert drawn == pytest.approx(expected, abs=0.1)
    assert "Krichene and Rendle" in out

    assert again == out
    assert "Epoch 2: 100%" in err  # the progress bar
    assert "Warning" not in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []  # no logs, no checkpoints


@pytest.mark.slow
def test_a_run_goes_on_from_its_last_checkpoint_with_the_negatives_of_its_first(tmp_path):
    kept = ("--models", "SASRec", "--output", "runs", "--negatives-file", "negatives.pt", "--dropout", "0")
    arguments = ("train_sasrec.py", *TINY, *kept)
    out, _ = finish(start(*arguments, cwd=tmp_path))
    assert json.loads((tmp_path / "runs/results.json").read_text())["full catalogue"]["SASRec"]["mrr@10"] == (
        pytest.approx(values(out)["full catalogue", "SASRec"][0], abs=5e-5)  # four digits are printed
    )
    (tmp_path / "runs").rename(tmp_path / "whole")
    negatives = (tmp_path / "negatives.pt").read_bytes()
    finish(start(*arguments, "--epochs", "2", cwd=tmp_path))
    resumed, _ = finish(start(*arguments, "--resume", cwd=tmp_path))
    assert resumed == out  # two epochs and one are three, as nothing is dropped at random
    assert (tmp_path / "negatives.pt").read_bytes() == negatives
    folders = ("whole/SASRec/csv/version_0", "runs/SASRec/csv/version_0", "runs/SASRec/csv/version_1")
    logs = [(tmp_path / folder / "metrics.csv").read_text().splitlines() for folder in folders]
    epochs = [sorted({line.split(",")[0] for line in log[1:]}) for log in logs]
    assert epochs == [["0", "1", "2"], ["0", "1"], ["2"]]


@pytest.mark.slow
@pytest.mark.usefixtures("sasrec")
def test_negatives_of_other_data_are_refused(interactions, tmp_path):
    data = importlib.import_module("sasrec.data")
    queries = interactions.leave_one_out(interactions.generate(50, 200, seed=0)).test
    data.candidates(data.batches(queries, 5), 200, 99, 0, tmp_path / "negatives.pt")
    few = ("--models", "GRU4Rec", "--epochs", "1", "--users", "60", "--items", "200")
    process = start("train_sasrec.py", "--negatives-file", "negatives.pt", *few, cwd=tmp_path)
    code, _, err = process.end()
    assert code != 0
    assert err.splitlines()[-1] == (
        "train_sasrec.py: negatives.pt: expected 99 negatives for each of these 60 test items, got those of other data"
    )


def test_core_drops_what_is_rare_until_nothing_is(interactions):
    # Without user 4, item 5 has one interaction; without item 5, user 3 has one.
    data = interactions.Interactions("data", [[1, 3], [3, 1], [5, 3], [5]], 5)
    kept = interactions.core(data, 2)
    assert kept.sequences == [[1, 2], [2, 1]]
    assert kept.num_items == 2
    assert interactions.core(data, 1) is data
    with pytest.raises(interactions.DataError, match="data: no user and item has 4 interactions"):
        interactions.core(data, 4)


@pytest.mark.parametrize("name", FILES)
def test_all_formats_give_the_same_sequences(interactions, tmp_path, name):
    path = tmp_path / "interactions"  # the contents tell the format, not the name
    path.write_text(FILES[name], encoding="utf-8")
    data = interactions.read(path)
    assert data.sequences == SEQUENCES
    assert data.num_items == 4


def test_inter_without_timestamps_is_in_the_order_of_lines(interactions, tmp_path):
    path = tmp_path / "x.inter"
    path.write_text("user_id:token\titem_id:token\nu\tb\nu\ta\nu\tb\n", encoding="utf-8")
    assert interactions.read(path).sequences == [[2, 1, 2]]


def test_windows_line_ends_blank_lines_and_a_byte_order_mark_change_nothing(interactions, tmp_path):
    path = tmp_path / "u.data"
    path.write_bytes(b"\xef\xbb\xbf" + FILES["u.data"].replace("\n", "\r\n").encode() + b"\r\n\r\n")
    assert interactions.read(path).sequences == SEQUENCES


@pytest.mark.parametrize(
    ("contents", "line"),
    [
        (b"", 1),
        (b"user,item,rating,timestamp\n1,2,3,4\n", 1),
        (b"1\t2\t3\t4\n1\t2\t3\n", 2),
        (b"1\t2\t3\tyesterday\n", 1),
        (b"1\t2\t3\tnan\n", 1),
        (b"1\t\t3\t4\n", 1),
        (b"1::2::3::4\n\n1 2\n", 3),
        (b"user_id:token\ttimestamp:float\n1\t2\n", 1),
        (b"user_id:token\titem_id:token\n1\t2\n1\n", 3),
        (b"1 2\n1 2 3\n", 2),
        (b"1 2\n\xff\xfe 3\n", 2),
    ],
)
def test_bad_files_are_refused_with_the_line(interactions, tmp_path, contents, line):
    path = tmp_path / "bad"
    path.write_bytes(contents)
    with pytest.raises(interactions.DataError) as caught:
        interactions.read(path)
    assert str(caught.value).startswith(f"{path}:{line}: expected ")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_bad_file_ends_the_program_with_one_line(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("1 2\n1 2 3\n", encoding="utf-8")
    process = start("train_sasrec.py", "--data", path, cwd=tmp_path)
    code, out, err = process.end()
    assert code != 0
    assert out == ""
    assert err.splitlines() == [
        f"train_sasrec.py: {path}:2: expected 2 fields, as a file of 'user item' lines has, got '1 2 3'"
    ]


def test_missing_files_are_refused(interactions, tmp_path):
    with pytest.raises(interactions.DataError, match="nothing here: No such file"):
        interactions.read(tmp_path / "nothing here")


def test_split_holds_out_the_last_two_and_keeps_the_validation_item_in_the_test_history(interactions):
    split = interactions.leave_one_out(interactions.Interactions("data", [[1, 2, 3, 4], [5, 6]], 9))
    assert split.train == [[1, 2], [5, 6]]  # too short to evaluate: all of it is for training
    assert split.validation == [([1, 2], 3)]
    assert split.test == [([1, 2, 3], 4)]


@pytest.mark.parametrize("sequences", [[[1, 2], [3, 4]], [[1, 2, 3], [3, 2, 1]]])
def test_data_without_anything_to_evaluate_or_to_train_on_are_refused(interactions, sequences):
    with pytest.raises(interactions.DataError, match="data: no user has"):
        interactions.leave_one_out(interactions.Interactions("data", sequences, 9))


@pytest.fixture
def sasrec(monkeypatch) -> Iterator[None]:
    """The modules of the example, which find each other as they do when it is run as a script."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(EXAMPLES)
    yield
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("sasrec", "interactions"):
            del sys.modules[name]


@pytest.mark.usefixtures("sasrec")
def test_negatives_are_distinct_and_unseen_and_drawn_once(interactions, tmp_path):
    data = importlib.import_module("sasrec.data")
    queries = interactions.leave_one_out(interactions.generate(300, 150, seed=0)).test
    batches = data.batches(queries, 5)
    path = tmp_path / "folder" / "negatives.pt"
    drawn = data.candidates(batches, 150, 99, 0, path)
    rows = [
        row for batch, candidates in zip(batches, drawn, strict=True) for row in zip(*batch, candidates, strict=True)
    ]
    for query, (recent, exclude, target, candidates) in zip(queries, rows, strict=True):
        assert {*exclude.tolist()} == {0, *query.history}  # padding, item 0, never competes
        assert recent.tolist() == (query.history[-5:] + [0] * 5)[:5]
        assert candidates[0] == target == query.target
        assert len({*candidates.tolist()}) == 100
        assert not {*candidates.tolist()} & {0, *query.history}
    for first, second in zip(drawn, data.candidates(batches, 150, 99, 1, path), strict=True):
        assert torch.equal(first, second)  # of the file, not of the other seed


@pytest.mark.usefixtures("sasrec")
def test_a_training_batch_has_sequences_of_like_length_and_an_epoch_has_each_once():
    data = importlib.import_module("sasrec.data")
    lengths = [2] * 40 + [3] * 30 + [10] * 20 + [50] * 3
    sampler = data.LikeLength(lengths, 8, seed=0)
    epochs = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
        assert len(epochs[-1]) == len(sampler)
        assert sorted(number for batch in epochs[-1] for number in batch) == list(range(len(lengths)))
        for batch in epochs[-1]:
            assert len(batch) * max(lengths[number] for number in batch) <= max(8 * sum(lengths) / len(lengths), 50)
    assert epochs[0] != epochs[1]
    halves = [list(data.LikeLength(lengths, 8, 0, processes=2, process=process)) for process in range(2)]
    assert len(halves[0]) == len(halves[1])
    numbers = [number for half in halves for batch in half for number in batch]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.usefixtures("sasrec")
@pytest.mark.parametrize("model", ["SASRec", "GRU4Rec"])
def test_a_model_looks_back_only_and_not_at_padding(model):
    models = importlib.import_module("sasrec.models")
    torch.manual_seed(0)
    model = (models.SASRec(20, 8, 6) if model == "SASRec" else models.GRU4Rec(20, 8)).eval()
    sequence = torch.tensor([[3, 1, 4, 1, 5]])
    whole = model(sequence)
    torch.testing.assert_close(model(sequence[:, :3]), whole[:, :3])
    torch.testing.assert_close(model.queries(torch.cat([sequence, torch.zeros(1, 1).long()], 1)), whole[:, -1])


@pytest.mark.usefixtures("sasrec")
@pytest.mark.parametrize("loss", ["softmax", "sampled-softmax", "bce", "gbce"])
def test_losses_push_the_next_item_up_and_the_others_down(loss):
    losses = importlib.import_module("sasrec.losses")
    assert loss in losses.LOSSES
    torch.manual_seed(0)
    batch = torch.tensor([[1, 2, 3], [2, 4, 0]])
    hidden, items = torch.randn(2, 2, 8, requires_grad=True), torch.randn(9, 8)
    losses.next_item_loss(loss, hidden, items, batch, negatives=200).backward()
    assert hidden.grad[1, 1].abs().sum() == 0  # padding follows
    gradient = hidden.grad.reshape(-1, 8)[:3] @ items.T  # what a step down would take from each score
    for row, target in zip(gradient, batch[:, 1:].reshape(-1)[:3], strict=True):
        assert row[target] < 0


@pytest.mark.usefixtures("sasrec")
@pytest.mark.parametrize(("calibration", "beta"), [(0.0, 1.0), (1.0, 1 / 9), (0.5, (1 + 1 / 9) / 2)])
def test_gbce_weights_the_target_between_one_and_the_share_of_items_drawn(calibration, beta):
    losses = importlib.import_module("sasrec.losses")
    items = torch.zeros(11, 2)  # ten items, nine of them other than the target, of which one is drawn
    items[2, 0] = 2
    for _ in range(20):
        loss = losses.next_item_loss("gbce", torch.ones(1, 1, 2), items, torch.tensor([[1, 2]]), 1, calibration)
        positive = beta * math.log1p(math.exp(-2))
        drawn = (math.log(2), 0.0)  # another item, whose score is 0; or the target, which is no negative
        assert any(float(loss) == pytest.approx((positive + negative) / 2) for negative in drawn)


def test_the_spread_over_runs_is_their_standard_deviation(tmp_path):
    for number, value in enumerate((0.1, 0.2, 0.6)):
        values = {"full catalogue": {"SASRec": {"mrr@10": value, "hit_rate@10": 0.5, "ndcg@10": 1 - value}}}
        (tmp_path / f"{number}.json").write_text(json.dumps(values), encoding="utf-8")
    out, _ = finish(start("sasrec/spread.py", *sorted(tmp_path.glob("*.json")), cwd=tmp_path))
    # The squared distances from the mean of 0.3 add up to 0.14, and there are three values.
    shown = f"0.3000 ± {math.sqrt(0.14 / 2):.4f}", "0.5000 ± 0.0000", f"0.7000 ± {math.sqrt(0.14 / 2):.4f}"
    assert re.split(r"\s{2,}", out.splitlines()[1]) == ["full catalogue", "SASRec", *shown]


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_train_and_validate_each_query_once(tmp_path):
    # 1,100 queries are three batches: a sampler that gives both processes as many would give one of them twice.
    few = ("--users", "1100", "--items", "200", "--epochs", "2", "--models", "GRU4Rec")
    arguments = (*few, "--dropout", "0", "--learning-rate", "1e-12", "--output")
    alone = start("train_sasrec.py", *arguments, "one", cwd=tmp_path)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    command = [*torchrun, EXAMPLES / "train_sasrec.py", *arguments, "two", "--devices", "2"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    two = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=True
    )
    one, _ = finish(alone)
    assert two.stdout == one  # the weights have not moved, and one process prints
    columns = [
        [line.split(",")[3:] for line in (tmp_path / log).read_text().splitlines()[1::2]]
        for log in ("one/GRU4Rec/csv/version_0/metrics.csv", "two/GRU4Rec/csv/version_0/metrics.csv")
    ]
    assert columns[0] == columns[1]


def test_windows_have_each_item_but_the_first_as_a_target_once(interactions):
    for count in range(12):
        parts = interactions.windows([list(range(count))], 3)
        assert all(2 <= len(part) <= 4 for part in parts)
        assert sorted(item for part in parts for item in part[1:]) == list(range(1, count))


def test_generated_data_is_the_same_for_the_same_seed(interactions):
    data = interactions.generate(20, 50, seed=3)
    assert data == interactions.generate(20, 50, seed=3)
    assert data.sequences != interactions.generate(20, 50, seed=4).sequences
    assert all(len(set(items)) == len(items) and {*items} <= set(range(1, 51)) for items in data.sequences)


@pytest.mark.slow
def test_sampled_and_full_values_stand_side_by_side_and_turn_round(tmp_path):
    out, _ = finish(
        start(
            "sampled_vs_full.py", "--users", "200", "--items", "150", "--epochs", "1", "--plot", "x.png", cwd=tmp_path
        )
    )
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    values: dict[tuple[str, str, str], float] = {}
    model = ""
    for line in out.splitlines():
        if line.startswith("  "):
            protocol, name, value, *_ = line.split()
            values[model, protocol, name] = float(value)
        else:
            model = line
    assert values["SASRec", "sampled", "mrr@10"] >= values["SASRec", "full", "mrr@10"]
    for protocol, sign in (("full", 1), ("sampled", -1), ("expected", -1)):
        sharp, high = (values[name, protocol, "mrr@10"] for name in ("sharp for a few", "rather high"))
        assert sign * (sharp - high) > 0.05
    # 5,000 queries with values of 0 to 1: a standard error below 0.007.
    for name in ("sharp for a few", "rather high"):
        assert values[name, "sampled", "mrr@10"] == pytest.approx(values[name, "expected", "mrr@10"], abs=0.03)


@pytest.mark.slow
def test_the_published_protocol_is_read_from_its_files(tmp_path):
    generator = np.random.default_rng(0)
    lines = []
    for user in range(5):
        target, *negatives = generator.permutation(150)[:100].tolist()
        negatives[7] = target  # drawn by accident, as in the published file
        lines.append("\t".join([f"({user},{target})", *map(str, negatives)]))
    (tmp_path / "x.test.negative").write_text("\n".join(lines), encoding="utf-8")
    user, item = generator.normal(size=(5, 3)), generator.normal(size=(150, 3))
    for row in range(5):  # the target is each user's best item, and nothing may take that away
        target = int(lines[row].split(",")[1].split(")")[0])
        item[target] = user[row] = 10 * np.eye(5, 3)[row % 3] * (1 + row)
    arrays = {"user_embedding": user, "item_embedding": item, "output_weight": np.ones(3), "output_bias": np.zeros(1)}
    np.savez(tmp_path / "model.npz", **{name: array.astype(np.float32) for name, array in arrays.items()})
    out, err = finish(start("published_protocol.py", tmp_path, cwd=tmp_path))
    assert err == ""
    assert "as published: HR@10 1.000000" in out
    assert "target + 99 sampled negatives (99 candidates)" in out
    assert "expected over draws from 150 candidates" in out


@pytest.mark.distributed
def test_two_processes_print_the_table_of_one(tmp_path):
    alone = start("evaluate_ddp.py", cwd=tmp_path)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [*torchrun, EXAMPLES / "evaluate_ddp.py"]
    two = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=True
    )
    one, _ = finish(alone)
    assert one.startswith("HitRate@10")
    assert two.stdout == one
