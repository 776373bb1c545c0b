"""Locks that no other thread holds while a thread forks.

A forked child has only the thread that forked. A lock that another thread held is never released there, and
its state may be inconsistent. So a fork waits until these locks are free.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Final, final


@final
class _Forks:
    """Threads that hold locks, and forks that wait for them.

    While a fork waits, a thread that holds no lock waits for the fork, and one that does may take more locks.
    So the fork neither starves nor waits for a thread that waits for it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # reentrant: a signal handler may take a lock at any point
        self._depths: dict[int, int] = {}
        """Number of locks that each thread holds or waits for."""
        self._is_pending = False

    def enter(self) -> None:
        """Note that the calling thread is about to take a lock."""
        thread = threading.get_ident()
        with self._changed:
            while self._is_pending and thread not in self._depths:
                self._changed.wait()
            self._depths[thread] = self._depths.get(thread, 0) + 1

    def leave(self) -> None:
        """Note that the calling thread has released a lock."""
        thread = threading.get_ident()
        with self._changed:
            self._depths[thread] -= 1
            if not self._depths[thread]:
                del self._depths[thread]
                self._changed.notify_all()

    def begin(self) -> None:
        """Wait until no other thread forks or holds a lock, and keep it so until ``end``."""
        self._changed.acquire()
        while self._is_pending:
            self._changed.wait()
        self._is_pending = True
        while self._depths.keys() - {threading.get_ident()}:
            self._changed.wait()

    def end(self) -> None:
        """Let other threads go on, in the process that forked and in its child."""
        self._is_pending = False
        self._changed.notify_all()
        self._changed.release()


_FORKS: Final = _Forks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_FORKS.begin, after_in_parent=_FORKS.end, after_in_child=_FORKS.end)


@final
class ForkSafeLock:
    """A lock for state of the whole process, which is free or of the forking thread during a fork.

    A ``reentrant`` one may be taken again by the thread that holds it, such as by a signal handler.
    """

    def __init__(self, *, reentrant: bool = False) -> None:
        self._lock = threading.RLock() if reentrant else threading.Lock()

    def __enter__(self) -> None:
        _FORKS.enter()
        try:
            self._lock.acquire()
        except BaseException:  # Ctrl-C while it waits
            _FORKS.leave()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
        _FORKS.leave()


IMPORTING: Final = ForkSafeLock()
"""Held by threads of this package that import a module: the interpreter's lock of a module whose import has
begun in another thread would never be released in the child."""
