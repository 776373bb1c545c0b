"""Sizes, times and counts as people read them, and round ticks; decimal units: 1 GB is 10**9 bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

_SIZES = (("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12), ("PB", 1e15))
_TIMES = (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0))


@dataclass(frozen=True)
class Scale:
    """A unit that the numbers of one axis are shown in."""

    unit: str
    """``"GB"``, ``"ms"`` …"""
    factor: float
    """Bytes or seconds per unit."""
    decimals: int
    """Digits after the point that are worth showing, given the largest number."""

    def of(self, value: float) -> float:
        """Return ``value`` in this unit, rounded to the decimals worth showing."""
        return round(float(value) / self.factor, self.decimals)

    def all_of(self, values: ArrayLike) -> list[float]:
        """Return ``values`` in this unit, rounded; shape (values,)."""
        scaled: list[float] = np.round(np.asarray(values, np.float64) / self.factor, self.decimals).tolist()
        return scaled

    @property
    def printf(self) -> str:
        """A printf-style format of one number with its unit, such as ``"%.1f GB"``."""
        return f"%.{min(self.decimals, 2)}f {self.unit}"


def size_scale(largest: float) -> Scale:
    """Return the decimal unit for sizes up to ``largest`` bytes."""
    return _scale(largest, _SIZES)


def time_scale(largest: float) -> Scale:
    """Return the unit for times up to ``largest`` seconds: nanoseconds to seconds."""
    return _scale(largest, _TIMES)


def _scale(largest: float, units: Sequence[tuple[str, float]]) -> Scale:
    largest = abs(float(largest))
    unit, factor = units[0]
    for unit_, factor_ in units:
        # 0.995 of the next unit would be printed as 1000 of this one.
        if largest >= 0.9995 * factor_:
            unit, factor = unit_, factor_
    top = largest / factor
    decimals = 0 if factor == 1.0 and unit == "B" else 3 if top < 10 else 2 if top < 100 else 1
    return Scale(unit, factor, decimals)


def format_size(count: float) -> str:
    """Return ``count`` bytes with three significant digits in a decimal unit.

    >>> format_size(39_612_000_000)
    '39.6 GB'
    >>> format_size(524e6)
    '524 MB'
    >>> format_size(0)
    '0 B'
    """
    if not count:
        return "0 B"
    scale = size_scale(count)
    scaled = count / scale.factor
    if scale.unit == "B":
        return f"{round(scaled)} B"
    decimals = 2 if abs(scaled) < 0.95 else 1 if abs(scaled) < 99.95 else 0
    return f"{scaled:.{decimals}f} {scale.unit}"


def format_budget(count: float) -> str:
    """Return ``count`` bytes as ``format_size`` does, without zeros after the point.

    >>> format_budget(24e9), format_budget(1.5e9)
    ('24 GB', '1.5 GB')
    """
    number, unit = format_size(count).split(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def format_count(count: float) -> str:
    """Return a whole number with commas: ``1,842``."""
    return f"{round(count):,}"


def format_ratio(ratio: float) -> str:
    """Return how many times: ``7.2×``, ``14×``, ``1.04×``."""
    if not math.isfinite(ratio):
        return "∞×"
    digits = 2 if ratio < 1.1 else 1 if ratio < 10 else 0
    return f"{ratio:.{digits}f}×"


def format_share(share: float) -> str:
    """Return a share of one as percent: ``78 %``."""
    percent = 100 * share
    return f"{percent:.1f} %" if 0 < percent < 10 or 99 < percent < 100 else f"{percent:.0f} %"


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
