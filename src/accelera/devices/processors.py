"""Number of processors this process may use: its affinity and the control groups' quota."""

from __future__ import annotations

import math
import os

from accelera.memory import cgroup_processors


def usable_processors(proc: str = "/proc") -> int:
    """Return the number of threads worth running, at least one."""
    return max(1, min([_affinity(), *map(math.ceil, cgroup_processors(proc))]))


def _affinity() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
