"""How far a batch has come, told to whoever asked for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import final

_LOGGER = logging.getLogger("accelera.execution")


@final
class Progress:
    """Tells a callback how many tasks are done: one call at a time, never fewer than the time before.

    What the callback raises is logged and forgotten: it is not the work's.

    Parameters
    ----------
    callback
        Called with the number of tasks done and of all.
    total
        The number of all.
    """

    def __init__(self, callback: Callable[[int, int], None], total: int) -> None:
        self._callback: Callable[[int, int], None] | None = callback
        self._total = total
        self._told = 0
        self._lock = threading.Lock()

    def tell(self, done: int) -> None:
        """Say that ``done`` tasks are done, unless more were told already."""
        with self._lock:
            if self._callback is None or done <= self._told:
                return
            self._told = done
            try:
                self._callback(done, self._total)
            except Exception:
                _LOGGER.exception("progress=%r raised; the work goes on", self._callback)

    def close(self, done: int) -> None:
        """Say that ``done`` tasks are done, and nothing more."""
        self.tell(done)
        with self._lock:
            self._callback = None
