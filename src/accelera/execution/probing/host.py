"""How busy the processors and the memory are."""

from __future__ import annotations

import os
import sys
import time
from typing import NamedTuple, final

from accelera.memory import host_memory


class Spent(NamedTuple):
    """Processor time since the system began, in seconds over all processors."""

    busy_s: float
    total_s: float
    own_s: float
    """Of this process."""


@final
class ProcessorMeter:
    """Shares of the processors' time between two readings. Not thread-safe.

    Parameters
    ----------
    proc
        Where the system tells of its processes, on Linux.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._before: Spent | None = None

    def read(self) -> tuple[float, float]:
        """Return which share of all processors was busy, and which with the work of other processes.

        The first reading has nothing before it and goes by the system's load average; so does every one where
        the system does not tell.
        """
        now, before = _spent(self._proc), self._before
        self._before = now
        if now is None or before is None or now.total_s <= before.total_s:
            share = _load_average()
            return share, share
        passed = now.total_s - before.total_s
        busy = min(1.0, max(0.0, (now.busy_s - before.busy_s) / passed))
        return busy, max(0.0, busy - (now.own_s - before.own_s) / passed)


def memory_pressure() -> float:
    """Return which share of the memory that this process may use is taken; control groups count."""
    memory = host_memory()
    return min(1.0, max(0.0, 1 - memory.available_bytes / max(memory.limit_bytes, 1)))


def _spent(proc: str) -> Spent | None:
    if not sys.platform.startswith("linux"):
        return _spent_psutil()
    try:
        with open(f"{proc}/stat", "rb", buffering=0) as file:
            ticks = [int(each) for each in file.read(512).split(b"\n", 1)[0].split()[1:9]]
        idle = ticks[3] + ticks[4]
    except (OSError, ValueError, IndexError):
        return None
    per_s = os.sysconf("SC_CLK_TCK")
    return Spent((sum(ticks) - idle) / per_s, sum(ticks) / per_s, time.process_time())


def _spent_psutil() -> Spent:
    import psutil

    times = psutil.cpu_times()
    return Spent(sum(times) - times.idle, sum(times), time.process_time())


def _load_average() -> float:
    try:
        return min(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    except (AttributeError, OSError):
        return 0.0
