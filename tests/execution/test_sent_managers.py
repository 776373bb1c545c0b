"""A manager that is pickled, or captured by a function for worker processes, arrives with its settings."""

from __future__ import annotations

import copy
import pickle

import pytest

from accelera.execution import ExecutionStrategy, ProcessesExecutor, StrategyManager, ThreadsExecutor

MANAGERS = {
    "default": lambda: StrategyManager.cpu_only(),
    "threads": lambda: StrategyManager(ThreadsExecutor(2), learn=False),
    "by name": lambda: StrategyManager("threads"),
    "processes": lambda: StrategyManager(ProcessesExecutor(1)),
    "budget": lambda: StrategyManager(budget="1GiB"),
    "auto": lambda: StrategyManager.auto(strategy="cpu"),
    "hybrid": lambda: StrategyManager(None, None, ExecutionStrategy.Hybrid(40, 60)),
}


@pytest.mark.parametrize("kind", MANAGERS)
@pytest.mark.parametrize("send", [lambda manager: pickle.loads(pickle.dumps(manager)), copy.deepcopy])
def test_a_copy_has_the_settings(kind: str, send) -> None:
    manager = MANAGERS[kind]()
    sent = send(manager)
    assert repr(sent) == repr(manager)
    assert sent.strategy == manager.strategy
    assert sent.devices == manager.devices
    assert sent.execute(range(5), abs).outputs == [0, 1, 2, 3, 4]
    assert manager.stats() != sent.stats()


@pytest.mark.parametrize("kind", ["default", "threads", "by name", "budget"])
def test_a_function_for_workers_may_capture_one(kind: str) -> None:
    inner = MANAGERS[kind]()

    def total(count: int) -> int:
        return sum(inner.execute(range(count), lambda x: x * x).outputs)

    with ProcessesExecutor(1) as processes:
        assert StrategyManager.cpu_only(processes).execute([3, 4], total).outputs == [5, 14]
