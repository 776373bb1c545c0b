"""A GPU that is none: it runs tasks in the calling thread and fails when told, for tests without a device."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

Faults = Mapping[int, Callable[[], BaseException]] | Callable[[int], BaseException | None]
"""What to raise, by the number of the call from 0 on: as a table of exceptions to be made, or a function."""


def out_of_memory() -> Exception:
    """Return what PyTorch raises when a CUDA device has no memory left."""
    return RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.21 GiB free")


def transient() -> Exception:
    """Return an error of a device that may be gone the next time."""
    return RuntimeError("CUDA error: launch failure reported by a fake device")


def sticky() -> Exception:
    """Return an error after which a process cannot use its device any more."""
    return RuntimeError("CUDA error: an illegal memory access was encountered")


@final
class FakeGpu:
    """A ``GpuExecutor`` with as much memory, as many faults and as little speed as a test asks for.

    A kernel's batched form is used where it has one.

    Parameters
    ----------
    room
        How many tasks fit at once, or a function that returns so for a call's number; None: any number.
    faults
        Calls that fail. Running out of room comes first and needs no entry.
    before_fault
        The part of a call's tasks, from 0 to 1, that are run before its fault.
    launch_s, task_s
        Seconds that every call takes, and every task of it.
    memory_bytes
        What ``memory_available`` answers.
    name
        What results and logs call it.

    >>> gpu = FakeGpu(room=4, faults={0: transient})
    >>> gpu.execute_batch([1, 2], lambda task: task + 1)
    Traceback (most recent call last):
        ...
    RuntimeError: CUDA error: launch failure reported by a fake device
    >>> gpu.execute_batch([1, 2], lambda task: task + 1)
    [2, 3]
    """

    def __init__(
        self,
        *,
        room: int | Callable[[int], int] | None = None,
        faults: Faults | None = None,
        before_fault: float = 0.0,
        launch_s: float = 0.0,
        task_s: float = 0.0,
        memory_bytes: int = 8 << 30,
        name: str = "fake",
    ) -> None:
        self.name = name
        self.available = True
        """What ``is_available`` answers."""
        self.calls: list[int] = []
        """How many tasks each call was given."""
        self.failed: list[int] = []
        """How many tasks each call was given that raised."""
        self.emptied = 0
        """How often ``empty_cache`` was called."""
        self.room = room
        """How many tasks fit; may be changed."""
        self._faults: Faults = {} if faults is None else faults
        self._before_fault = before_fault
        self._launch_s, self._task_s = launch_s, task_s
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        """Return the outputs of all tasks, or raise the fault that is due."""
        with self._lock:
            call = len(self.calls)
            self.calls.append(len(tasks))
        fault = self._fault(call, len(tasks))
        if self._launch_s:
            time.sleep(self._launch_s)
        try:
            if fault is not None:
                self._run(tasks[: int(self._before_fault * len(tasks))], process_fn)
                raise fault
            return self._run(tasks, process_fn)
        except BaseException:
            with self._lock:
                self.failed.append(len(tasks))
            raise

    def is_available(self) -> bool:
        """Return ``available``."""
        return self.available

    def memory_available(self) -> int:
        """Return the bytes that are said to be free."""
        return self._memory_bytes

    def empty_cache(self) -> None:
        """Count that memory was asked back."""
        self.emptied += 1

    def _fault(self, call: int, count: int) -> BaseException | None:
        room = self.room(call) if callable(self.room) else self.room
        if room is not None and count > room:
            return out_of_memory()
        if callable(self._faults):
            return self._faults(call)
        return self._faults[call]() if call in self._faults else None

    def _run(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        if self._task_s:
            time.sleep(self._task_s * len(tasks))
        batch = getattr(process_fn, "batch", None)
        return [process_fn(task) for task in tasks] if batch is None else batch(tasks, self.name)
