"""What goals say of figures, and how figures of single cases are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench_goals, machine
from benchmarks.goals import Goal, judged


def test_a_goal_is_met_up_to_its_bound() -> None:
    assert Goal("G1", "seconds", 2.0, 2.0).is_met
    assert not Goal("G1", "seconds", 2.1, 2.0).is_met
    assert Goal("G8", "share", 0.95, 0.95, at_least=True).is_met
    assert not Goal("G8", "share", 0.94, 0.95, at_least=True).is_met


def test_verdicts_are_printed_and_returned(capsys: pytest.CaptureFixture[str]) -> None:
    said = judged([Goal("G2", "one task", 0.3, 0.25)])
    assert said == {"G2: one task": {"measured": 0.3, "bound": 0.25, "at_least": False, "met": False}}
    assert "MISSED" in capsys.readouterr().out


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (machine, bench_goals):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    return tmp_path


def test_a_case_leaves_the_others_in_their_file(results: Path) -> None:
    machine.add("executors", "one", {"seconds": 1})
    machine.add("executors", "ten", {"seconds": 2})
    machine.add("executors", "one", {"seconds": 3})
    saved = json.loads((results / "executors.json").read_text())
    assert {name: case["seconds"] for name, case in saved["cases"].items()} == {"one": 3, "ten": 2}
    assert all(case["date"] and case["commit"] for case in saved["cases"].values())
    assert saved["machine"]["cores"] >= 1


def test_the_table_has_what_is_saved_and_asks_for_the_rest(results: Path) -> None:
    goals = judged([Goal("G2", "one task", 0.3, 0.25), Goal("G2", "ten tasks", 0.1, 0.15)])
    machine.add("executors", "one", {"goals": goals})
    rows = bench_goals.main([])["rows"]
    assert [row[1:5] for row in rows if row[0] == "G2"] == [
        ("one task", "0.3", "≤ 0.25", "**missed**"),
        ("ten tasks", "0.1", "≤ 0.15", "met"),
    ]
    assert ("G3", "`python -m benchmarks executors --cases tiny`", "not yet", "", "", "") in rows
    assert {row[0] for row in rows} == {f"G{number}" for number in range(1, 15)}


def test_tests_that_hold_goals_are_there() -> None:
    folder = Path(__file__).parents[1] / "execution"
    named = [word.strip(",:").split("/")[-1] for text in bench_goals.TESTS.values() for word in text.split()]
    files = [word for word in named if word.endswith(".py")]
    assert files
    assert all((folder / file).exists() for file in files)
