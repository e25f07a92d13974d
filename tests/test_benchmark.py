"""The benchmark runs small, as a user runs it, and does not confuse a wrong value with a right one."""

import json
from pathlib import Path

import pytest
import scripts

pytestmark = pytest.mark.slow

BENCHMARK = Path(__file__).parents[1] / "examples" / "benchmark.py"
WORKLOADS = ["full", "large", "sampled", "relevance", "flat", "ragged", "retrieved", "embeddings", "small", "growth"]
PEERS = {"torcheval": "torcheval", "PyG": "torch_geometric", "ranx": "ranx"}


def run(*arguments, cwd):
    """Run it in a new process; return the cells of each table, what stands above them, and the progress."""
    # The other packages are missing here, whether they are installed or not.
    script = scripts.start(BENCHMARK, *arguments, cwd=cwd, missing=tuple(PEERS.values()))
    out, err = scripts.finish(script)
    header, *sections = out.split("\n### ")
    tables = {}
    for section in sections:
        lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
        titles, _, *rows = [[cell.strip() for cell in line] for line in lines]
        assert titles[:7] == ["", "ms", "ratio", "peak MiB", "host reads", "value", "equal"]
        assert all(len(row) == len(titles) for row in rows)
        tables[section.split(":")[0]] = rows
    return tables, header, err


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    place = tmp_path_factory.mktemp("benchmark")
    file = place / "results.json"
    tables, header, progress = run("--scale", 0.0005, "--repeats", 1, "--threads", 1, "--json", file, cwd=place)
    return tables, header, progress, json.loads(file.read_text(encoding="utf-8"))


def test_every_workload_has_its_table_and_the_header_tells_where_it_ran(small):
    tables, header, progress, _ = small
    assert list(tables) == WORKLOADS
    assert "1 threads" in header
    assert "torch " in header
    for name, rows in tables.items():
        assert all(f"{name}: {row[0]}\n" in progress for row in rows)


def test_every_row_of_ours_has_the_right_value(small):
    tables, *_ = small
    for name, rows in tables.items():
        values = {row[0]: row[6] for row in rows if row[0].startswith("mrr_torch")}
        assert values, name
        assert set(values.values()) == {"yes"}, values


def test_missing_packages_are_skipped_with_a_word(small):
    tables, *_ = small
    rows = [row for rows in tables.values() for row in rows]
    for name, module in PEERS.items():
        found = [row for row in rows if name in row[0]]
        assert found
        assert {row[1] for row in found} == {f"skipped: {module} is not installed"}
    assert sum("skipped" in row[1] for row in rows) == sum(any(name in row[0] for name in PEERS) for row in rows)


def test_json_holds_what_the_tables_say(small):
    tables, *_, results = small
    assert results["machine"]["versions"].startswith("mrr_torch ")
    assert list(results["workloads"]) == WORKLOADS
    for name, rows in tables.items():
        saved = results["workloads"][name]["rows"]
        assert [row["name"] for row in saved] == [row[0] for row in rows]
        assert all("skipped" in row or (row["seconds"] > 0 and row["ratio"] > 0) for row in saved)
    growth = results["workloads"]["growth"]["rows"]
    assert growth[-1]["scores"] == 1000 * growth[0]["scores"]
    assert len({row["state_bytes"] for row in growth}) == 1


def test_a_value_that_differs_is_not_called_equal(small):
    tables, *_ = small
    found = {name: {row[0]: row[6] for row in rows} for name, rows in tables.items()}
    # The plain expression takes no notice of ties. There are some in the scores, and none in a list of ids.
    assert found["sampled"]["1 + (scores > own).sum(1)"] == "no"
    assert found["retrieved"]["first of ids == wanted"] == "yes"
