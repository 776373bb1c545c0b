"""Circuit breaker: a device that keeps failing is left alone for a while, then probed with a small piece."""

from __future__ import annotations

import enum
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import final


class BreakerState(enum.Enum):
    """State of a circuit breaker: which work it lets through."""

    CLOSED = "closed"
    """All of it."""
    OPEN = "open"
    """None, until the cool-down is over."""
    HALF_OPEN = "half-open"
    """One small piece, which decides."""


class _BreakerOutcome(enum.Enum):
    GOOD = enum.auto()
    BAD = enum.auto()
    FULL = enum.auto()


CONSECUTIVE = 3
"""So many failures in a row open it …"""
WINDOW = 10
"""… and so does half of the last so many."""
FIRST_COOLDOWN_S, LONGEST_COOLDOWN_S = 5.0, 300.0
JITTER = 0.1
"""A cool-down is longer by up to this part of it, so that not all who share a device come back at once."""


@final
class Breaker:
    """Counts what a device does well and badly. May be shared by batches that run at the same time.

    What changes its state returns the new one, else None.

    Parameters
    ----------
    clock
        Returns seconds.
    dice
        Where the jitter of cool-downs comes from.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, dice: random.Random | None = None
    ) -> None:
        self._clock = clock
        self._dice = random.Random() if dice is None else dice
        self._state = BreakerState.CLOSED
        self.reason = ""
        """The failure that opened it last."""
        self._recent: deque[_BreakerOutcome] = deque(maxlen=WINDOW)
        self._cooldown_s = FIRST_COOLDOWN_S
        self._opens_until = 0.0
        self._is_full = False
        self._lock = threading.Lock()

    @property
    def state(self) -> BreakerState:
        """Present state."""
        return self._state

    @property
    def cooldown_left_s(self) -> float:
        """Seconds until a probe is due; 0 where it is, or work is let through."""
        return max(0.0, self._opens_until - self._clock()) if self._state is BreakerState.OPEN else 0.0

    def allows(self) -> bool:
        """Return whether work may be tried; after the cool-down one caller may, as a probe."""
        if self._state is BreakerState.CLOSED:
            return True
        with self._lock:
            due = self._state is BreakerState.OPEN and self._clock() >= self._opens_until
            if due:
                self._state = BreakerState.HALF_OPEN
            return due

    def succeeded(self) -> BreakerState | None:
        """Note that work went well."""
        with self._lock:
            self._recent.append(_BreakerOutcome.GOOD)
            if self._state is not BreakerState.HALF_OPEN:
                return None
            self._cooldown_s = FIRST_COOLDOWN_S
            self._recent.clear()
            return self._set_state(BreakerState.CLOSED)

    def failed(self, *, sticky: bool = False, reason: str = "") -> BreakerState | None:
        """Note that work failed for ``reason``; a ``sticky`` failure opens the breaker at once."""
        with self._lock:
            self._recent.append(_BreakerOutcome.BAD)
            often = 2 * self._recent.count(_BreakerOutcome.BAD) >= WINDOW
            if sticky or often or self._state is BreakerState.HALF_OPEN or self._failed_consecutively():
                self._is_full = False
                return self._open(reason)
            return None

    def ran_full(self, reason: str = "") -> BreakerState | None:
        """Note that one task alone took more memory than there is.

        That speaks against the device only where it happens again and nothing has gone well lately; and only
        for the batch that it happens to: see ``batch_begins``.
        """
        with self._lock:
            self._recent.append(_BreakerOutcome.FULL)
            if len(self._recent) < CONSECUTIVE or _BreakerOutcome.GOOD in self._recent:
                return None
            self._is_full = True
            return self._open(reason)

    def batch_begins(self) -> None:
        """Note a new batch, perhaps of smaller tasks: a device that was only out of memory is probed."""
        with self._lock:
            if self._is_full and self._state is BreakerState.OPEN:
                self._opens_until = self._clock()

    def probe_inconclusive(self) -> BreakerState | None:
        """Note that a probe was inconclusive; another is due at once."""
        with self._lock:
            return self._set_state(BreakerState.OPEN) if self._state is BreakerState.HALF_OPEN else None

    def _failed_consecutively(self) -> bool:
        recent = list(self._recent)[-CONSECUTIVE:]
        return len(recent) == CONSECUTIVE and _BreakerOutcome.GOOD not in recent

    def _open(self, reason: str) -> BreakerState | None:
        if self._state is BreakerState.OPEN and self._clock() < self._opens_until:
            return None
        self.reason = reason
        self._opens_until = self._clock() + self._cooldown_s * (1 + JITTER * self._dice.random())
        self._cooldown_s = min(2 * self._cooldown_s, LONGEST_COOLDOWN_S)
        self._recent.clear()
        return self._set_state(BreakerState.OPEN)

    def _set_state(self, state: BreakerState) -> BreakerState | None:
        changed = state is not self._state
        self._state = state
        return state if changed else None
