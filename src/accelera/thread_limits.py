"""Limits that threads set for the whole process; a forked child keeps those of the thread that it has."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import final
from weakref import WeakSet


@final
class ThreadLimits:
    """Counts of threads to which the threads of this process limit a library; the smallest one applies.

    Parameters
    ----------
    on_lifted
        Called in a forked child whose parent had limits of other threads, which the child does not have.
    """

    def __init__(self, on_lifted: Callable[[], None]) -> None:
        self.lock = threading.Lock()
        """Held while limits change and are applied; no thread but the forking one holds it during a fork."""
        self._limits: list[tuple[int, int]] = []
        self._on_lifted = on_lifted
        _INSTANCES.add(self)

    def __len__(self) -> int:
        return len(self._limits)

    def least(self, default: int) -> int:
        """Return the smallest limit, or ``default`` without one."""
        return min((count for _, count in self._limits), default=default)

    def add(self, count: int) -> None:
        """Add a limit of the calling thread, which holds ``lock``."""
        self._limits.append((threading.get_ident(), count))

    def remove(self, count: int) -> None:
        """Remove a limit that the calling thread, which holds ``lock``, has added."""
        self._limits.remove((threading.get_ident(), count))

    def lift_limits_of_others(self) -> None:
        """Keep the limits of the calling thread, the only one of a forked child."""
        # The lock was taken before the fork by a thread whose ident the child may give to another one.
        self.lock = threading.Lock()
        own_limits = [limit for limit in self._limits if limit[0] == threading.get_ident()]
        if len(own_limits) < len(self._limits):
            self._limits = own_limits
            self._on_lifted()


_INSTANCES: WeakSet[ThreadLimits] = WeakSet()


@final
class _Fork:
    """The locks that a thread holds while it forks."""

    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._instances: list[ThreadLimits] = []

    def begin(self) -> None:
        """Wait until no other thread forks or changes limits."""
        self._one_at_a_time.acquire()
        self._instances = list(_INSTANCES)
        for each in self._instances:
            each.lock.acquire()

    def end_in_parent(self) -> None:
        """Let other threads go on."""
        for each in self._instances:
            each.lock.release()
        self._one_at_a_time.release()

    def end_in_child(self) -> None:
        """Lift the limits of the threads that the child does not have."""
        self._one_at_a_time = threading.Lock()
        for each in self._instances:
            each.lift_limits_of_others()


if hasattr(os, "register_at_fork"):
    _FORK = _Fork()
    os.register_at_fork(
        before=_FORK.begin, after_in_parent=_FORK.end_in_parent, after_in_child=_FORK.end_in_child
    )
