"""How fast the two sides of a node are at one function, from one lease to the next."""

from __future__ import annotations

import threading
from typing import Final, final

from accelera.execution.pace import Pace
from accelera.execution.shares import DeviceShare

PATIENCE: Final = 100
"""A side that gets nothing is tried again when the other has worked as long as so many of its tasks take."""


@final
class LearnedPace:
    """What the lease before has shown, for the next one. May be used by several threads.

    The first lease shows nothing: what is paid once, such as loading a library, is in it.

    Parameters
    ----------
    workers
        Tasks that the node's processors run at once.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._begun = False
        self._pace: Pace | None = None
        self._alone_s = 0.0
        self._lock = threading.Lock()

    @property
    def pace(self) -> Pace | None:
        """How fast both sides are; None: to be found out."""
        return self._pace

    def learn(self, cpu: DeviceShare, gpu: DeviceShare) -> None:
        """Take note of what each side did of a lease."""
        with self._lock:
            if cpu.tasks and gpu.tasks:
                cpu_task_s, gpu_task_s = cpu.busy_s / cpu.tasks, gpu.busy_s / gpu.tasks
                known = self._begun and cpu_task_s > 0 and gpu_task_s > 0
                self._pace = Pace(cpu_task_s, self._workers, gpu_task_s) if known else None
                self._begun, self._alone_s = True, 0.0
            elif self._pace is not None:
                self._alone_s += max(cpu.busy_s / self._workers, gpu.busy_s)
                if self._alone_s > PATIENCE * max(self._pace.cpu_task_s, self._pace.gpu_task_s):
                    self._pace = None
