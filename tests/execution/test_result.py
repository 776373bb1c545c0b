"""What came of a batch, asked for as one exception."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import pytest

from accelera.execution import StrategyManager, ThreadsExecutor
from accelera.execution.tasks.queue import DeviceKind, TaskQueue
from accelera.testing._internal import BridgeCpu

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup, ExceptionGroup


class Leaves(BridgeCpu):
    """A lane whose tasks end their process's interpreter, as far as it can tell."""

    name = "leaves"

    def work(self, work: TaskQueue, *, caller: bool) -> None:
        while (piece := work.take(DeviceKind.CPU, 1)) is not None:
            work.fail(piece.start, SystemExit(piece.start), self.name)


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    task: int


@pytest.mark.parametrize("on_error", ["collect", "skip"])
def test_all_errors_as_one(on_error: Any) -> None:
    result = StrategyManager(BridgeCpu()).execute([4, 0, 0, 0], lambda task: 1 / task, on_error=on_error)
    with pytest.raises(ExceptionGroup, match="3 tasks failed") as raised:
        result.raise_for_errors()
    assert [type(each) for each in raised.value.exceptions] == [ZeroDivisionError] * 3
    assert [each.__notes__ for each in raised.value.exceptions] == [
        [f"task {index} on cpu"] for index in (1, 2, 3)
    ]


def test_no_errors() -> None:
    StrategyManager(BridgeCpu()).execute([4], abs, on_error="collect").raise_for_errors()


def test_errors_that_are_no_exceptions_are_raised_too() -> None:
    result = StrategyManager(Leaves()).execute(range(2), abs, on_error="collect")
    with pytest.raises(BaseExceptionGroup, match="2 tasks failed") as raised:
        result.raise_for_errors()
    assert [type(each) for each in raised.value.exceptions] == [SystemExit] * 2


def test_an_error_that_takes_no_notes_is_still_the_users() -> None:
    def fails(task: int) -> int:
        raise Frozen(task)

    with pytest.raises(Frozen):
        StrategyManager(BridgeCpu()).execute([1], fails)


@pytest.mark.parametrize("bad", [{0}, {0, 1, 2}, {3, 5, 9}, set(range(10)), {9}])
@pytest.mark.parametrize("count", [1, 2, 10])
@pytest.mark.parametrize("cpu", [None, ThreadsExecutor(1), ThreadsExecutor(3), BridgeCpu()])
def test_tasks_that_fail_are_counted_as_the_others(bad: set[int], count: int, cpu: Any) -> None:
    def fails(task: int) -> int:
        if task in bad:
            raise ValueError(task)
        return task

    manager = StrategyManager.cpu_only(cpu)
    for on_error in ("collect", "skip"):
        result = manager.execute(range(count), fails, on_error=on_error)  # type: ignore[arg-type]
        assert result.per_device["cpu"].tasks == count
    assert manager.stats().per_device["cpu"].tasks == 2 * count
