"""One budget of threads: what libraries may use while workers are at work, and what they have afterwards."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import threadpoolctl
import torch

from accelera.devices import CpuDevice
from accelera.errors import UnfinishedError
from accelera.execution import AutoCpuExecutor, ExecutionStrategy, StrategyManager, ThreadsExecutor
from accelera.execution.hardware import cpu_share
from accelera.execution.hardware.cpu_share import (
    cores_here,
    one_blas_thread_each,
    usable_cores,
    worker_core_share,
)
from accelera.testing import FakeGpu

LOADED = (np, scipy.linalg)
USUAL = 2
"""What every library is set to before each test, whatever the machine has."""


def counts() -> dict[str, int]:
    """Threads of each library as this thread has them."""
    found = threadpoolctl.ThreadpoolController().lib_controllers
    blas = {pool.filepath: pool.get_num_threads() for pool in found if pool.user_api == "blas"}
    return {**blas, "torch": torch.get_num_threads()}


def counts_of_a_new_thread() -> dict[str, int]:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(counts).result()


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    CpuDevice()
    monkeypatch.setattr(cpu_share, "usable_cores", lambda: USUAL)
    torch_count = torch.get_num_threads()
    torch.set_num_threads(USUAL)
    with threadpoolctl.threadpool_limits(USUAL, user_api="blas"):
        yield
    torch.set_num_threads(torch_count)


def all_at(count: int) -> dict[str, int]:
    return dict.fromkeys(counts(), count)


def test_there_is_something_to_limit() -> None:
    assert len(counts()) >= 2


def test_each_worker_has_its_share_and_all_is_as_before() -> None:
    before = counts()
    with one_blas_thread_each(2):
        assert counts() == counts_of_a_new_thread() == all_at(1)
    assert counts() == counts_of_a_new_thread() == before


def test_a_single_worker_has_all() -> None:
    before = counts()
    with one_blas_thread_each(1):
        assert counts() == before


def test_more_workers_than_cores_have_one_each() -> None:
    with one_blas_thread_each(100):
        assert counts() == all_at(1)


def test_an_error_ends_a_limit_too() -> None:
    before = counts()
    with pytest.raises(KeyError), one_blas_thread_each(2):
        raise KeyError
    assert counts() == before


def test_what_is_lower_already_stays_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_share, "usable_cores", lambda: 16)
    before = counts()
    with one_blas_thread_each(2):
        assert counts() == before


def held(count: int, may_end: threading.Event, after: dict[str, dict[str, int]], name: str) -> None:
    """Hold a limit in this thread until told; note what the thread has afterwards."""
    with one_blas_thread_each(count):
        may_end.wait(300)
    after[name] = counts()


def started(function: Callable[..., None], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    return thread


@pytest.mark.parametrize("first", ["a", "b"])
def test_callers_that_overlap_each_get_theirs_back(first: str) -> None:
    """torch keeps a count for each thread: who ends first must neither stay limited nor free the other."""
    before, after = counts(), dict[str, dict[str, int]]()
    end = {"a": threading.Event(), "b": threading.Event()}
    threads = {}
    for name in end:
        threads[name] = started(held, 2, end[name], after, name)
        while len(cpu_share._POOLS._limits) < len(threads):
            pass
    end[first].set()
    threads[first].join()
    assert after[first]["torch"] == before["torch"]
    assert counts_of_a_new_thread() == all_at(1)
    for name in end:
        end[name].set()
        threads[name].join()
    assert {each["torch"] for each in after.values()} == {before["torch"]}
    assert counts() == counts_of_a_new_thread() == before


def test_the_devices_own_limit_and_this_one_hold_together() -> None:
    device, before = CpuDevice(), counts()
    most = device.threads
    with device.limit_threads(1), one_blas_thread_each(2):
        assert device.threads == 1
    assert (device.threads, counts()) == (most, before)
    outer = device.limit_threads(1)
    outer.__enter__()
    with one_blas_thread_each(2):
        outer.__exit__(None, None, None)
        assert device.threads == 1
        assert counts() == all_at(1)
    assert (device.threads, counts()) == (most, before)


def test_libraries_are_looked_for_only_when_one_was_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    usual = threadpoolctl.ThreadpoolController

    def look() -> Any:
        looked.append(1)
        return usual()

    monkeypatch.setattr(threadpoolctl, "ThreadpoolController", look)
    with one_blas_thread_each(2):
        looked.clear()
        with one_blas_thread_each(2):
            assert not looked
    monkeypatch.setattr(cpu_share, "_LIBRARIES", (*cpu_share._LIBRARIES, "pytest"))
    with one_blas_thread_each(2):
        assert looked == [1]


def test_tasks_on_threads_see_one_thread_each_and_the_caller_has_its_own_back() -> None:
    before, meet = counts(), threading.Barrier(2)

    def seen(number: int) -> tuple[dict[str, int], int]:
        if number in (98, 99):
            return counts(), cores_here()
        meet.wait(300)
        return counts(), cores_here()

    result = StrategyManager.cpu_only(ThreadsExecutor(2)).execute([0, 1], seen, timeout=600)
    assert result.outputs == [(all_at(1), 1)] * 2
    assert counts() == counts_of_a_new_thread() == before
    assert cores_here() == USUAL


def test_a_manager_inside_a_task_starts_no_threads_of_its_own() -> None:
    meet = threading.Barrier(2)

    def inner(number: int) -> set[str]:
        meet.wait(300)
        names = StrategyManager.cpu_only().execute(
            range(3), lambda _: threading.current_thread().name, timeout=None, progress=lambda done, of: None
        )
        return {threading.current_thread().name} ^ set(names.outputs)

    result = StrategyManager.cpu_only(ThreadsExecutor(2)).execute(
        range(2), inner, progress=lambda d, of: None
    )
    assert result.outputs == [set(), set()]


def test_a_manager_that_was_told_its_workers_has_them_everywhere() -> None:
    meet = threading.Barrier(3)
    with worker_core_share(2):
        inner = StrategyManager.cpu_only(ThreadsExecutor(3))
        met = inner.execute(range(3), lambda _: meet.wait(300), progress=lambda done, of: None)
    assert sorted(met.outputs) == [0, 1, 2]


def test_shares_of_shares() -> None:
    with worker_core_share(1):
        assert cores_here() == USUAL
        with worker_core_share(2):
            assert cores_here() == 1
            with worker_core_share(2):
                assert cores_here() == 1
        assert cores_here() == USUAL


@pytest.mark.parametrize(
    "strategy",
    [ExecutionStrategy.CpuOnly, ExecutionStrategy.GpuOnly, ExecutionStrategy.Hybrid(50, 50)],
    ids=str,
)
@pytest.mark.parametrize("executor", [ThreadsExecutor, AutoCpuExecutor])
@pytest.mark.parametrize("options", [{}, {"timeout": 60.0}], ids=str)
def test_threads_of_a_manager_inside_a_task_share_the_tasks_share(
    strategy: ExecutionStrategy, executor: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks have eight of sixteen cores each, and four within one of them have two each."""
    monkeypatch.setattr(cpu_share, "usable_cores", lambda: 16)
    inner = StrategyManager(executor(), FakeGpu(max_batch=0), strategy, learn=False)

    def outer(_: int) -> list[int]:
        meet = threading.Barrier(4)

        def share(_: int) -> int:
            meet.wait(300)
            return cores_here()

        return inner.execute(range(4), share, progress=lambda done, of: None, **options).outputs

    shares = StrategyManager.cpu_only(ThreadsExecutor(2)).execute(
        range(2), outer, progress=lambda done, of: None
    )
    assert shares.outputs == [[2] * 4] * 2


def test_libraries_inside_a_task_have_the_tasks_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_share, "usable_cores", lambda: 4)
    with worker_core_share(2), one_blas_thread_each(2):
        assert counts() == all_at(1)


def test_a_batch_inside_one_that_was_left_behind_frees_what_it_limited() -> None:
    before, after = counts(), dict[str, dict[str, int]]()
    end = {"outer": threading.Event(), "inner": threading.Event()}

    def inner() -> None:
        with worker_core_share(2):
            held(2, end["inner"], after, "inner")

    outer_thread = started(held, 2, end["outer"], after, "outer")
    while not cpu_share._POOLS._limits:
        pass
    inner_thread = started(inner)
    while len(cpu_share._POOLS._limits) < 2:
        pass
    for name, thread in (("outer", outer_thread), ("inner", inner_thread)):
        end[name].set()
        thread.join()
    assert counts() == counts_of_a_new_thread() == before


def test_threads_that_are_left_behind_keep_nothing_limited() -> None:
    before, never = counts(), threading.Event()
    with pytest.raises(UnfinishedError):
        StrategyManager.cpu_only(ThreadsExecutor(2)).execute(range(2), lambda _: never.wait(20), timeout=0.05)
    assert counts() == counts_of_a_new_thread() == before
    never.set()


def test_a_users_exception_keeps_nothing_limited() -> None:
    before = counts()
    with pytest.raises(ZeroDivisionError):
        StrategyManager.cpu_only(ThreadsExecutor(2)).execute(
            range(9), lambda number: 1 // (number - 5), progress=lambda done, of: None
        )
    assert counts() == before


def test_nothing_is_loaded_to_be_limited() -> None:
    code = (
        "import sys; from accelera.execution.hardware.cpu_share import one_blas_thread_each\n"
        "with one_blas_thread_each(2): pass\n"
        "print([name for name in ('torch', 'scipy.linalg') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_usable_cores_are_found_once() -> None:
    assert usable_cores() >= 1
    assert usable_cores.cache_info().currsize == 1
