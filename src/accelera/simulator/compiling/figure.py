"""Figure: a number with its unit and its source: measured, analytic or learned."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

from accelera.errors import ArgumentError
from accelera.units import format_bytes

Source = Literal["measured", "analytic", "learned"]
SOURCES: tuple[Source, ...] = ("measured", "analytic", "learned")


@dataclass(frozen=True)
class Figure:
    """A value with its unit and its source.

    >>> print(Figure(3 * 2**20, "B"))
    3.0 MiB (analytic)
    >>> print(Figure(0.0025, "s", "measured"))
    2.500 ms (measured)
    """

    value: float | None
    """None where nothing can be said, for example a batch that no memory limits."""
    unit: str
    """``"B"``, ``"s"``, ``"flop"``, or ``""`` for counts and shares."""
    source: Source = "analytic"
    """``measured`` on this or another machine, ``analytic`` from a model of it, or ``learned`` from data."""

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ArgumentError(f"[Figure] source {self.source!r} is none of {', '.join(SOURCES)}")

    @property
    def text(self) -> str:
        """The value with its unit, without the source."""
        if self.value is None:
            return "–"
        if self.unit == "B":
            return format_bytes(self.value)
        if self.unit == "s":
            return _seconds(self.value)
        number = f"{self.value:,.0f}" if float(self.value).is_integer() else f"{self.value:.4g}"
        return f"{number} {self.unit}".rstrip()

    def __str__(self) -> str:
        return f"{self.text} ({self.source})"

    def to_dict(self) -> dict[str, Any]:
        """Return value, unit and source."""
        return {"value": self.value, "unit": self.unit, "source": self.source}


def as_json(value: Any) -> Any:
    """Return figures, dataclasses and containers of them as JSON-able values."""
    if isinstance(value, Figure):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: as_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, dict):
        return {str(key): as_json(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [as_json(each) for each in value]
    return value


def _seconds(value: float) -> str:
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if abs(value) * factor >= 1:
            return f"{value * factor:.3f} {unit}"
    return f"{value * 1e6:.3f} µs"
