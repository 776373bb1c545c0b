"""``execute_batch`` of executors that are lanes, called by itself as seed 002 does."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from accelera.execution import AutoCpuExecutor, ThreadsExecutor, kernel
from accelera.execution.executors.whole import outputs_of
from accelera.execution.work.contract import Work
from accelera.execution.work.pieces import Side

Executor = ThreadsExecutor | AutoCpuExecutor
PATIENCE_S = 30


@pytest.fixture(params=[ThreadsExecutor, AutoCpuExecutor])
def executor(request: pytest.FixtureRequest) -> Executor:
    made: Executor = request.param(3)
    return made


def test_outputs_are_in_order(executor: Executor) -> None:
    assert executor.execute_batch([3, 1, 2], str) == ["3", "1", "2"]
    assert executor.execute_batch([], str) == []


def test_an_interrupted_caller_begins_nothing_further(executor: Executor) -> None:
    caller, others, go = threading.current_thread(), threading.Semaphore(0), threading.Event()
    begun: list[int] = []

    @kernel(releases_gil=True)
    def interrupted(task: int) -> None:
        begun.append(task)
        if threading.current_thread() is caller:
            assert others.acquire(timeout=PATIENCE_S)
            raise KeyboardInterrupt
        others.release()
        go.wait(PATIENCE_S)

    with pytest.raises(KeyboardInterrupt):
        executor.execute_batch(range(1000), interrupted)
    go.set()
    for thread in threading.enumerate():
        if thread.name == "accelera-cpu":
            thread.join(PATIENCE_S)
    assert len(begun) <= 3, "one task for each thread"


class Fails:
    """A lane whose last task fails first."""

    name = "fails"

    def work(self, work: Work, *, caller: bool) -> None:
        piece = work.take(Side.CPU, 2)
        assert piece is not None
        for index in (1, 0):
            work.fail(index, LookupError(index), self.name)


class Breaks:
    """A lane that cannot work."""

    name = "breaks"

    def work(self, work: Work, *, caller: bool) -> None:
        work.break_down(OSError("no workers"))


def test_of_several_errors_that_of_the_first_task_is_raised() -> None:
    with pytest.raises(LookupError, match=r"^0$"):
        outputs_of(Fails(), range(3), abs)


def test_what_ends_the_lane_is_raised() -> None:
    with pytest.raises(OSError, match="no workers"):
        outputs_of(Breaks(), range(3), abs)


def test_what_comes_later_changes_nothing() -> None:
    works: list[Any] = []

    class Keeps:
        name = "keeps"

        def work(self, work: Work, *, caller: bool) -> None:
            works.append(work)
            work.finish(0, [1, 2])

    outputs = outputs_of(Keeps(), range(2), abs)
    works[0].finish(0, [3, 4])
    assert outputs == [1, 2]
