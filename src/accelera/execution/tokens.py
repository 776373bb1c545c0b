"""Tokens that end a batch or a stream early when they are set."""

from __future__ import annotations

import threading
from typing import final

from accelera.execution.checking import described


@final
class EitherToken(threading.Event):
    """Counts as set when it is set itself, or the one of the caller, which stays the caller's.

    Raises
    ------
    TypeError
        When the caller's is none.
    """

    def __init__(self, callers: threading.Event | None) -> None:
        super().__init__()
        if callers is not None and not callable(getattr(callers, "is_set", None)):
            raise TypeError(
                f"[aexecute] cancel={described(callers)}: give a threading.Event, and set it later"
            )
        self._callers = callers

    def is_set(self) -> bool:
        """Return whether one of them is set."""
        return super().is_set() or (self._callers is not None and self._callers.is_set())
