"""What the caller's thread has set for itself holds wherever its tasks run in this process."""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from accelera.execution import (
    AutoCpuExecutor,
    ExecutionStrategy,
    SimulatedExecutor,
    StrategyManager,
    ThreadsExecutor,
)
from accelera.testing._internal import BridgeCpu
from tests.children import answer_of

MARK: contextvars.ContextVar[str] = contextvars.ContextVar("MARK", default="none")


def seen(task: int) -> tuple[Any, ...]:
    """Return what is set in this thread, after a while in which others take part."""
    time.sleep(5e-4)
    try:
        divided = str(np.float64(1) / np.float64(0))
    except FloatingPointError:
        divided = "raised"
    return (
        MARK.get(),
        decimal.getcontext().prec,
        divided,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
    )


MANAGERS: dict[str, Callable[[], StrategyManager]] = {
    "threads": lambda: StrategyManager(ThreadsExecutor(4)),
    "auto": lambda: StrategyManager(AutoCpuExecutor(4)),
    "bridge": lambda: StrategyManager(BridgeCpu()),
    "gpu": lambda: StrategyManager(None, SimulatedExecutor(), ExecutionStrategy.GpuOnly),
    "both": lambda: StrategyManager(
        ThreadsExecutor(4), SimulatedExecutor(), ExecutionStrategy.Hybrid(50, 50)
    ),
}


def batch(manager: StrategyManager, tasks: Any) -> list[Any]:
    return manager.execute(tasks, seen).outputs


def hurried(manager: StrategyManager, tasks: Any) -> list[Any]:
    return manager.execute(tasks, seen, timeout=600).outputs


def stream(manager: StrategyManager, tasks: Any) -> list[Any]:
    return [output for _, output in manager.stream(tasks, seen)]


def awaited(manager: StrategyManager, tasks: Any) -> list[Any]:
    return asyncio.run(manager.aexecute(tasks, seen)).outputs


@pytest.mark.parametrize("manager", MANAGERS)
@pytest.mark.parametrize("run", [batch, hurried, stream, awaited])
def test_tasks_see_what_their_caller_has_set(manager: str, run: Callable[..., list[Any]]) -> None:
    token = MARK.set("caller")
    try:
        with (
            np.errstate(divide="raise"),
            decimal.localcontext() as context,
            torch.inference_mode(),
            torch.autocast("cpu", torch.bfloat16),
        ):
            context.prec = 7
            found = run(MANAGERS[manager](), range(200))
    finally:
        MARK.reset(token)
    assert set(found) == {("caller", 7, "raised", False, True, torch.bfloat16)}


def test_a_callers_gradients_are_off_for_its_tasks_only() -> None:
    manager = StrategyManager(ThreadsExecutor(4))
    weight = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        off = manager.execute(range(100), lambda task: (weight * task).requires_grad).outputs
    on = manager.execute(range(100), lambda task: (weight * task).requires_grad).outputs
    assert (set(off), set(on)) == ({False}, {True})


IMPORT = """
import json, threading
from accelera.execution import StrategyManager

failures = []

def load():
    try:
        import torch
    except BaseException as error:
        failures.append(repr(error))

manager = StrategyManager.cpu_only()
thread = threading.Thread(target=load)
thread.start()
while thread.is_alive():
    manager.execute([1, 2], abs)
print(json.dumps(failures))
"""


def test_batches_leave_an_import_of_torch_alone() -> None:
    """Some of torch's functions import its submodules, which broke the import in another thread."""
    assert answer_of("-c", IMPORT) == []
