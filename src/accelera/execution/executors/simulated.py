"""Simulated GPU executor: real outputs, counted memory, and failures when asked for."""

from __future__ import annotations

import contextlib
import enum
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, final

from accelera.errors import ArgumentError, DeviceError, DeviceMemoryError
from accelera.execution.kernel import GpuBatch
from accelera.units import format_bytes, parse_bytes, parse_limit


class Fault(enum.Enum):
    """Kind of an injected failure."""

    STICKY = "breaks"
    """From then on it is of no use."""
    MEMORY = "runs out of memory"
    TRANSIENT = "fails"
    """It may go well the next time."""
    HANG = "hangs"
    """It never comes back."""


Nth = int | Iterable[int]
"""One ordinal or several; the first is 1."""


@final
class InjectedFaults:
    """Counts micro-batches and says which are to fail. May be shared by threads.

    Parameters
    ----------
    at
        The micro-batches that meet each kind of failure; where two do, the first kind counts.
    shares
        The share of all other micro-batches that meets each kind.
    seed
        Seed of the draws: the same one makes the same micro-batches fail.

    Raises
    ------
    ValueError
        When a share is outside 0 … 1, or they are more than 1 together.
    """

    def __init__(self, at: Mapping[Fault, Nth], shares: Mapping[Fault, float], seed: int) -> None:
        if not all(0 <= share <= 1 for share in shares.values()) or sum(shares.values()) > 1:
            listed = ", ".join(f"{fault.value} {share}" for fault, share in shares.items())
            raise ArgumentError(
                f"[faults] shares of failures {listed}: each lies between 0 and 1, and so does their sum"
            )
        self._at = {fault: frozenset([nth] if isinstance(nth, int) else nth) for fault, nth in at.items()}
        self._shares = shares
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.count = 0
        """Micro-batches so far."""

    def next(self) -> tuple[int, Fault | None]:
        """Return the ordinal of the next micro-batch, and how it is to fail; None: not at all."""
        with self._lock:
            self.count += 1
            drawn = self._random.random()
            for fault, ordinals in self._at.items():
                if self.count in ordinals:
                    return self.count, fault
            for fault, share in self._shares.items():
                if drawn < share:
                    return self.count, fault
                drawn -= share
            return self.count, None


@final
@dataclass(frozen=True, slots=True)
class SimulatedReport:
    """Work of a simulated executor."""

    batches: int
    """Micro-batches that it was given, failures included."""
    tasks: int
    """Tasks that it finished."""
    failures: int
    """Micro-batches that the device failed at."""
    peak_bytes: int
    """Most bytes that tasks took at any time."""
    busy_s: float
    """Seconds that the finished micro-batches would have taken, launches included."""


@final
class SimulatedExecutor:
    """A ``GpuExecutor`` for trying strategies out, and for tests.

    Tasks run on the CPU in the calling thread, a ``Kernel`` with a batched form whole micro-batches at once
    with ``"cpu"`` as its device. What they take of the device's memory and time is reckoned. Micro-batches
    are counted from 1.

    Parameters
    ----------
    memory : int or str
        Size of its memory, such as ``"256MiB"``; a micro-batch that takes more fails.
    memory_per_task : int, str or callable
        Bytes that a task takes while it runs, or a function of the task that returns them.
    speed : float, optional
        Tasks per second; None: no time is reckoned for tasks.
    launch_s : float
        Seconds that each micro-batch takes besides.
    sleeps : bool
        Whether the time passes in reality, as far as the CPU was faster; otherwise it is only added up.
    oom_at, oom_probability
        Which micro-batches run out of memory: the nth, one or several; a share of all.
    fail_at, fail_probability
        Which fail in a way that may go well the next time.
    break_at
        Which break the device: it fails from then on, until ``restart``.
    hang_at
        Which never end, until ``restart``.
    seed : int
        Seed of the draws.
    name : str
        What it is called.

    Raises
    ------
    ValueError
        When a size, rate, time or share cannot be.
    """

    def __init__(
        self,
        memory: int | str = "256MiB",
        *,
        memory_per_task: int | str | Callable[[Any], int] = 0,
        speed: float | None = None,
        launch_s: float = 0.0,
        sleeps: bool = False,
        oom_at: Nth = (),
        oom_probability: float = 0.0,
        fail_at: Nth = (),
        fail_probability: float = 0.0,
        break_at: Nth = (),
        hang_at: Nth = (),
        seed: int = 0,
        name: str = "sim",
    ) -> None:
        if not ((speed is None or speed > 0) and launch_s >= 0):
            raise ArgumentError(
                f"[{name}] speed={speed}, launch_s={launch_s}: the speed must be above 0, launch_s from 0"
            )
        self.name = name
        self.capacity_bytes = parse_limit(name, memory)
        """Size of its memory."""
        self._cost_bytes = memory_per_task if callable(memory_per_task) else _constant(memory_per_task)
        self._speed, self._launch_s, self._sleeps = speed, launch_s, sleeps
        at = {Fault.STICKY: break_at, Fault.MEMORY: oom_at, Fault.TRANSIENT: fail_at, Fault.HANG: hang_at}
        shares = {Fault.MEMORY: oom_probability, Fault.TRANSIENT: fail_probability}
        self._faults = InjectedFaults(at, shares, seed)
        self._broken_at: int | None = None
        self._restarted = threading.Event()
        self._lock = threading.Lock()
        self._held_bytes = self._peak_bytes = self._tasks = self._failures = 0
        self._busy_s = 0.0

    def __repr__(self) -> str:
        return f"SimulatedExecutor({format_bytes(self.capacity_bytes)!r}, name={self.name!r})"

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> Sequence[Any]:
        """Return the outputs of all tasks, in their order.

        Raises what the function raises, ``DeviceMemoryError`` when the tasks take too much at once or are to,
        and ``DeviceError`` where the device is to fail.
        """
        began = time.perf_counter()
        self._fail_if_due()
        with self._allocated(sum(self._cost_bytes(task) for task in tasks)):
            batch: GpuBatch | None = getattr(process_fn, "batch", None)
            outputs = [process_fn(task) for task in tasks] if batch is None else batch(tasks, "cpu")
            seconds = self._launch_s + (len(tasks) / self._speed if self._speed else 0.0)
            if self._sleeps:
                time.sleep(max(0.0, seconds - (time.perf_counter() - began)))
        with self._lock:
            self._tasks += len(tasks)
            self._busy_s += seconds
        return outputs

    def is_available(self) -> bool:
        """Return True: like a real one, a broken device says nothing of it."""
        return True

    def memory_available(self) -> int:
        """Return the bytes that no task takes."""
        return self.capacity_bytes - self._held_bytes

    def memory_total(self) -> int:
        """Return the bytes that it has."""
        return self.capacity_bytes

    def restart(self) -> None:
        """Make a broken device whole; micro-batches that hang end with ``DeviceError``."""
        with self._lock:
            self._broken_at = None
            ended, self._restarted = self._restarted, threading.Event()
        ended.set()

    def report(self) -> SimulatedReport:
        """Return what was done so far."""
        with self._lock:
            return SimulatedReport(
                self._faults.count, self._tasks, self._failures, self._peak_bytes, self._busy_s
            )

    def _fail_if_due(self) -> None:
        count, fault = self._faults.next()
        if fault is Fault.STICKY:
            self._broken_at = self._broken_at or count
        if self._broken_at is not None:
            self._fail(DeviceError, f"illegal memory access: broken since micro-batch {self._broken_at}")
        if fault is Fault.MEMORY:
            self._fail(DeviceMemoryError, f"out of memory: told to be at micro-batch {count}")
        if fault is Fault.TRANSIENT:
            self._fail(DeviceError, f"launch failure: told to fail at micro-batch {count}")
        if fault is Fault.HANG:
            self._restarted.wait()
            self._fail(DeviceError, f"launch timed out: micro-batch {count} hung until the restart")

    def _fail(self, kind: type[DeviceError | DeviceMemoryError], words: str) -> NoReturn:
        with self._lock:
            self._failures += 1
        raise kind(f"[{self.name}] {words}")

    @contextlib.contextmanager
    def _allocated(self, nbytes: int) -> Iterator[None]:
        with self._lock:
            free_bytes = self.capacity_bytes - self._held_bytes
            fits = nbytes <= free_bytes
            if fits:
                self._held_bytes += nbytes
                self._peak_bytes = max(self._peak_bytes, self._held_bytes)
        if not fits:
            self._fail(
                DeviceMemoryError,
                f"out of memory: tasks take {format_bytes(nbytes)} at once, and {format_bytes(free_bytes)}"
                f" of {format_bytes(self.capacity_bytes)} are free; give it fewer",
            )
        try:
            yield
        finally:
            with self._lock:
                self._held_bytes -= nbytes


def _constant(size: int | str) -> Callable[[Any], int]:
    nbytes = parse_bytes(size)
    return lambda task: nbytes
