"""Failures on demand: which micro-batches of a simulated executor go wrong, and how."""

from __future__ import annotations

import enum
import random
import threading
from collections.abc import Iterable, Mapping
from typing import final


class Fault(enum.Enum):
    """How a device fails."""

    STICKY = "breaks"
    """From then on it is of no use."""
    MEMORY = "runs out of memory"
    TRANSIENT = "fails"
    """It may go well the next time."""
    HANG = "hangs"
    """It never comes back."""


Nth = int | Iterable[int]
"""One ordinal or several; the first is 1."""


@final
class InjectedFaults:
    """Counts micro-batches and says which are to fail. May be shared by threads.

    Parameters
    ----------
    at
        The micro-batches that meet each kind of failure; where two do, the first kind counts.
    shares
        The share of all other micro-batches that meets each kind.
    seed
        Seed of the draws: the same one makes the same micro-batches fail.

    Raises
    ------
    ValueError
        When a share is outside 0 … 1, or they are more than 1 together.
    """

    def __init__(self, at: Mapping[Fault, Nth], shares: Mapping[Fault, float], seed: int) -> None:
        if not all(0 <= share <= 1 for share in shares.values()) or sum(shares.values()) > 1:
            said = ", ".join(f"{fault.value} {share}" for fault, share in shares.items())
            raise ValueError(
                f"[faults] shares of failures {said}: each lies between 0 and 1, and so does their sum"
            )
        self._at = {fault: frozenset([nth] if isinstance(nth, int) else nth) for fault, nth in at.items()}
        self._shares = shares
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.count = 0
        """Micro-batches so far."""

    def next(self) -> tuple[int, Fault | None]:
        """Return the ordinal of the next micro-batch, and how it is to fail; None: not at all."""
        with self._lock:
            self.count += 1
            drawn = self._random.random()
            for fault, ordinals in self._at.items():
                if self.count in ordinals:
                    return self.count, fault
            for fault, share in self._shares.items():
                if drawn < share:
                    return self.count, fault
                drawn -= share
            return self.count, None
