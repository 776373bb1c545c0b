"""Limits that threads set for the whole process; a forked child keeps those of the thread that it has."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import final
from weakref import WeakSet

from accelera._fork_locks import ForkSafeLock


@final
class ThreadLimits:
    """Counts of threads to which the threads of this process limit a library; the smallest one applies.

    Parameters
    ----------
    on_lifted
        Called in a forked child whose parent had limits of other threads, which the child does not have.
    """

    def __init__(self, on_lifted: Callable[[], None]) -> None:
        self.lock = ForkSafeLock()
        """Held while limits change and are applied."""
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
        own_limits = [limit for limit in self._limits if limit[0] == threading.get_ident()]
        if len(own_limits) < len(self._limits):
            self._limits = own_limits
            self._on_lifted()


_INSTANCES: WeakSet[ThreadLimits] = WeakSet()


def _lift_limits_of_others() -> None:
    for each in list(_INSTANCES):
        each.lift_limits_of_others()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lift_limits_of_others)
