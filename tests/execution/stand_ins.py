"""What several tests of executors stand on: live objects that are counted, clocks, meetings, tracers."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from accelera.execution import Observer, TaskFailure


def square(number: int) -> int:
    return number * number


def appended(folder: Path, task: int, text: str = "x") -> int:
    """Append to the task's file; return how often that was done."""
    with (folder / str(task)).open("a") as file:
        file.write(text)
        return file.tell()


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)


class Unreadable:
    """Can be pickled, and not be unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


class Holding(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("holding a lock")
        self.lock = threading.Lock()


class Counting(Observer):
    """Sums what devices are said to have done."""

    def __init__(self) -> None:
        self.tasks: Counter[str] = Counter()
        self.lock = threading.Lock()

    def on_chunk(self, device: str, task_count: int, seconds: float) -> None:
        with self.lock:
            self.tasks[device] += task_count


def blanked(outputs: Sequence[Any]) -> list[Any]:
    """Return ``outputs`` with None where a task has failed."""
    return [None if isinstance(output, TaskFailure) else output for output in outputs]


class Alive:
    """Counts the megabytes it has made that are still alive, and remembers the most there were."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self._lock = threading.Lock()

    def made(self, by: int) -> None:
        with self._lock:
            self.now += by
            self.peak = max(self.peak, self.now)


class Megabyte:
    """Says that it has a mebibyte."""

    nbytes = 1 << 20

    def __init__(self, alive: Alive) -> None:
        self._alive = alive
        alive.made(1)

    def __del__(self) -> None:
        self._alive.made(-1)


class Clock:
    """Goes on by a fixed amount whenever it is looked at, so that cool-downs end during the work."""

    def __init__(self, step_s: float) -> None:
        self._now_s, self._step_s = 0.0, step_s

    def __call__(self) -> float:
        self._now_s += self._step_s
        return self._now_s


def run_schedules(seeds: Sequence[int], run: Callable[[int], None], longest_s: float) -> None:
    """Call ``run`` with every seed; fail with the seed when it raises, or does not end in ``longest_s``."""
    at: list[int] = []
    errors: list[BaseException] = []

    def work() -> None:
        for seed in seeds:
            at.append(seed)
            try:
                run(seed)
            except BaseException as error:
                errors.append(error)
                return

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    begun = -1
    while thread.is_alive():
        assert len(at) > begun, f"schedule {at[-1]} does not end"
        begun = len(at)
        thread.join(longest_s)
    if errors:
        raise AssertionError(f"schedule {at[-1]}") from errors[0]
    assert len(at) == len(seeds)


class Meeting:
    """Has the first ``count`` threads that come wait for one another; all who come later pass."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count, timeout=300)
        self.over = False

    def __call__(self, *_: Any) -> None:
        if not self.over:
            self._barrier.wait()
            self.over = True


class Spans:
    """A tracer, and the spans that have ended."""

    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer = provider.get_tracer("tests")

    def __call__(self) -> Sequence[Any]:
        return self._kept.get_finished_spans()
