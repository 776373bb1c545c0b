"""Transfers in the background: reader threads fill memory from backing stores, a writer empties it."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import final

TransferPart = Callable[[], int]
"""Moves one part of a transfer; returns the bytes moved."""


@final
class Transfer:
    """One transfer, in one or more parts, with the error that stopped it if there was one."""

    __slots__ = ("_latch", "_lock", "_parts", "_parts_left", "error")

    def __init__(self, parts: Sequence[TransferPart]) -> None:
        self.error: BaseException | None = None
        self._parts = parts
        self._parts_left = len(parts)
        self._lock = threading.Lock()
        self._latch = threading.Lock()
        """Locked until the last part has ended."""
        self._latch.acquire()

    @property
    def over(self) -> bool:
        """Whether it has ended, failed or not."""
        return not self._latch.locked()

    @property
    def done(self) -> bool:
        """Whether it has ended without an error."""
        return not self._latch.locked() and self.error is None

    def run_part(self, work: TransferPart) -> int:
        """Run one part in the calling thread; return the bytes moved."""
        moved = 0
        try:
            if self.error is None:
                moved = work()
        except BaseException as error:
            self.error = error
        with self._lock:
            self._parts_left -= 1
            over = not self._parts_left
        if over:
            self._parts = self._parts if self.error else ()
            self._latch.release()
        return moved

    def wait(self) -> None:
        """Wait until it is over; raises the error that stopped it."""
        self.wait_over()
        if self.error is not None:
            raise self.error

    def wait_over(self) -> None:
        """Wait until it is over, whether it failed or not."""
        with self._latch:
            pass

    def wait_or_repeat(self) -> None:
        """Wait until it is over; a failed transfer is retried once here, and the retry's error raised."""
        with self._latch:
            if self.error is not None:
                for part in self._parts:
                    part()
                self.error = None
            self._parts = ()

    def forget(self) -> None:
        """Wait until it is over, and drop its error: a failed transfer is not retried."""
        with self._latch:
            self._parts = ()
            self.error = None


@final
class TransferThreads:
    """Threads that run the parts of transfers in the order of submission."""

    def __init__(self, count: int, name: str) -> None:
        self.bytes_moved = 0
        self._count = count
        self._name = name
        self._queue: SimpleQueue[tuple[Transfer, TransferPart] | None] = SimpleQueue()
        self._parts_left = 0
        self._idle_condition = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._abandoned = False

    def submit(self, parts: Sequence[TransferPart]) -> Transfer:
        """Queue a transfer and return it."""
        if not self._threads:
            self._start()
        transfer = Transfer(parts)
        with self._idle_condition:
            self._parts_left += len(parts)
        for part in parts:
            self._queue.put((transfer, part))
        return transfer

    @property
    def idle(self) -> bool:
        """Whether every transfer submitted so far is over, failed or not."""
        with self._idle_condition:
            return not self._parts_left

    def drain(self) -> None:
        """Wait until every transfer submitted so far is over, failed or not."""
        with self._idle_condition:
            self._idle_condition.wait_for(lambda: not self._parts_left)

    def shutdown(self) -> None:
        """Let the threads end after the queued transfers, without waiting for them."""
        for _ in self._threads:
            self._queue.put(None)

    def close(self) -> None:
        """Finish the queued transfers, then end the threads and wait for them."""
        self.shutdown()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def abandon(self) -> None:
        """End the threads after the part each is running; the parts still queued fail."""
        self._abandoned = True
        self.close()

    def _start(self) -> None:
        _RUNNING.add(self)
        for _ in range(self._count):
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            transfer, work = item
            if self._abandoned:
                transfer.error = transfer.error or InterruptedError("[pool] the process ends")
            moved = transfer.run_part(work)
            with self._idle_condition:
                self.bytes_moved += moved
                self._parts_left -= 1
                if not self._parts_left:
                    self._idle_condition.notify_all()
            del item, transfer, work


_RUNNING: weakref.WeakSet[TransferThreads] = weakref.WeakSet()


@atexit.register
def _abandon_all() -> None:
    """End all threads before the interpreter exits: one that took the GIL later would end the process."""
    for threads in list(_RUNNING):
        threads.abandon()
