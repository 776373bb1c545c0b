"""A batch by itself: what is told of it, and what is not told any more when it is over."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from accelera.execution import StrategyManager, ThreadsExecutor
from accelera.execution.observability.telemetry import Telemetry
from accelera.execution.tasks.batch import Batch, BatchOptions
from accelera.execution.tasks.queue import DeviceKind

PATIENCE_S = 300


def test_all_that_was_done_is_told_though_the_batch_is_closed_meanwhile() -> None:
    """Whoever waits for a batch that is over may be sooner than the thread that brought the last output."""
    told: list[tuple[int, int]] = []
    batch = Batch(
        range(3), abs, Telemetry(), BatchOptions(gpu_count=3, progress=lambda *facts: told.append(facts))
    )
    piece = batch.take(DeviceKind.GPU, 3)
    assert piece is not None
    batch.fall_back_to_cpu(piece, ValueError("what the GPU says"), "gpu", blame=batch.close)
    batch.finish(0, [0, 1, 2])
    assert told == [(3, 3)]


def test_what_is_late_is_not_told() -> None:
    told: list[tuple[int, int]] = []
    batch = Batch(range(3), abs, Telemetry(), BatchOptions(progress=lambda *facts: told.append(facts)))
    batch.finish(0, [0])
    batch.close()
    batch.finish(1, [1, 2])
    assert told == [(1, 3)]


class Leaves:
    """A lane that leaves a thread at a task behind when it is interrupted."""

    name = "leaves"

    def __init__(self) -> None:
        self.go, self.threads = threading.Event(), list[threading.Thread]()

    def execute_batch(self, tasks: Sequence[Any], process_fn: Any) -> list[Any]:
        return [process_fn(task) for task in tasks]

    def work(self, work: Any, *, caller: bool) -> None:
        def late() -> None:
            self.go.wait(PATIENCE_S)
            work.finish(0, [0])

        work.take(DeviceKind.CPU, 2)
        self.threads.append(threading.Thread(target=late))
        self.threads[0].start()
        raise KeyboardInterrupt


def test_nothing_is_told_of_an_interrupted_batch_after_the_interruption() -> None:
    told: list[int] = []
    lane = Leaves()
    with pytest.raises(KeyboardInterrupt):
        StrategyManager.cpu_only(lane).execute(range(2), abs, progress=lambda done, of: told.append(done))
    lane.go.set()
    lane.threads[0].join(PATIENCE_S)
    assert told == []


@pytest.mark.parametrize("options", [{"timeout": PATIENCE_S}, {"rerun": "freely"}], ids=str)
def test_progress_ends_at_the_end(options: dict[str, Any]) -> None:
    manager, told = StrategyManager.cpu_only(ThreadsExecutor(4)), list[int]()
    for _ in range(50):
        manager.execute(range(40), abs, progress=lambda done, of: told.append(done), **options)
        assert told[-1] == 40
