"""The workers of one executor: started when first needed, lent to one driver at a time, ended together."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, final

from accelera.errors import DeviceError
from accelera.execution.cores import usable_cores
from accelera.execution.executors.workers.worker import GRACE_S, POLL_S, Worker

MOST_FAILED_STARTS: Final = 3


@final
class CannotStart(DeviceError):
    """The system allows no further process."""


@final
class Slot:
    """A place for one worker."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self.worker: Worker | None = None
        self.failed_starts = 0
        """How many workers in a row died before they were ready."""

    def ready(self) -> Worker:
        """Return a worker that lives, a new one if need be."""
        if self.worker is not None and not self.worker.alive:
            self.worker.kill()
            self.worker = None
        if self.worker is None:
            try:
                self.worker = Worker(self._cores)
            except OSError as error:
                raise CannotStart(
                    f"[processes] no worker process can be started ({error}): allow more processes and open"
                    f" files, ask for fewer workers, or use threads"
                ) from error
        return self.worker


@final
class Crew:
    """So many workers.

    Parameters
    ----------
    count
        How many.
    """

    def __init__(self, count: int) -> None:
        cores = max(1, usable_cores() // count)
        self._process_id = os.getpid()
        self._lock = threading.Lock()
        self._slots = [Slot(cores) for _ in range(count)]
        self._idle: queue.LifoQueue[Slot] = queue.LifoQueue()
        self.closed = False
        for slot in reversed(self._slots):
            self._idle.put(slot)

    @property
    def ours(self) -> bool:
        """Whether it was made by this process, rather than by one that this was forked from."""
        return self._process_id == os.getpid()

    @property
    def started(self) -> bool:
        """Whether there is a worker already."""
        return any(slot.worker is not None for slot in self._slots)

    @property
    def process_ids(self) -> list[int]:
        """Of the workers that have been started."""
        workers = [slot.worker for slot in self._slots]
        return [worker.process_id for worker in workers if worker is not None]

    @contextlib.contextmanager
    def lend(self, stopped: Callable[[], bool]) -> Iterator[Slot | None]:
        """Have a worker's place for oneself; waits until one is idle, None when it is too late for that."""
        slot = self._wait(stopped)
        try:
            yield slot
        finally:
            if slot is not None:
                self._idle.put(slot)

    def ready(self, slot: Slot) -> Worker:
        """Return the worker of a slot that was lent; raises ``DeviceError`` when the crew was sent home."""
        with self._lock:
            if self.closed:
                raise DeviceError(
                    "[processes] the executor was closed: its workers are gone; make a new ProcessesExecutor"
                )
            return slot.ready()

    def close(self) -> None:
        """End all workers, those at work at once; does nothing in a forked process."""
        if not self.ours:
            return
        with self._lock:
            self.closed = True
        idle = []
        with contextlib.suppress(queue.Empty):
            while True:
                idle.append(self._idle.get_nowait())
        for slot in self._slots:
            worker = slot.worker
            if slot not in idle and worker is not None:
                worker.interrupt()
        leaving = [slot.worker for slot in idle if slot.worker is not None]
        for worker in leaving:
            worker.leave()
        until_s = time.monotonic() + GRACE_S
        for worker in leaving:
            worker.close(max(0.0, until_s - time.monotonic()))
        for slot in idle:
            slot.worker = None
            self._idle.put(slot)

    def _wait(self, stopped: Callable[[], bool]) -> Slot | None:
        while True:
            with contextlib.suppress(queue.Empty):
                slot = self._idle.get(timeout=POLL_S)
                if not stopped():
                    return slot
                self._idle.put(slot)
            if stopped():
                return None
