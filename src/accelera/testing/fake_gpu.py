"""Fake GPU for tests without a device: it runs tasks in the calling thread and fails on request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from accelera.execution._internal import FailureKind, kind_of
from accelera.testing.caching_allocator import CachingAllocator
from accelera.testing.device_errors import out_of_memory
from accelera.units import parse_limit

Faults = Mapping[int, Callable[[], BaseException]] | Callable[[int], BaseException | None]
"""Exception to raise for the number of a call, from 0: a table of functions that make it, or one function."""


@final
class FakeGpu:
    """A ``GpuExecutor`` with as much memory, as many faults and as little speed as a test asks for.

    A kernel's batched form is used where it has one. After an error that is sticky, such as an illegal memory
    access, every call raises it again until ``revive``, as with CUDA in a process that goes on.

    Parameters
    ----------
    max_batch
        Maximum number of tasks per call, or a function that maps the number of the call to it. None means
        no limit.
    faults
        Calls that fail. A call above ``max_batch`` fails first and needs no entry.
    before_fault
        The part of a call's tasks, from 0 to 1, that are run before its fault.
    launch_s, task_s
        Seconds that every call takes, and every task of it.
    memory
        Size of its memory, such as ``"8GiB"`` or in bytes.
    task_bytes
        What each task of a call takes of it, or a function of the task: all of them in one piece, which is
        kept for reuse as torch's allocator does, with the same rounding and fragmentation.
    name
        What results and logs call it.

    >>> from accelera.testing.device_errors import transient
    >>> gpu = FakeGpu(max_batch=4, faults={0: transient})
    >>> gpu.execute_batch([1, 2], lambda task: task + 1)
    Traceback (most recent call last):
        ...
    torch.AcceleratorError: CUDA error: launch failure reported by a fake device
    >>> gpu.execute_batch([1, 2], lambda task: task + 1)
    [2, 3]
    """

    def __init__(
        self,
        *,
        max_batch: int | Callable[[int], int] | None = None,
        faults: Faults | None = None,
        before_fault: float = 0.0,
        launch_s: float = 0.0,
        task_s: float = 0.0,
        memory: int | str = "8GiB",
        task_bytes: int | Callable[[Any], int] = 0,
        name: str = "fake",
    ) -> None:
        self.name = name
        self.available = True
        """Result of ``is_available``; may be changed."""
        self.calls: list[int] = []
        """Number of tasks of each call."""
        self.failed: list[int] = []
        """Number of tasks of each call that raised."""
        self.emptied = 0
        """Number of calls of ``empty_cache``."""
        self.max_batch = max_batch
        """Number of tasks that fit at once; may be changed."""
        self._faults: Faults = {} if faults is None else faults
        self._before_fault = before_fault
        self._launch_s, self._task_s = launch_s, task_s
        self._task_bytes = task_bytes
        self.memory = CachingAllocator(parse_limit(name, memory), out_of_memory)
        """Its memory; may be filled by a test."""
        self._dead: BaseException | None = None
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
        except BaseException as error:
            with self._lock:
                self.failed.append(len(tasks))
                if kind_of(error) is FailureKind.STICKY:
                    self._dead = self._dead or error.with_traceback(None)
            raise

    def revive(self) -> None:
        """Clear the sticky error, as a new process would."""
        self._dead = None

    def is_available(self) -> bool:
        """Return ``available``."""
        return self.available

    def memory_available(self) -> int:
        """Return the bytes that are free or kept for reuse."""
        memory = self.memory
        return memory.free_bytes + memory.reserved.current - memory.allocated.current

    def empty_cache(self) -> None:
        """Give what is kept for reuse back, and count that it was asked for."""
        self.emptied += 1
        self.memory.empty_cache()

    def _fault(self, call: int, count: int) -> BaseException | None:
        if self._dead is not None:
            return type(self._dead)(*self._dead.args)
        max_batch = self.max_batch(call) if callable(self.max_batch) else self.max_batch
        if max_batch is not None and count > max_batch:
            return out_of_memory()
        if callable(self._faults):
            return self._faults(call)
        return self._faults[call]() if call in self._faults else None

    def _run(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        if self._task_s:
            time.sleep(self._task_s * len(tasks))
        batch = getattr(process_fn, "batch", None)
        nbytes = sum(map(self._bytes_of, tasks))
        block = self.memory.allocate(nbytes) if nbytes else None
        try:
            return [process_fn(task) for task in tasks] if batch is None else batch(tasks, self.name)
        finally:
            if block is not None:
                self.memory.free(block)

    def _bytes_of(self, task: Any) -> int:
        return self._task_bytes(task) if callable(self._task_bytes) else self._task_bytes
