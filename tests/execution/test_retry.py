"""When a task is tried again, and how long that waits."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest

from accelera.execution import ExecutionStrategy, Retry, StrategyManager, ThreadsExecutor
from accelera.testing import FakeGpu

PATIENCE_S = 30


@pytest.mark.parametrize(
    "options", [{"times": -1}, {"wait_s": -1}, {"wait_s": math.nan}, {"times": math.nan}]
)
def test_numbers_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="from 0"):
        Retry(**options)


@pytest.mark.parametrize("options", [{"times": "3"}, {"times": None}, {"wait_s": "1"}])
def test_what_is_no_number(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="both are numbers from 0"):
        Retry(**options)


@pytest.mark.parametrize("on", [[OSError], (3,), "OSError", (OSError, "ValueError"), None])
def test_what_is_no_kind_of_error(on: Any) -> None:
    with pytest.raises(TypeError, match=r"on=.* exceptions"):
        Retry(on=on)


def test_one_kind_needs_no_tuple() -> None:
    assert Retry(on=KeyError).allows(KeyError(), 1)  # type: ignore[arg-type]


def test_pauses_double_and_stay_finite() -> None:
    retry = Retry(times=10_000, wait_s=0.5)
    assert [retry.pause_s(attempts) for attempts in (1, 2, 3)] == [0.5, 1, 2]
    assert retry.pause_s(5000) == Retry(wait_s=math.inf).pause_s(1) == threading.TIMEOUT_MAX
    assert Retry(wait_s=0).pause_s(5000) == 0


@pytest.mark.parametrize("strategy", [ExecutionStrategy.CpuOnly, ExecutionStrategy.GpuOnly], ids=str)
def test_a_pause_ends_with_the_batch(strategy: ExecutionStrategy, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it is: the token is looked at meanwhile."""
    monkeypatch.setattr(
        "accelera.execution.executors.threads.IDLE_S", 0.01
    )  # a thread that is done soon ends
    failed, cancel = threading.Event(), threading.Event()
    workers: set[threading.Thread] = set()

    def fails(task: int) -> int:
        workers.add(threading.current_thread())
        failed.set()
        raise OSError("not yet")

    manager = StrategyManager(ThreadsExecutor(1), FakeGpu(), strategy, learn=False)
    retry = Retry(times=9, wait_s=math.inf)
    results: list[Any] = []
    others = set(threading.enumerate())
    thread = threading.Thread(
        target=lambda: results.append(manager.execute(range(3), fails, retry=retry, cancel=cancel)),
        daemon=True,
    )
    thread.start()
    assert failed.wait(PATIENCE_S)
    cancel.set()
    thread.join(PATIENCE_S)
    assert results[0].stopped_by == "cancelled"
    for each in workers | (set(threading.enumerate()) - others):
        if each.name.startswith("accelera-"):
            each.join(PATIENCE_S)
            assert not each.is_alive(), "it still waits"
