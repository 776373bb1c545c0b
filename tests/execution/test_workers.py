"""What goes wrong around worker processes: odd pickles, busy crews, killed drivers, other folders."""

from __future__ import annotations

import functools
import importlib
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from accelera.errors import DeviceError, PoisonTaskError, TransferError
from accelera.execution import (
    ProcessesExecutor,
    Retry,
    StrategyManager,
    ThreadsExecutor,
)
from accelera.execution.executors.processes import pool as driven
from accelera.execution.executors.processes.pool import ProcessPool
from tests.execution.stand_ins import Unreadable, appended, blanked, wait_until


@pytest.fixture(scope="module")
def executor() -> Iterator[ProcessesExecutor]:
    with ProcessesExecutor(2) as executor:
        yield executor


@pytest.fixture
def manager(executor: ProcessesExecutor) -> StrategyManager:
    return StrategyManager.cpu_only(executor)


class OddlyMade(Exception):
    """Asks for two arguments to be made at all, and keeps one."""

    def __new__(cls, code: int, why: str) -> OddlyMade:
        return super().__new__(cls)

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{code}: {why}")


@dataclass(frozen=True)
class Frozen(Exception):
    """Lets nobody set anything."""

    code: int


class Disguised(Exception):
    """Pickles as something that is no exception."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (3,)


class TestPickles:
    def test_a_function_that_cannot_be_loaded_kills_nobody_the_second_time(
        self, manager: StrategyManager, executor: ProcessesExecutor
    ) -> None:
        manager.execute(range(50), abs)
        processes, unreadable = executor.process_ids, Unreadable()

        def cannot_be_loaded(task: int) -> Any:
            return unreadable, task

        for _ in range(3):
            with pytest.raises(TransferError, match="a worker cannot load"):
                manager.execute(range(4), cannot_be_loaded)
        assert manager.execute(range(50), abs).outputs == list(range(50))
        assert executor.process_ids == processes

    def test_an_output_that_cannot_be_unpickled_fails_by_itself(self, manager: StrategyManager) -> None:
        result = manager.execute(
            range(9), lambda task: Unreadable() if task in (3, 7) else task, on_error="collect"
        )
        assert blanked(result.outputs) == [0, 1, 2, None, 4, 5, 6, None, 8]
        assert all(isinstance(error, TransferError) for error in result.errors)
        assert "task 3 returned something that cannot be pickled (unpickling it: ValueError" in str(
            result.errors[0]
        )

    def test_an_output_that_cannot_be_unpickled_is_not_made_twice_where_it_must_not(
        self, manager: StrategyManager, tmp_path: Path
    ) -> None:
        def noted(task: int) -> Any:
            appended(tmp_path, task)
            return Unreadable() if task == 3 else task

        result = manager.execute(range(8), noted, on_error="collect", rerun="never")
        assert 3 in result.failed_indices
        assert all(isinstance(error, TransferError) for error in result.errors)
        assert [(tmp_path / str(task)).stat().st_size for task in range(8)] == [1] * 8

    @pytest.mark.parametrize(
        ("kind", "arguments"), [(OddlyMade, (7, "because")), (Frozen, (7,)), (Disguised, ("7",))]
    )
    def test_an_exception_of_any_class_is_the_users(
        self, manager: StrategyManager, kind: Callable[..., Exception], arguments: tuple[Any, ...]
    ) -> None:
        def fails(task: int) -> int:
            if task == 2:
                raise kind(*arguments)
            return task

        result = manager.execute(range(4), fails, on_error="collect")
        assert blanked(result.outputs) == [0, 1, None, 3]
        assert type(result.errors[0]) is kind
        assert str(result.errors[0]) == str(kind(*arguments))
        assert "in fails" in "\n".join(result.errors[0].__notes__)  # type: ignore[attr-defined, unused-ignore]

    @pytest.mark.parametrize("lane", [ThreadsExecutor, ProcessesExecutor])
    def test_an_exception_that_lets_nobody_set_anything_is_raised(self, lane: Callable[[int], Any]) -> None:
        def fails(task: int) -> int:
            raise Frozen(task)

        with pytest.raises(Frozen) as raised:
            StrategyManager.cpu_only(lane(1)).execute([5], fails)
        assert raised.value.code == 5
        assert any(note.startswith("task 0 on ") for note in raised.value.__notes__)  # type: ignore[attr-defined, unused-ignore]


class TestCrew:
    def test_a_batch_that_waits_for_workers_can_be_cancelled(
        self, manager: StrategyManager, tmp_path: Path
    ) -> None:
        def busy(task: int) -> None:
            appended(tmp_path, task)
            time.sleep(600)

        hold, cancel = threading.Event(), threading.Event()
        other = threading.Thread(target=manager.execute, args=([1, 2], busy), kwargs={"cancel": hold})
        other.start()
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        threading.Timer(0.2, cancel.set).start()
        assert manager.execute([1], abs, cancel=cancel).stopped_by == "cancelled"
        hold.set()
        other.join()

    def test_a_worker_that_is_idle_too_late_is_not_taken(self) -> None:
        crew = ProcessPool(1)
        with crew.acquire(lambda: True) as slot:
            assert slot is None
        with crew.acquire(lambda: False) as slot:
            assert slot is not None
        crew.close()

    def test_what_waited_too_long_is_not_begun(self, tmp_path: Path) -> None:
        begun, go = tmp_path / "begun", tmp_path / "go"

        def waits(task: int) -> None:
            begun.touch()
            wait_until(go.exists)

        with ProcessesExecutor(1) as alone:
            manager = StrategyManager.cpu_only(alone)
            other = threading.Thread(target=alone.execute_batch, args=([1], waits))
            other.start()
            wait_until(begun.exists)
            late = functools.partial(appended, tmp_path)
            result = manager.execute(range(3), late, timeout=0.2, on_error="collect")
            assert result.unfinished_indices == (0, 1, 2)
            go.touch()
            other.join()
            time.sleep(0.5)
        assert set(tmp_path.iterdir()) == {begun, go}

    def test_an_interrupted_batch_begins_nothing_more(self, tmp_path: Path) -> None:
        def noted(task: int) -> int:
            time.sleep(0.05)
            return appended(tmp_path, task)

        def interrupts() -> None:
            wait_until(lambda: any(tmp_path.iterdir()))
            os.kill(os.getpid(), signal.SIGINT)

        with ProcessesExecutor(2) as executor:
            executor.execute_batch([1, 2], abs)
            threading.Thread(target=interrupts).start()
            with pytest.raises(KeyboardInterrupt):
                executor.execute_batch(range(400), noted)
            before = -1
            while (count := len(list(tmp_path.iterdir()))) > before:
                before = count
                time.sleep(0.5)
            assert count < 400
            assert executor.execute_batch([1, 2], abs) == [1, 2]

    def test_a_process_that_is_gone_is_not_killed_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        killed: list[int] = []

        def killpg(group: int, number: int) -> None:
            killed.append(group)
            os.kill(group, number)

        with ProcessesExecutor(1) as executor:
            executor.execute_batch([1], abs)
            monkeypatch.setattr(os, "killpg", killpg)
            StrategyManager.cpu_only(executor).execute([60], time.sleep, timeout=0.1, on_error="collect")
            wait_until(lambda: len(killed) == 1)
            first = killed[0]
        assert killed.count(first) == 1

    def test_no_process_can_be_started(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused(*arguments: Any, **options: Any) -> None:
            raise BlockingIOError(11, "Resource temporarily unavailable")

        monkeypatch.setattr(subprocess, "Popen", refused)
        with ProcessesExecutor(2) as executor, pytest.raises(DeviceError, match="no worker process can be"):
            executor.execute_batch(range(4), abs)

    def test_what_a_task_starts_does_not_keep_a_dead_workers_socket(
        self, executor: ProcessesExecutor
    ) -> None:
        def sockets_of_a_child(task: int) -> str:
            command = [sys.executable, "-c", "import os; print(*map(os.readlink, "]
            command[-1] += "[f'/proc/self/fd/{n}' for n in os.listdir('/proc/self/fd') if n > '2'][:-1]))"
            return subprocess.run(command, close_fds=False, capture_output=True, text=True, check=True).stdout

        found = executor.execute_batch([1], sockets_of_a_child)[0]
        assert "socket" not in found
        assert "pipe" not in found

    def test_what_ends_a_driver_ends_the_batch(self) -> None:
        caller, other = threading.current_thread(), threading.Event()

        class Leaves:
            def __reduce__(self) -> tuple[Any, ...]:
                if threading.current_thread() is not caller:
                    other.set()
                    raise SystemExit(3)
                assert other.wait(300)
                return int, (1,)

        with ProcessesExecutor(2) as executor, pytest.raises(SystemExit):
            executor.execute_batch([Leaves() for _ in range(40)], abs)

    def test_what_ends_the_drivers_ends_a_batch_that_may_be_left(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refused() -> str:
            raise PermissionError("the folder is not yours")

        with ProcessesExecutor(1) as executor:
            manager = StrategyManager.cpu_only(executor)
            monkeypatch.setattr(os, "getcwd", refused)
            with pytest.raises(PermissionError, match="not yours"):
                manager.execute([1], abs, cancel=threading.Event())

    def test_a_worker_that_cannot_be_started_keeps_no_file(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused() -> tuple[int, int]:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(os, "pipe", refused)
        with ProcessesExecutor(1) as executor:
            before = psutil.Process().num_fds()
            for _ in range(3):
                with pytest.raises(DeviceError, match="Too many open files"):
                    executor.execute_batch([1], abs)
            wait_until(lambda: psutil.Process().num_fds() <= before)

    def test_a_worker_that_pauses_before_another_attempt_can_be_told_to_stop(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(driven, "GRACE_S", 120)

        def fails(task: int) -> None:
            appended(tmp_path, task)
            raise OSError("not yet")

        cancel, results = threading.Event(), list[Any]()
        with ProcessesExecutor(1) as executor:
            assert executor.execute_batch([-1], abs) == [1]
            before = executor.process_ids
            manager, retry = StrategyManager.cpu_only(executor), Retry(times=3, wait_s=math.inf)
            other = threading.Thread(
                target=lambda: results.append(manager.execute([1, 2], fails, retry=retry, cancel=cancel))
            )
            other.start()
            wait_until(lambda: any(tmp_path.iterdir()))
            cancel.set()
            other.join()
            assert executor.execute_batch([-1], abs) == [1]
            assert executor.process_ids == before
        assert results[0].stopped_by == "cancelled"
        assert (tmp_path / "1").stat().st_size == 1


class TestSurroundings:
    def test_workers_follow_the_program(
        self, executor: ProcessesExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def seen(name: str) -> tuple[str, str | None, str | None]:
            return os.getcwd(), os.environ.get("ACCELERA_TEST_A"), os.environ.get("ACCELERA_TEST_B")

        monkeypatch.setenv("ACCELERA_TEST_A", "before")
        assert executor.execute_batch([""], seen) == [(os.getcwd(), "before", None)]
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("ACCELERA_TEST_A")
        monkeypatch.setenv("ACCELERA_TEST_B", "after")
        assert executor.execute_batch([""] * 40, seen) == [(str(tmp_path), None, "after")] * 40

    def test_modules_are_found_that_came_later(
        self, executor: ProcessesExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        executor.execute_batch([1, 2], abs)
        (tmp_path / "came_later.py").write_text("def double(task):\n    return 2 * task\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        double = importlib.import_module("came_later").double
        assert executor.execute_batch(range(30), double) == [2 * task for task in range(30)]

    def test_a_path_among_the_folders_of_modules_counts_for_nothing(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(sys, "path", [tmp_path, *sys.path])
        with ProcessesExecutor(1) as executor:
            assert executor.execute_batch([-1], abs) == [1]


DRIVER = """
    import os, re, sys, time
    from accelera.execution import ProcessesExecutor

    executor, how = ProcessesExecutor(1), sys.argv[1]
    executor.execute_batch([1], abs)
    if how == "forks" and not os.fork():
        time.sleep(600)
    print(executor.process_ids[0], flush=True)

    def hangs(task):
        if how == "children":
            import subprocess
            print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
        if how == "holds":
            re.match("(a+)+$", 60 * "a" + "b")
        time.sleep(600)

    executor.execute_batch([1], hangs)
"""


class TestDriverKilled:
    @pytest.mark.parametrize("how", ["waits", "holds", "forks", "children"])
    def test_its_workers_end(self, tmp_path: Path, how: str) -> None:
        path = tmp_path / "driver.py"
        path.write_text(textwrap.dedent(DRIVER))
        command = [sys.executable, str(path), how]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
            assert process.stdout is not None
            count = 2 if how == "children" else 1
            workers = [int(process.stdout.readline()) for _ in range(count)]
            time.sleep(0.5)
            try:
                assert all(psutil.pid_exists(each) for each in workers)
                process.kill()
                wait_until(lambda: not any(_runs(each) for each in workers))
            finally:
                os.killpg(process.pid, signal.SIGKILL)


def _runs(process_id: int) -> bool:
    try:
        return psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_task_whose_loading_takes_too_much_memory_is_put_aside(manager: StrategyManager) -> None:
    class Dies:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.kill, (0, signal.SIGKILL)

    result = manager.execute([1, Dies(), 3], type, on_error="collect")
    assert blanked(result.outputs) == [int, None, int]
    assert isinstance(result.errors[0], PoisonTaskError)
