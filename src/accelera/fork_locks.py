"""Locks that no other thread holds while a thread forks.

A forked child has only the thread that forked. A lock that another thread held is never released there, and its
state may be inconsistent. So a fork waits until these locks are free.
"""

from __future__ import annotations

import os
import threading
from typing import Final, final
from weakref import WeakSet


MAX_WAIT_S: Final = 1.0
"""Seconds that a fork waits for one lock: its holder may itself wait for a lock that the fork has."""


@final
class _Fork:
    """Takes all locks before a fork, and releases them in both processes."""

    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._locks: WeakSet[threading.Lock] = WeakSet()
        self._held: list[threading.Lock] = []

    def add(self, lock: threading.Lock) -> None:
        # Takes no lock: the caller may hold one that a fork waits for.
        self._locks.add(lock)

    def begin(self) -> None:
        """Wait until no other thread forks or holds one of the locks."""
        self._one_at_a_time.acquire()
        # Blocking, since threads that use a lock often would win against repeated attempts for ever.
        self._held = [lock for lock in self._copy_of_locks() if lock.acquire(timeout=MAX_WAIT_S)]

    def _copy_of_locks(self) -> list[threading.Lock]:
        while True:
            try:
                return list(self._locks)
            except RuntimeError:  # another thread has added one meanwhile
                continue

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
