"""Transfers in the background: reader threads fill memory from backing stores, a writer empties it."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import final

Work = Callable[[], int]
"""Moves some bytes; returns how many."""


@final
class Transfer:
    """One transfer, in one or more parts; tells when it is over, and what went wrong."""

    __slots__ = ("_gate", "_left", "_lock", "_parts", "error")

    def __init__(self, parts: Sequence[Work]) -> None:
        self.error: BaseException | None = None
        self._parts = parts
        self._left = len(parts)
        self._lock = threading.Lock()
        self._gate = threading.Lock()
        self._gate.acquire()

    @property
    def over(self) -> bool:
        """Whether it has ended, well or not."""
        return not self._gate.locked()

    @property
    def done(self) -> bool:
        """Whether it has ended well."""
        return not self._gate.locked() and self.error is None

    def run_part(self, work: Work) -> int:
        """Do one part in the calling thread; return the bytes moved."""
        moved = 0
        try:
            if self.error is None:
                moved = work()
        except BaseException as error:
            self.error = error
        with self._lock:
            self._left -= 1
            over = not self._left
        if over:
            self._parts = self._parts if self.error else ()
            self._gate.release()
        return moved

    def wait(self) -> None:
        """Return when it is over; raise what stopped it."""
        self.wait_over()
        if self.error is not None:
            raise self.error

    def wait_over(self) -> None:
        """Return when it is over, well or not."""
        with self._gate:
            pass

    def wait_or_repeat(self) -> None:
        """Return when it has ended well; one that failed is tried once more, and raises if it fails again."""
        with self._gate:
            if self.error is not None:
                for part in self._parts:
                    part()
                self.error = None
            self._parts = ()

    def forget(self) -> None:
        """Return when it is over; one that failed is not tried again."""
        with self._gate:
            self._parts = ()
            self.error = None


@final
class TransferThreads:
    """Threads that take moves one after the other, in the order in which they were asked for."""

    def __init__(self, count: int, name: str) -> None:
        self.bytes_moved = 0
        self._count = count
        self._name = name
        self._asked: SimpleQueue[tuple[Transfer, Work] | None] = SimpleQueue()
        self._left = 0
        self._done = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._abandoned = False

    def ask(self, parts: Sequence[Work]) -> Transfer:
        """Hand over a transfer."""
        if not self._threads:
            self._start()
        move = Transfer(parts)
        with self._done:
            self._left += len(parts)
        for part in parts:
            self._asked.put((move, part))
        return move

    @property
    def idle(self) -> bool:
        """Whether everything asked for so far is over, well or not."""
        with self._done:
            return not self._left

    def drain(self) -> None:
        """Return when everything asked for so far is over, well or not."""
        with self._done:
            self._done.wait_for(lambda: not self._left)

    def dismiss(self) -> None:
        """Let the threads end when everything asked for is done; do not wait."""
        for _ in self._threads:
            self._asked.put(None)

    def close(self) -> None:
        """End the threads when everything asked for is done."""
        self.dismiss()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def abandon(self) -> None:
        """End the threads after what each is at; what is asked for beyond is not done."""
        self._abandoned = True
        self.close()

    def _start(self) -> None:
        _RUNNING.add(self)
        for _ in range(self._count):
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            move, work = asked
            if self._abandoned:
                move.error = move.error or InterruptedError("[pool] the process ends")
            moved = move.run_part(work)
            with self._done:
                self.bytes_moved += moved
                self._left -= 1
                if not self._left:
                    self._done.notify_all()
            del asked, move, work


_RUNNING: weakref.WeakSet[TransferThreads] = weakref.WeakSet()


@atexit.register
def _abandon_all() -> None:
    """End all threads before the interpreter does: one that comes back to it later ends the process."""
    for threads in list(_RUNNING):
        threads.abandon()
