"""Rates that are learned: in any order, deaf to outliers, forgotten when a device has changed."""

from __future__ import annotations

import json
import logging
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelera.execution import WorkloadProfile, kernel
from accelera.execution.kernel import identity_of, key_of
from accelera.execution.strategy.history import (
    DevicePair,
    PerformanceHistory,
    PerformanceModel,
    machine_fingerprint,
    shared_history,
)
from accelera.execution.strategy.rates import KEPT, NEEDED, RateModel
from tests.architecture.repository import run_python

COUNTS = st.integers(1, 500)
SECONDS = st.floats(1e-6, 10.0)
PIECES = st.lists(st.tuples(COUNTS, SECONDS), min_size=1, max_size=NEEDED)
SIDES = DevicePair("cpu", "cpu model", 2, "gpu", "gpu model")


def rates_of(pieces: list[tuple[int, float]], *, launches: bool = True) -> RateModel:
    rates = RateModel(launches=launches)
    for count, seconds in pieces:
        rates.record(count, seconds)
    return rates


@given(PIECES, st.randoms())
def test_the_order_of_the_first_samples_does_not_matter(pieces: list[tuple[int, float]], dice: Any) -> None:
    one = rates_of(pieces).estimate()
    dice.shuffle(pieces)
    other = rates_of(pieces).estimate()
    assert one is not None
    assert other is not None
    assert one.samples == other.samples == len(pieces)
    total_s = sum(count * one.task_s + one.launch_s for count, _ in pieces)
    assert total_s == pytest.approx(
        sum(count * other.task_s + other.launch_s for count, _ in pieces), rel=1e-6
    )


@given(PIECES, st.booleans())
def test_all_pieces_together_are_predicted_to_take_what_they_took(
    pieces: list[tuple[int, float]], launches: bool
) -> None:
    estimate = rates_of(pieces, launches=launches).estimate()
    assert estimate is not None
    assert estimate.task_s > 0
    assert estimate.launch_s >= 0
    predicted_s = sum(estimate.seconds(count) for count, _ in pieces)
    assert predicted_s == pytest.approx(sum(seconds for _, seconds in pieces), rel=1e-6)


@given(st.floats(1e-5, 1e-2), st.floats(1e-5, 1e-1), st.sets(COUNTS, min_size=3, max_size=12))
def test_a_launch_and_a_task_are_told_apart(launch_s: float, task_s: float, counts: set[int]) -> None:
    estimate = rates_of([(count, launch_s + count * task_s) for count in counts]).estimate()
    assert estimate is not None
    for count in counts:
        assert estimate.seconds(count) == pytest.approx(launch_s + count * task_s, rel=0.02)


@given(st.lists(st.floats(0.9e-3, 1.1e-3), min_size=NEEDED, max_size=30), st.floats(5.0, 1e3))
def test_an_outlier_is_counted_and_not_averaged(tasks: list[float], factor: float) -> None:
    rates = rates_of([(1, seconds) for seconds in tasks], launches=False)
    before = rates.estimate()
    rates.record(1, factor * 1e-3)
    assert rates.estimate() == before
    assert (rates.samples, rates.errors) == (len(tasks), 1)


@given(st.integers(NEEDED, KEPT), st.sampled_from([0.05, 0.3, 3.0, 40.0]))
def test_a_device_that_has_changed_is_learned_anew(samples: int, factor: float) -> None:
    rates = rates_of([(1, 1e-3)] * samples, launches=False)
    for _ in range(samples):
        assert rates.samples == samples
        rates.record(1, factor * 1e-3)
    assert (rates.samples, rates.errors, rates.estimate()) == (0, 0, None)
    rates.record(1, factor * 1e-3)
    estimate = rates.estimate()
    assert estimate is not None
    assert estimate.task_s == pytest.approx(factor * 1e-3)


def test_tasks_that_differ_widen_what_is_no_outlier() -> None:
    rates = rates_of(
        [(1, seconds) for seconds in (1.0, 9.0, 2.0, 7.0, 1.5, 8.0, 3.0, 6.0, 1.0, 4.0)], launches=False
    )
    rates.record(1, 12.0)
    assert (rates.samples, rates.errors) == (11, 0)


@given(st.integers(KEPT, 500))
def test_what_is_old_counts_less_and_less(count: int) -> None:
    rates = rates_of([(1, 1e-3)] * count + [(1, 1.3e-3)] * KEPT, launches=False)
    estimate = rates.estimate()
    assert estimate is not None
    assert estimate.task_s > 1.15e-3
    assert rates.samples <= KEPT


@pytest.mark.parametrize(
    ("count", "seconds"), [(0, 1.0), (3, 0.0), (3, -1.0), (3, float("nan")), (3, float("inf"))]
)
def test_nonsense_is_ignored(count: int, seconds: float) -> None:
    assert rates_of([(count, seconds)]).estimate() is None


def test_other_code_or_size_is_another_function() -> None:
    def one(task: int) -> int:
        return task + 1

    first = identity_of(one)

    def one(task: int) -> int:  # type: ignore[no-redef]
        return task + 2

    assert first != identity_of(one)
    assert identity_of(kernel(pure=True)(one)) == identity_of(one)
    assert first.split("#")[0] == identity_of(one).split("#")[0]
    small, large = WorkloadProfile(9, memory_per_task=1000), WorkloadProfile(70, memory_per_task=10**6)
    assert key_of(one, small) == key_of(one, WorkloadProfile(10**6, memory_per_task=1023))
    assert len({key_of(one, None), key_of(one, small), key_of(one, large)}) == 3
    assert key_of(len, None).startswith("builtins.len ")


def test_the_hash_of_a_function_is_the_same_in_every_process(tmp_path: Path) -> None:
    module = tmp_path / "written.py"
    module.write_text("def f(x):\n    return [g for g in (lambda: x in {'a', 'b', 'c'},)]\n")
    code = "import written; from accelera.execution.kernel import identity_of\nprint(identity_of(written.f))"
    seeds = [{"PYTHONHASHSEED": seed, "PYTHONPATH": str(tmp_path)} for seed in ("1", "2")]
    said = {run_python("-c", code, cwd=tmp_path, environment=each).stdout for each in seeds}
    assert len(said) == 1
    assert "written.f#" in said.pop()


def record(
    book: PerformanceHistory, samples: list[tuple[str, int, float]], function: Any = len
) -> PerformanceModel:
    learner = PerformanceModel(lambda: book, SIDES)
    learner.record(function, None, samples, 1.0, (1.0, 1.0))
    return learner


def test_a_book_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rates.json"
    book = PerformanceHistory(path)
    record(book, [("cpu", 4, 0.1), ("gpu", 9, 1.5), ("gpu", 9, 0.2), ("gpu", 3, 0.1)])
    book.save()
    again = PerformanceHistory(path)
    key = key_of(len, None)
    before, after = book.entry(key), again.entry(key)
    assert before is not None
    assert after is not None
    assert after.estimates == before.estimates
    assert after.state() == before.state()
    assert again.begin_s("gpu model") == pytest.approx(1.3, rel=0.1)
    assert book.begin_s("gpu model") == 0.0
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: "{",
        lambda state: "[]",
        lambda state: json.dumps({**state, "format": 99}),
        lambda state: json.dumps({**state, "machine": {"processor": "another"}}),
        lambda state: json.dumps({**state, "functions": {"f": {"batches": 1}}}),
        lambda state: json.dumps(state).replace("[false, 1,", "[false, -1,"),
    ],
    ids=["cut off", "no book", "other format", "other machine", "incomplete", "impossible"],
)
def test_a_file_that_is_of_no_use_is_left_alone(
    tmp_path: Path, spoil: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rates.json"
    book = PerformanceHistory(path)
    record(book, [("cpu", 4, 0.1)])
    book.save()
    path.write_text(spoil(json.loads(path.read_text())))
    with caplog.at_level(logging.DEBUG, "accelera.execution"):
        assert PerformanceHistory(path).entry(key_of(len, None)) is None
    assert "are not used" in caplog.text


def test_where_nothing_can_be_written_nothing_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    book = PerformanceHistory(tmp_path / "file" / "rates.json")
    record(book, [("cpu", 4, 0.1)])
    with caplog.at_level(logging.DEBUG, "accelera.execution"):
        book.save()
    assert "cannot be kept" in caplog.text


def test_changes_are_saved_now_and_then(tmp_path: Path) -> None:
    now = [0.0]
    path = tmp_path / "rates.json"
    book = PerformanceHistory(path, clock=lambda: now[0])
    record(book, [("cpu", 4, 0.1)])
    assert not path.exists()
    now[0] = 61.0
    record(book, [("cpu", 4, 0.1)])
    assert path.exists()


def test_the_books_place_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERA_CACHE", str(tmp_path))
    shared_history.cache_clear()
    record(shared_history(), [("cpu", 4, 0.1)])
    shared_history().save()
    assert (tmp_path / "rates.json").exists()


def test_the_first_piece_on_a_gpu_tells_how_it_begins_and_not_how_fast_it_is() -> None:
    book = PerformanceHistory()
    learner = record(book, [("gpu", 1, 0.9), ("gpu", 1, 0.1), ("gpu", 1, 0.1), ("gpu", 1, 0.1)])
    entry = learner.known(len, None)
    assert entry is not None
    assert entry.samples("gpu model") == 3
    assert entry.estimates["gpu model"].seconds(1) == pytest.approx(0.1)
    assert learner.beginning() == (0.0, True)
    assert book._begin_s == {"gpu model": pytest.approx(0.8)}


def test_seconds_are_kept_as_on_a_machine_of_ones_own() -> None:
    learner = PerformanceModel(lambda: book, SIDES)
    book = PerformanceHistory()
    learner.record(len, None, [("cpu", 2, 0.4)], 1.0, (0.5, 1.0))
    entry = learner.known(len, None)
    assert entry is not None
    assert entry.estimates["cpu model"].task_s == pytest.approx(0.1)


def test_measurements_hold_for_the_versions_that_are_installed() -> None:
    versions = machine_fingerprint()["libraries"]
    assert versions == {
        name: metadata.version(name) for name in ("accelera_engine", "numpy", "scipy", "torch")
    }
