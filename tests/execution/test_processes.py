"""Tasks in worker processes: outputs in order, errors that are the user's own, nothing lost with a worker."""

from __future__ import annotations

import functools
import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from accelera.errors import (
    DeviceError,
    PoisonTaskError,
    TransferError,
    UnfinishedError,
    UnknownOutcomeError,
)
from accelera.execution import ExecutionStrategy, ProcessesExecutor, Retry, StrategyManager, kernel
from tests.execution.stand_ins import Holding, Unreadable, appended, blanked, square, wait_until
from tests.threads import run_in_threads

_CALLS = 0


@pytest.fixture(scope="module")
def executor() -> Iterator[ProcessesExecutor]:
    with ProcessesExecutor(2) as executor:
        yield executor


@pytest.fixture
def manager(executor: ProcessesExecutor) -> StrategyManager:
    return StrategyManager.cpu_only(executor)


def odd_fails(number: int) -> int:
    if number % 2:
        raise ValueError("odd", number)
    return number


def call_count(task: int) -> tuple[int, int]:
    global _CALLS
    _CALLS += 1
    return os.getpid(), _CALLS


def dies_first(folder: Path, signal_number: int, task: int) -> int:
    if appended(folder, task) == 1 and task % 7 == 3:
        os.kill(os.getpid(), signal_number)
    return task


def dies_always(folder: Path, task: int) -> int:
    appended(folder, task)
    if task in (4, 11):
        os._exit(5)
    return task


class Awkward(Exception):
    """Does not unpickle by itself: its arguments are not those of its initialiser."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{code}: {why}")
        self.code = code


@pytest.mark.parametrize("count", [0, 1, 2, 10, 1000, 30_000])
def test_outputs_are_in_order(manager: StrategyManager, count: int) -> None:
    result = manager.execute(range(count), square)
    assert result.outputs == [number * number for number in range(count)]
    assert result.strategy_used == ExecutionStrategy.CpuOnly
    assert set(result.per_device) <= {"processes"}
    assert sum(share.tasks for share in result.per_device.values()) == count


def test_it_is_an_executor_of_the_seed(executor: ProcessesExecutor) -> None:
    assert executor.execute_batch([1, 2, 3], square) == [1, 4, 9]
    with pytest.raises(ValueError, match="odd"):
        executor.execute_batch([1, 2, 3], odd_fails)


def test_work_is_done_in_several_other_processes(manager: StrategyManager, tmp_path: Path) -> None:
    def where(task: int) -> int:
        (tmp_path / str(os.getpid())).touch()
        wait_until(lambda: len(list(tmp_path.iterdir())) > 1)
        return os.getpid()

    found = set(manager.execute(range(12), where).outputs)
    assert os.getpid() not in found
    assert len(found) == 2


def test_a_function_keeps_its_globals_between_pieces_and_batches() -> None:
    with ProcessesExecutor(1) as alone:
        manager = StrategyManager.cpu_only(alone)
        first = manager.execute(range(100), call_count).outputs
        second = manager.execute(range(10), call_count).outputs
    assert [count for _, count in first] == list(range(1, 101))
    assert [count for _, count in second] == list(range(101, 111))
    assert len({process for process, _ in [*first, *second]}) == 1


def test_what_a_function_closes_over_is_that_of_the_call(manager: StrategyManager) -> None:
    box = [1]
    assert manager.execute(range(3), lambda task: task + box[0]).outputs == [1, 2, 3]
    box[0] = 10
    assert manager.execute(range(3), lambda task: task + box[0]).outputs == [10, 11, 12]


def test_more_functions_than_a_worker_keeps(manager: StrategyManager) -> None:
    functions: list[Callable[[int], int]] = [functools.partial(pow, exp=exp) for exp in range(1, 13)]
    for _ in range(2):
        for exp, function in enumerate(functions, 1):
            assert manager.execute(range(4), function).outputs == [task**exp for task in range(4)]


@pytest.mark.parametrize("elements", [0, 1, 10_000, 300_000, 1_500_000])
def test_arrays_travel_both_ways(manager: StrategyManager, elements: int) -> None:
    tasks = [np.arange(elements, dtype=np.float64) + task for task in range(5)]
    outputs = manager.execute(tasks, lambda array: array * 2).outputs
    for task, output in zip(tasks, outputs, strict=True):
        assert np.array_equal(output, task * 2)
    outputs[0][:] = -1
    assert np.array_equal(outputs[1], tasks[1] * 2)
    assert all(np.array_equal(task, np.arange(elements) + at) for at, task in enumerate(tasks))


def test_arrays_in_any_layout(manager: StrategyManager) -> None:
    base = np.random.default_rng(0).random((400, 300))
    tasks = [base, base.T, base[::2], np.asfortranarray(base), base.astype("f4"), base[:, :1]]
    for task, output in zip(tasks, manager.execute(tasks, np.negative).outputs, strict=True):
        assert np.array_equal(output, -task)
        assert output.dtype == task.dtype


def test_a_kernel_goes_as_its_function(manager: StrategyManager) -> None:
    assert manager.execute(range(4), kernel(square)).outputs == [0, 1, 4, 9]


def test_a_users_exception_is_the_users(manager: StrategyManager) -> None:
    with pytest.raises(ValueError, match="odd") as raised:
        manager.execute([2, 3, 4], odd_fails)
    assert raised.value.args == ("odd", 3)
    notes = "\n".join(getattr(raised.value, "__notes__", ()))
    assert "in odd_fails" in notes
    assert "in worker process" in notes


def test_errors_are_collected_with_their_notes(manager: StrategyManager) -> None:
    def fails(task: int) -> int:
        if task == 1:
            error = KeyError("name")
            error.__notes__ = ["the user's note"]  # type: ignore[attr-defined, unused-ignore]
            raise error
        if task == 2:
            raise Awkward(7, "because")
        if task == 3:
            raise FileNotFoundError(2, "No such file", "x.txt")
        if task == 4:
            sys.exit(3)
        return task

    result = manager.execute(range(6), fails, on_error="collect")
    assert blanked(result.outputs) == [0, None, None, None, None, 5]
    key, awkward, absent, left = (failure.error for failure in result.failures)
    assert isinstance(key, KeyError)
    assert key.__notes__[0] == "the user's note"  # type: ignore[attr-defined, unused-ignore]
    assert isinstance(awkward, Awkward)
    assert (awkward.code, str(awkward)) == (7, "7: because")
    assert isinstance(absent, FileNotFoundError)
    assert (absent.errno, absent.filename) == (2, "x.txt")
    assert isinstance(left, SystemExit)
    assert left.code == 3


def test_what_cannot_be_pickled_is_named(manager: StrategyManager) -> None:
    def returns_a_lock(task: int) -> Any:
        return threading.Lock() if task == 3 else task

    def raises_a_lock(task: int) -> int:
        if task == 2:
            raise Holding
        return task

    outputs = manager.execute(range(5), returns_a_lock, on_error="collect")
    assert blanked(outputs.outputs) == [0, 1, 2, None, 4]
    with pytest.raises(TransferError, match=r"task 3 returned something.*lock"):
        raise outputs.errors[0]
    raised = manager.execute(range(5), raises_a_lock, on_error="collect")
    assert blanked(raised.outputs) == [0, 1, None, 3, 4]
    with pytest.raises(TransferError, match=r"task 2 raised '.*Holding: holding a lock'"):
        raise raised.errors[0]
    tasks = [0, 1, threading.Lock(), 3]
    sent = manager.execute(tasks, lambda task: task, on_error="collect")
    assert blanked(sent.outputs) == [0, 1, None, 3]
    with pytest.raises(TransferError, match=r"task 2 is something.*lock"):
        raise sent.errors[0]


def test_a_function_that_cannot_be_pickled(manager: StrategyManager) -> None:
    lock = threading.Lock()
    with pytest.raises(TransferError, match="lock"):
        manager.execute(range(3), lambda task: (lock, task))
    assert manager.execute(range(3), square).outputs == [0, 1, 4]


def test_what_cannot_be_unpickled(manager: StrategyManager) -> None:
    result = manager.execute([1, 2, Unreadable(), 4], lambda task: task, on_error="collect")
    assert blanked(result.outputs) == [1, 2, None, 4]
    assert isinstance(result.errors[0], TransferError)
    unreadable = Unreadable()
    with pytest.raises(TransferError, match="a worker cannot load"):
        manager.execute([1], lambda task: (unreadable, task))


def test_tasks_are_tried_again_in_the_worker(manager: StrategyManager, tmp_path: Path) -> None:
    def fails_once(task: int) -> int:
        if appended(tmp_path, task) < 2:
            raise OSError("not yet")
        return task

    result = manager.execute(range(4), fails_once, retry=Retry(times=1))
    assert (result.outputs, result.retries) == ([0, 1, 2, 3], 4)
    assert [(tmp_path / str(task)).stat().st_size for task in range(4)] == [2] * 4


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_worker_that_dies_costs_the_task_it_was_at(
    manager: StrategyManager, tmp_path: Path, number: int
) -> None:
    result = manager.execute(range(24), functools.partial(dies_first, tmp_path, number))
    assert result.outputs == list(range(24))
    assert result.retries == 3
    assert result.failures == ()


def test_a_task_that_kills_workers_is_put_aside(manager: StrategyManager, tmp_path: Path) -> None:
    result = manager.execute(range(20), functools.partial(dies_always, tmp_path), on_error="collect")
    assert [index for index, output in enumerate(result.outputs) if output != index] == [4, 11]
    assert result.failed_indices == (4, 11)
    assert all(isinstance(error, PoisonTaskError) for error in result.errors)
    assert "task 4 killed 2 worker processes (exit status 5)" in str(result.errors[0])
    assert [(tmp_path / str(task)).stat().st_size for task in (4, 11)] == [2, 2]


def test_no_task_is_begun_twice_when_none_may_be(manager: StrategyManager, tmp_path: Path) -> None:
    function = functools.partial(dies_always, tmp_path)
    result = manager.execute(range(20), function, on_error="collect", rerun="never")
    assert {4, 11} <= set(result.failed_indices)
    assert all(isinstance(error, UnknownOutcomeError) for error in result.errors)
    assert [(tmp_path / str(task)).stat().st_size for task in range(20)] == [1] * 20


def test_a_task_that_kills_when_it_is_loaded(manager: StrategyManager) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os._exit, (1,)

    tasks: list[Any] = [*range(6), Bomb(), *range(7, 10)]
    result = manager.execute(tasks, lambda task: task, on_error="collect")
    assert result.failed_indices == (6,)
    assert isinstance(result.errors[0], PoisonTaskError)


def test_a_function_that_kills_when_it_is_loaded(manager: StrategyManager) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os._exit, (1,)

    bomb = Bomb()
    with pytest.raises(DeviceError, match="died while loading the function"):
        manager.execute(range(4), lambda task: (bomb, task))
    assert manager.execute(range(3), square).outputs == [0, 1, 4]


def test_workers_killed_at_random_points(tmp_path: Path) -> None:
    chance, kills = random.Random(5), 8

    def noted(task: int) -> int:
        with (tmp_path / str(task)).open("a") as file:
            file.write("x")
        time.sleep(0.004)
        return task

    with ProcessesExecutor(2) as executor:
        left = list(range(40, 40 + 60 * kills, 60))

        def kill_one(done: int, total: int) -> None:
            """Each worker in turn, twice: one that dies three times before it is ready ends the batch."""
            if left and done > left[0]:
                left.pop(0)
                time.sleep(chance.uniform(0, 0.01))
                workers = executor.process_ids
                os.kill(workers[len(left) // 2 % len(workers)], signal.SIGKILL)

        manager = StrategyManager.cpu_only(executor)
        result = manager.execute(range(600), noted, on_error="collect", progress=kill_one)
    assert left == []
    lost = {failure.index for failure in result.failures}
    assert all(isinstance(error, PoisonTaskError) for error in result.errors)
    assert len(lost) <= 1, "each kill meets another task, but for rare luck"
    assert blanked(result.outputs) == [None if index in lost else index for index in range(600)]
    begun = [(tmp_path / str(task)).stat().st_size for task in range(600)]
    assert sum(begun) - 600 <= kills * 30, "a worker holds pieces of 30 ms"


def test_a_late_task_is_killed(tmp_path: Path) -> None:
    started = tmp_path / "started"

    def hangs(task: int) -> int:
        if task == 3:
            program = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
            subprocess.run([sys.executable, "-c", program, str(started)], check=False)
        return task

    with ProcessesExecutor(2) as executor:
        manager = StrategyManager.cpu_only(executor)
        manager.execute(range(2), square)
        with pytest.raises(UnfinishedError) as late:
            manager.execute(range(6), hangs, timeout=1.5)
        assert 3 in late.value.result.unfinished_indices
        assert manager.execute(range(50), square).outputs == [task * task for task in range(50)]
        wait_until(lambda: not _started_with(started))


def _started_with(argument: Path) -> list[psutil.Process]:
    return [
        each for each in psutil.process_iter(["cmdline"]) if str(argument) in (each.info["cmdline"] or ())
    ]


def test_cancelling_kills_what_is_late(manager: StrategyManager) -> None:
    cancel = threading.Event()
    timer = threading.Timer(0.3, cancel.set)
    timer.start()
    result = manager.execute([0, 0, 600, 0], time.sleep, cancel=cancel)
    assert result.stopped_by == "cancelled"
    assert 2 in result.unfinished_indices
    timer.join()
    assert manager.execute(range(3), square).outputs == [0, 1, 4]


def test_an_error_ends_the_batch_soon(manager: StrategyManager) -> None:
    def fails(task: int) -> None:
        if task == 1:
            raise ValueError("the second")
        time.sleep(600)

    with pytest.raises(ValueError, match="the second"):
        manager.execute([0, 1], fails)


def test_several_batches_at_once(manager: StrategyManager) -> None:
    outputs: dict[int, list[int]] = {}

    def one(offset: int) -> None:
        outputs[offset] = manager.execute(range(offset, offset + 300), square).outputs

    run_in_threads(*(partial(one, offset) for offset in range(5)))
    assert outputs == {offset: [task * task for task in range(offset, offset + 300)] for offset in range(5)}


def test_a_worker_that_uses_the_executor_works_by_itself(executor: ProcessesExecutor) -> None:
    def nested(task: int) -> tuple[bool, list[int], int]:
        inner = ProcessesExecutor(4)
        result = StrategyManager.cpu_only(inner).execute(range(task), square)
        through_the_same = executor.execute_batch(range(task), square)
        assert through_the_same == result.outputs
        return inner.started, result.outputs, len(psutil.Process().children())

    for task, output in enumerate(StrategyManager.cpu_only(executor).execute(range(4), nested).outputs):
        assert output == (False, [number * number for number in range(task)], 0)


def test_libraries_in_workers_share_the_cores(manager: StrategyManager) -> None:
    def blas_threads(task: int) -> int:
        import threadpoolctl

        (np.ones((64, 64)) @ np.ones((64, 64))).sum()
        pools = threadpoolctl.threadpool_info()
        return max((pool["num_threads"] for pool in pools if pool["user_api"] == "blas"), default=1)

    threads = set(manager.execute(range(4), blas_threads).outputs)
    assert max(threads) <= max(1, (os.cpu_count() or 1) // 2)


def test_closing_while_a_batch_runs() -> None:
    executor = ProcessesExecutor(2)
    threading.Timer(0.5, executor.close).start()
    with pytest.raises(DeviceError, match="was closed"):
        StrategyManager.cpu_only(executor).execute([60, 60], time.sleep)
    with pytest.raises(DeviceError, match="make a new ProcessesExecutor"):
        executor.execute_batch([1], square)
    executor.close()


def test_no_process_and_no_file_is_left() -> None:
    gc.collect()
    files, children = psutil.Process().num_fds(), _children()
    for _ in range(3):
        with ProcessesExecutor(2) as executor:
            executor.execute_batch([np.ones(200_000)] * 4, np.negative)
    forgotten = ProcessesExecutor(1)
    forgotten.execute_batch([1], square)
    del forgotten
    gc.collect()
    wait_until(lambda: _children() <= children)
    assert psutil.Process().num_fds() <= files


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def _has_ended(process_id: int) -> bool:
    """Return whether a process has, be it that nobody has asked yet how."""
    try:
        return psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


SCRIPT = """
    import os, sys, time
    from accelera.execution import ProcessesExecutor, StrategyManager

    print("main runs", flush=True)
    seen = 0

    class Point:
        def __init__(self, x):
            self.x = x

    def moved(point):
        global seen
        seen += 1
        return Point(point.x + seen)

    executor = ProcessesExecutor(1)
    outputs = StrategyManager.cpu_only(executor).execute([Point(10)] * 3, moved).outputs
    print([type(each) is Point for each in outputs], [each.x for each in outputs], seen, flush=True)
"""


def _script(tmp_path: Path, end: str) -> Path:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT) + textwrap.dedent(end))
    return path


def test_a_script_without_a_guard_runs_once_and_leaves_nothing(tmp_path: Path) -> None:
    path = _script(tmp_path, "print(executor.process_ids[0])")
    ran = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, timeout=840
    )
    assert ran.returncode == 0, ran.stderr
    first, second, process = ran.stdout.splitlines()
    assert (first, second) == ("main runs", "[True, True, True] [11, 12, 13] 0")
    assert ran.stderr == ""
    wait_until(lambda: _has_ended(int(process)))


def test_workers_end_with_a_process_that_was_killed(tmp_path: Path) -> None:
    path = _script(
        tmp_path, "print(executor.process_ids[0], flush=True)\nexecutor.execute_batch([600], time.sleep)"
    )
    with subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = [next(process.stdout) for _ in range(3)][-1]
        assert psutil.pid_exists(int(worker))
        process.kill()
    wait_until(lambda: _has_ended(int(worker)))


def test_a_forked_process_has_workers_of_its_own(tmp_path: Path) -> None:
    end = """
        mine = executor.process_ids
        child = os.fork()
        if not child:
            assert executor.execute_batch([Point(1)], lambda point: point.x) == [1]
            assert executor.process_ids != mine
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert executor.execute_batch([Point(2)], lambda point: point.x) == [2]
        assert executor.process_ids == mine
    """
    path = _script(tmp_path, end)
    ran = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, timeout=840
    )
    assert ran.returncode == 0, ran.stderr


def test_a_number_of_workers_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="give at least 1"):
        ProcessesExecutor(0)
