"""A value that is read anew by a thread of its own when it has become old, so that nobody waits for it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar, final

Value = TypeVar("Value")

_LOGGER = logging.getLogger("accelera.execution")

IDLE_S = 10.0
"""The thread ends when nobody has asked for so long."""


@final
class Refreshed(Generic[Value]):
    """Keeps what ``read`` returned.

    Parameters
    ----------
    read
        Returns the value; called by one thread at a time.
    age_s
        Seconds after which the value is read anew, while the old one is still given.
    longest_s
        Seconds after which an old value is no longer given: the caller reads it then.
    """

    def __init__(self, read: Callable[[], Value], age_s: float, longest_s: float) -> None:
        self._read = read
        self._age_s = age_s
        self._longest_s = longest_s
        self._start_anew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._start_anew)

    def __call__(self) -> Value:
        """Return the value as it was lately."""
        kept = self._kept
        if kept is not None:
            old_s = time.monotonic() - kept[0]
            if old_s < self._age_s:
                return kept[1]
            if old_s < self._longest_s:
                self._ask()
                return kept[1]
        return self._renew()

    def _start_anew(self) -> None:
        self._kept: tuple[float, Value] | None = None
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._asked = threading.Event()
        self._thread: threading.Thread | None = None

    def _renew(self) -> Value:
        with self._reading:
            kept = self._kept
            if kept is None or time.monotonic() - kept[0] >= self._age_s:
                kept = self._kept = (time.monotonic(), self._read())
            return kept[1]

    def _ask(self) -> None:
        if self._asked.is_set():
            return
        self._asked.set()
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name="accelera-load", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    self._asked.clear()
                else:
                    self._thread = thread

    def _serve(self) -> None:
        while self._wanted():
            try:
                self._renew()
            except Exception as error:
                _LOGGER.debug("a reading failed, the one before it is kept: %r", error)
            self._asked.clear()

    def _wanted(self) -> bool:
        if self._asked.wait(IDLE_S):
            return True
        with self._lock:
            if self._asked.is_set():
                return True
            self._thread = None
            return False
