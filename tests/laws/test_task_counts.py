"""Every task counts once, for one device, and ``execute``, ``stream`` and ``map`` say the same of it.

Whoever carries the tasks out, whatever fails on the way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accelera.errors import UnknownOutcomeError
from accelera.execution import (
    AutoCpuExecutor,
    ExecutionStrategy,
    ProcessesExecutor,
    RayExecutor,
    Retry,
    StrategyManager,
    TaskFailure,
    ThreadsExecutor,
)
from accelera.testing import FakeGpu, LocalCluster, sticky
from accelera.testing._internal import BridgeCpu, out_of_memory, transient
from tests.execution.stand_ins import Counting, blanked

FAULTS = (out_of_memory, sticky, transient)


def halved(task: int) -> int:
    """Fail on multiples of five, for good."""
    if task % 5 == 0:
        raise ValueError(task)
    return task // 2


@pytest.fixture(scope="module")
def executors() -> Iterator[dict[str, Any]]:
    """Whoever needs no GPU."""
    with contextlib.ExitStack() as open_ones:
        yield {
            "one thread": ThreadsExecutor(1),
            "threads": ThreadsExecutor(3),
            "automatic": open_ones.enter_context(AutoCpuExecutor(2)),
            "processes": open_ones.enter_context(ProcessesExecutor(2)),
            "bridge": BridgeCpu(),
            "cluster": open_ones.enter_context(RayExecutor(LocalCluster())),
        }


GPUS = st.builds(
    lambda faults, strategy: (faults, strategy),
    st.dictionaries(st.integers(0, 6), st.sampled_from(FAULTS), max_size=3),
    st.sampled_from(
        [ExecutionStrategy.GpuOnly, ExecutionStrategy.Hybrid(50, 50), ExecutionStrategy.Hybrid()]
    ),
)
TASKS = st.lists(st.integers(1, 99), max_size=40)


def outputs_of(tasks: Sequence[int], on_error: str, lost: set[int]) -> list[int | None]:
    """Return what must come out; None for a task that failed and is collected."""
    found: list[int | None] = []
    for index, task in enumerate(tasks):
        if index in lost or task % 5 == 0:
            found += [None] if on_error == "collect" else []
        else:
            found.append(task // 2)
    return found


@pytest.mark.parametrize(
    "name", ["one thread", "threads", "automatic", "processes", "bridge", "cluster", "gpu"]
)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_task_counts_for_one_device(name: str, executors: dict[str, Any], data: st.DataObject) -> None:
    tasks = data.draw(TASKS)
    options: dict[str, Any] = {
        "on_error": data.draw(st.sampled_from(["collect", "skip"])),
        "rerun": data.draw(st.sampled_from(["on_failure", "never"])),
        "retry": data.draw(st.sampled_from([None, Retry(times=2, wait_s=0.0)])),
    }
    faults, strategy = data.draw(GPUS) if name == "gpu" else ({}, ExecutionStrategy.CpuOnly)
    for way in ("execute", "stream"):
        gpu = FakeGpu(faults=faults) if name == "gpu" else None
        observer = Counting()
        cpu = executors.get(name, executors["threads"])
        manager = StrategyManager(cpu, gpu, strategy, observers=[observer], learn=False)
        lost: set[int] = set()
        outputs: Any
        if way == "execute":
            result = manager.execute(tasks, halved, **options)
            outputs, shares = result.outputs, result.per_device
            lost = {each.index for each in result.failures if isinstance(each.error, UnknownOutcomeError)}
        else:
            with manager.stream(tasks, halved, **options) as stream:
                outputs = [output for _, output in stream]
            shares = stream.report().per_device
            assert stream.report().task_count == len(tasks)
            lost = {
                each.index
                for each in outputs
                if isinstance(each, TaskFailure) and isinstance(each.error, UnknownOutcomeError)
            }
        counted = {device: share.tasks for device, share in shares.items() if share.tasks}
        assert sum(counted.values()) == len(tasks), way
        stats = manager.stats().per_device
        assert {device: share.tasks for device, share in stats.items() if share.tasks} == counted
        assert {device: count for device, count in observer.tasks.items() if count} == counted
        if options["on_error"] == "collect" or not (lost or faults):
            assert blanked(outputs) == outputs_of(tasks, options["on_error"], lost), way


@pytest.mark.parametrize("name", ["one thread", "threads", "automatic", "processes", "bridge", "cluster"])
@pytest.mark.parametrize("on_error", ["collect", "skip", "raise"])
def test_all_ways_deal_alike_with_tasks_that_fail(
    name: str, on_error: Any, executors: dict[str, Any]
) -> None:
    manager, tasks = StrategyManager.cpu_only(executors[name]), range(1, 30)
    ways: list[Callable[[], list[Any]]] = [
        lambda: manager.execute(tasks, halved, on_error=on_error).outputs,
        lambda: [output for _, output in manager.stream(tasks, halved, on_error=on_error)],
        lambda: list(manager.map(halved, tasks, on_error=on_error)),
        lambda: list(manager.starmap(halved, [(task,) for task in tasks], on_error=on_error)),
    ]
    for way in ways:
        if on_error == "raise":
            with pytest.raises(ValueError, match="5"):
                way()
            continue
        outputs = way()
        assert blanked(outputs) == outputs_of(tasks, on_error, set())
        failures = [output for output in outputs if isinstance(output, TaskFailure)]
        assert [each.index for each in failures] == ([4, 9, 14, 19, 24] if on_error == "collect" else [])
        assert all(isinstance(each.error, ValueError) for each in failures)
