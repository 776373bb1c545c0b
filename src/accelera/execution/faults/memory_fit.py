"""How many tasks will fit a device, foreseen from what earlier micro-batches took."""

from __future__ import annotations

import threading
from typing import Final, final

MARGIN: Final = 0.1
"""This part of the free memory is left alone: allocators round up, and memory lies in pieces."""
ENOUGH: Final = 8
"""So many sizes of micro-batches are kept, the largest of them."""


@final
class MemoryFit:
    """The straight line m0 + m1 · n over the peaks that micro-batches of n tasks had.

    May be shared by threads. It passes through or above every peak; while all were of one size, m0 is 0.
    """

    def __init__(self) -> None:
        self._peaks: dict[int, int] = {}
        self._lock = threading.Lock()

    def wants(self, count: int) -> bool:
        """Return whether a measurement of ``count`` tasks would tell anything new."""
        with self._lock:
            return count not in self._peaks and (
                len(self._peaks) < ENOUGH or count > min(self._peaks, default=0)
            )

    def measured(self, count: int, peak_bytes: int) -> None:
        """``count`` tasks at once took so many bytes on top of what was there before."""
        with self._lock:
            self._peaks[count] = max(peak_bytes, self._peaks.get(count, 0))
            if len(self._peaks) > ENOUGH:
                del self._peaks[min(self._peaks)]

    def line(self) -> tuple[float, float] | None:
        """Return m0 in bytes and m1 in bytes per task; None while nothing is known."""
        with self._lock:
            points = list(self._peaks.items())
        if not points or not any(peak for _, peak in points):
            return None
        slope = _slope(points) if len(points) > 1 else 0.0
        if slope <= 0:
            return 0.0, max(peak / count for count, peak in points)
        return max(0.0, *(peak - slope * count for count, peak in points)), slope

    def fitting(self, free_bytes: int) -> int | None:
        """Return the most tasks that should fit ``free_bytes``, at least 1; None while nothing is known."""
        line = self.line()
        if line is None:
            return None
        return max(1, int(((1 - MARGIN) * free_bytes - line[0]) / line[1]))


def _slope(points: list[tuple[int, int]]) -> float:
    """Return the slope of the line with the least squared distance from the points."""
    middle = sum(count for count, _ in points) / len(points)
    height = sum(peak for _, peak in points) / len(points)
    rise = sum((count - middle) * (peak - height) for count, peak in points)
    return rise / sum((count - middle) ** 2 for count, _ in points)
