"""How full a manager's own GPU is, as its executor tells."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import final

from accelera.execution.executors.contract import GpuExecutor

_LOGGER = logging.getLogger("accelera.execution")

AGE_S = 0.25
"""A reading serves so long: asking a driver takes longer than deciding."""


@final
class GpuMemory:
    """Asks an executor for its free memory, and for all of it if it can tell, now and then.

    Parameters
    ----------
    executor
        The GPU.
    clock
        Returns seconds.
    """

    def __init__(self, executor: GpuExecutor, clock: Callable[[], float] = time.monotonic) -> None:
        self._executor = executor
        self._clock = clock
        self._most_bytes = 0
        self._read: tuple[float, float, bool] | None = None

    def pressure(self, elsewhere: float) -> float:
        """Return the share of the memory that is taken, from 0 to 1.

        Parameters
        ----------
        elsewhere
            What the system says of the first GPU. It counts where the executor cannot tell how much there is
            in all, and then at least what is missing of the most that was ever free.
        """
        now_s = self._clock()
        read = self._read
        if read is None or now_s - read[0] >= AGE_S:
            read = self._read = (now_s, *self._asked())
        return read[1] if read[2] else max(read[1], elsewhere)

    def _asked(self) -> tuple[float, bool]:
        """Return the share that is taken, and whether it is one of all there is."""
        total = getattr(self._executor, "memory_total", None)
        try:
            free_bytes = int(self._executor.memory_available())
            total_bytes = None if total is None else int(total())
        except Exception:
            _LOGGER.exception("%r does not say how full its memory is: taken for unknown", self._executor)
            return 0.0, False
        self._most_bytes = max(self._most_bytes, free_bytes)
        most_bytes = self._most_bytes if total_bytes is None else total_bytes
        return min(1.0, max(0.0, 1 - free_bytes / most_bytes)) if most_bytes > 0 else 0.0, total is not None
