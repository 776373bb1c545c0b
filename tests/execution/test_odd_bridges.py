"""Bridges that empty their lists, raise any exception, or raise exceptions that cannot be printed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from accelera.execution import ExecutionStrategy, StrategyManager, kernel

GPU_ONLY = ExecutionStrategy.GpuOnly


class Bridge:
    name = "odd"

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def execute_batch(self, tasks: Any, fn: Callable[[Any], Any]) -> list[Any]:
        if self.error is not None:
            raise self.error
        batch = getattr(fn, "batch", None)
        if batch is not None:
            return list(batch(tasks, "odd"))
        outputs = []
        while tasks:
            outputs.append(fn(tasks.pop()))
        return outputs[::-1]

    def is_available(self) -> bool:
        return True

    def memory_available(self) -> int:
        return 8 << 30


class Wordless(OSError):
    def __str__(self) -> str:
        raise KeyError("code")


Homeless = type("Homeless", (OSError,), {"__module__": None})


@pytest.mark.parametrize("strategy", [GPU_ONLY, ExecutionStrategy.Hybrid(30, 70), ExecutionStrategy.CpuOnly])
@pytest.mark.parametrize("count", [1, 7, 50])
def test_a_bridge_may_empty_its_list(strategy: ExecutionStrategy, count: int) -> None:
    cpu_only = strategy == ExecutionStrategy.CpuOnly
    manager = StrategyManager(
        Bridge() if cpu_only else None, None if cpu_only else Bridge(), strategy, learn=False
    )
    tasks = [str(number) for number in range(count)]
    assert manager.execute(tasks, len, timeout=30.0).outputs == [len(task) for task in tasks]


@pytest.mark.parametrize("fallback", ["unfinished", "all"])
@pytest.mark.parametrize("form", ["function", "kernel", "batched", "broken"])
@pytest.mark.parametrize(
    "error",
    [OSError("gone"), ConnectionError("gone"), KeyError("scale"), ValueError("no"), RuntimeError("x")],
)
def test_fallback_covers_every_error(error: Exception, form: str, fallback: Any) -> None:
    def plain(task: int) -> int:
        return task + 7

    function: Any = plain if form == "function" else kernel(plain)

    def many(tasks: Any, device: str) -> list[int]:
        raise error

    if form in ("batched", "broken"):
        function.gpu_batch(many)
    manager = StrategyManager(None, Bridge(None if form == "broken" else error), GPU_ONLY, learn=False)
    assert manager.execute(range(12), function, fallback=fallback).outputs == list(range(7, 19))


@pytest.mark.parametrize("error", [Wordless(), Homeless("lost")])
@pytest.mark.parametrize("rerun", ["on_failure", "never"])
@pytest.mark.parametrize("on_error", ["collect", "skip"])
def test_odd_exceptions_are_collected(error: Exception, rerun: Any, on_error: Any) -> None:
    manager = StrategyManager(None, Bridge(error), GPU_ONLY, learn=False)
    result = manager.execute(["a", "bb"], len, on_error=on_error, rerun=rerun)
    assert len(result.failures) == (2 if rerun == "never" else 0)
