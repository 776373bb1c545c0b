"""Locks that no other thread holds while a thread forks.

A forked child has only the thread that forked. A lock that another thread held is never released there, and
what it protects may be half changed. So a fork waits until these locks are free.
"""

from __future__ import annotations

import os
import threading
from typing import Final, final
from weakref import WeakSet


@final
class _Fork:
    """Takes all locks before a fork, and releases them in both processes."""

    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._locks: WeakSet[threading.Lock] = WeakSet()
        self._held: list[threading.Lock] = []

    def add(self, lock: threading.Lock) -> None:
        with self._one_at_a_time:
            self._locks.add(lock)

    def begin(self) -> None:
        """Wait until no other thread forks or holds one of the locks."""
        self._one_at_a_time.acquire()
        self._held = list(self._locks)
        busy = 0
        # Other threads take several locks in orders of their own: waiting with none held cannot block them.
        while (next_busy := self._take_all(first=busy)) is not None:
            busy = next_busy

    def _take_all(self, first: int) -> int | None:
        """Wait for one lock and take the others that are free; else release all and return the busy one."""
        if not self._held:
            return None
        self._held[first].acquire()
        taken = [self._held[first]]
        for place, lock in enumerate(self._held):
            if place == first:
                continue
            if not lock.acquire(blocking=False):
                for each in taken:
                    each.release()
                return place
            taken.append(lock)
        return None

    def end(self) -> None:
        """Release the locks, in the process that forked and in its child."""
        for lock in self._held:
            lock.release()
        self._held = []
        self._one_at_a_time.release()


_FORK: Final = _Fork()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_FORK.begin, after_in_parent=_FORK.end, after_in_child=_FORK.end)


def lock_held_at_forks() -> threading.Lock:
    """Return a new lock for state of the whole process, which a thread that forks waits for and holds."""
    lock = threading.Lock()
    _FORK.add(lock)
    return lock


IMPORTING: Final = lock_held_at_forks()
"""Held by threads of this package that import a module: the interpreter's lock of a module whose import has
begun in another thread would never be released in the child."""
