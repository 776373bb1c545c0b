"""``execute_batch`` of executors that are lanes, called by itself as seed 002 does."""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from typing import Any

import pytest

from accelera.execution import AutoCpuExecutor, ThreadsExecutor, kernel
from accelera.execution.executors.lanes import outputs_of
from accelera.execution.tasks.queue import DeviceKind, TaskQueue

Executor = ThreadsExecutor | AutoCpuExecutor
PATIENCE_S = 300


@pytest.fixture(params=[ThreadsExecutor, AutoCpuExecutor])
def executor(request: pytest.FixtureRequest) -> Executor:
    made: Executor = request.param(3)
    return made


def test_outputs_are_in_order(executor: Executor) -> None:
    assert executor.execute_batch([3, 1, 2], str) == ["3", "1", "2"]
    assert executor.execute_batch([], str) == []


def test_an_interrupted_caller_begins_nothing_further(executor: Executor) -> None:
    began, go = threading.Barrier(3), threading.Event()
    begun: list[int] = []
    ended = threading.Semaphore(0)

    @kernel(releases_gil=True)
    def interrupted(task: int) -> None:
        begun.append(task)
        try:
            if began.wait(PATIENCE_S) == 0:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            go.wait(PATIENCE_S)
        finally:
            ended.release()

    with pytest.raises(KeyboardInterrupt):
        executor.execute_batch(range(1000), interrupted)
    go.set()
    assert all(ended.acquire(timeout=PATIENCE_S) for _ in range(3))
    assert not ended.acquire(timeout=0.1)
    assert len(begun) == 3, "one task for each thread"


def test_threads_stay_for_the_next_batch_and_keep_nothing_of_the_last(executor: Executor) -> None:
    class Output:
        pass

    @kernel(releases_gil=True)
    def slow(task: int) -> tuple[int, Output]:
        time.sleep(0.01)
        return threading.get_ident(), Output()

    before = threading.active_count()
    threads: set[int] = set()
    alive: list[weakref.ref[Output]] = []
    for _ in range(5):
        outputs = executor.execute_batch(range(9), slow)
        threads |= {ident for ident, _ in outputs}
        alive += [weakref.ref(output) for _, output in outputs]
    del outputs
    assert threading.get_ident() not in threads
    assert len(threads) <= threading.active_count() <= before + 3
    assert not any(each() for each in alive)


def test_a_forked_process_has_threads_of_its_own(executor: Executor) -> None:
    @kernel(releases_gil=True)
    def slow(task: int) -> int:
        time.sleep(0.01)
        return task

    assert executor.execute_batch(range(9), slow) == list(range(9))
    child = os.fork()
    if not child:
        differs = True
        try:
            differs = executor.execute_batch(range(9), slow) != list(range(9))
        finally:
            os._exit(differs)  # whatever happens: it would go on as a second process of these tests
    assert os.waitpid(child, 0)[1] == 0


class Fails:
    """A lane whose last task fails first."""

    name = "fails"

    def work(self, work: TaskQueue, *, caller: bool) -> None:
        piece = work.take(DeviceKind.CPU, 2)
        assert piece is not None
        for index in (1, 0):
            work.fail(index, LookupError(index), self.name)


class Breaks:
    """A lane that cannot work."""

    name = "breaks"

    def work(self, work: TaskQueue, *, caller: bool) -> None:
        work.abort(OSError("no workers"))


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

        def work(self, work: TaskQueue, *, caller: bool) -> None:
            works.append(work)
            work.finish(0, [1, 2])

    outputs = outputs_of(Keeps(), range(2), abs)
    works[0].finish(0, [3, 4])
    assert outputs == [1, 2]
