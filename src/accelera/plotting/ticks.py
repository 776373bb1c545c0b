"""Round ticks: steps of 1, 2 or 5 times a power of ten."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Ticks:
    """The numbers written at an axis."""

    low: float
    high: float
    """A multiple of ``interval``, not below the largest value."""
    interval: float

    @property
    def values(self) -> list[float]:
        """The ticks, from ``low`` to ``high``."""
        count = round((self.high - self.low) / self.interval)
        return [self._clean(self.low + index * self.interval) for index in range(count + 1)]

    def _clean(self, value: float) -> float:
        return round(value, max(0, 2 - math.floor(math.log10(self.interval))))


def round_ticks(low: float, high: float, most: int = 6) -> Ticks:
    """Return ticks around ``low`` to ``high`` with at most ``most`` intervals.

    >>> round_ticks(0, 39.6).values
    [0.0, 10.0, 20.0, 30.0, 40.0]
    >>> round_ticks(0, 0.07).values
    [0.0, 0.02, 0.04, 0.06, 0.08]
    """
    low, high = float(low), float(high)
    if not high > low:
        high = low + (abs(low) or 1.0)
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (1, 2, 5, 10, 20):
        interval = step * power
        first, last = math.floor(low / interval + 1e-9), math.ceil(high / interval - 1e-9)
        if last - first <= most:
            break
    return Ticks(first * interval, last * interval, interval)


def whole_ticks(high: int, most: int = 6) -> int:
    """Return the interval of ticks at whole numbers from 0 to ``high``, at least 1."""
    return max(1, round(round_ticks(0, max(high, 1), most).interval))
