"""``accelera simulate`` and ``accelera sweep``: traces replayed from files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from accelera.simulator import gated, generate_synthetic_trace, lower_bound, score, simulate
from accelera.trace import Occupancy, Trace, write_trace
from tests.cli.conftest import call


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trace:
    monkeypatch.chdir(tmp_path)
    trace = generate_synthetic_trace("MLP", 4, 8, 16, 0.2, mode="training", hidden_size=64)
    write_trace(trace, "t.parquet")
    return trace


def test_simulate_prints_the_same_figures_as_the_function(trace: Trace) -> None:
    capacity = Occupancy(trace).peak_bytes // 2
    ran = call("simulate", "t.parquet", "--budget", str(capacity), "--policy", "planner", "--json")
    found, report = json.loads(ran.stdout), simulate(trace, capacity, "planner")
    assert found["moved_bytes"] == report.moved_bytes
    assert found["lower_bound_bytes"] == lower_bound(trace, capacity)
    assert found["policy"] == "planner"


def test_a_policy_that_follows_scores_comes_with_the_gates_verdict(trace: Trace) -> None:
    wanted = gated(trace, "heuristic", "50%").to_dict()
    found = json.loads(call("simulate", "t.parquet", "-b", "50%", "-p", "ML", "--json").stdout)
    assert found["gate"] == wanted
    assert f"gate: {wanted['reason']}" in call("simulate", "t.parquet", "-b", "50%", "-p", "scored").stdout
    told = json.loads(call("simulate", "t.parquet", "-b", "50%", "-p", "iteration_replay", "--json").stdout)
    assert told["gate"]["scorer_bytes"] == told["moved_bytes"]
    assert "gate" not in call("simulate", "t.parquet", "-b", "50%").stdout


def test_simulate_as_text(trace: Trace) -> None:
    ran = call("simulate", "t.parquet", "-b", "50%", "--lookahead", "2", "--recompute")
    assert ran.exit_code == 0
    for word in ("evictions", "moved", "under lru", "no schedule moves less than"):
        assert word in ran.stdout
    assert "no schedule" not in call("simulate", "t.parquet", "-b", "50%", "--no-bound").stdout


def test_a_share_is_one_of_the_peak(trace: Trace) -> None:
    found = json.loads(call("simulate", "t.parquet", "-b", "25%", "--json").stdout)
    assert found["tiers"][0]["capacity_bytes"] == Occupancy(trace).peak_bytes // 4


def test_a_preset_with_and_without_another_capacity(trace: Trace) -> None:
    whole = json.loads(call("simulate", "t.parquet", "--hierarchy", "laptop", "--json").stdout)
    less = json.loads(call("simulate", "t.parquet", "--hierarchy", "laptop", "-b", "1MiB", "--json").stdout)
    assert [tier["name"] for tier in whole["tiers"]] == [tier["name"] for tier in less["tiers"]]
    assert less["tiers"][0]["capacity_bytes"] == 2**20 < whole["tiers"][0]["capacity_bytes"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("simulate", "t.parquet"), "give --budget"),
        (("simulate", "t.parquet", "-b", "5q"), "not a size"),
        (("simulate", "t.parquet", "-b", "1GiB", "-p", "lur"), "did you mean 'lru'"),
        (("simulate", "t.parquet", "--hierarchy", "labtop"), "did you mean 'laptop'"),
        (("sweep", "t.parquet", "-p", "lur"), "did you mean 'lru'"),
        (("sweep", "t.parquet", "--plot", "x.pdf"), ".png nor .html"),
        (("sweep", "t.parquet", "-b", "much"), "not a size"),
        (("sweep", "t.parquet", "--cluster", "slurm"), "the only one known is ray"),
        (("simulate", "t.parquet", "-b", "99999999TiB"), "over 2**62 bytes"),
        (("simulate", "t.parquet", "-b", "1MiB", "--seed", "-1"), "'--seed'"),
        (("sweep", "t.parquet", "-b", "0"), "0 capacities are none"),
        (("sweep", "t.parquet", "--plot", "nowhere/s.html"), "no folder nowhere"),
        (("sweep", "t.parquet", "-b", ","), "nothing is named"),
        (("sweep", "t.parquet", "-b", "-3"), "'--budgets'"),
        (("sweep", "t.parquet", "-p", ""), "leave it out to try all"),
        (("advise", "t.parquet", "-b", "99999999TiB"), "over 2**62 bytes"),
    ],
)
def test_what_cannot_be_meant_is_usage(trace: Trace, words: tuple[str, ...], says: str) -> None:
    ran = call(*words)
    assert ran.exit_code == 2
    assert says in ran.output


def test_an_absent_file_is_a_matter_of_stores(trace: Trace) -> None:
    assert call("simulate", "u.parquet", "-b", "1GiB").exit_code == 4


def test_sweep_as_text_with_a_page(trace: Trace) -> None:
    ran = call("sweep", "t.parquet", "-b", "6", "-p", "lru,planner", "--plot", "s.html")
    assert ran.exit_code == 0
    for word in ("lower bound", "planner", "best by and large", "knee"):
        assert word in ran.stdout
    assert Path("s.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_sweep_as_json(trace: Trace) -> None:
    ran = call("sweep", "t.parquet", "-b", "1MiB,50%", "-p", "lru", "--json")
    found = json.loads(ran.stdout)
    assert found["capacities"] == sorted([2**20, Occupancy(trace).peak_bytes // 2])
    assert [row["policy"] for row in found["rows"]] == ["lru", "lru"]
    assert all(row["regret"] >= 1 for row in found["rows"])


def test_quiet_sweep_only_plots(trace: Trace) -> None:
    ran = call("sweep", "t.parquet", "-b", "3", "-p", "lru", "--quiet", "--no-bound", "--plot", "s.html")
    assert ran.output == ""
    assert Path("s.html").exists()


def test_the_learned_policy_scores_the_trace_itself(trace: Trace) -> None:
    pytest.importorskip("lightgbm", reason="the extra learned is not installed")
    size = Occupancy(trace).peak_bytes // 2
    wanted = simulate(trace, size, "learned", score=score(trace, "learned")).moved_bytes
    alone = call("simulate", "t.parquet", "-b", str(size), "-p", "learned", "--json", "--no-bound")
    swept = call("sweep", "t.parquet", "-b", str(size), "-p", "lru,Learned", "--json", "--no-bound")
    assert json.loads(alone.stdout)["moved_bytes"] == wanted
    assert json.loads(swept.stdout)["rows"][1]["moved_bytes"] == wanted
