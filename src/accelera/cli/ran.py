"""What a program did with large calls, and what it took: the report of ``accelera run``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from accelera.text_table import text_table
from accelera.units import format_bytes

if TYPE_CHECKING:
    from accelera.interceptor import OpStats, Stats

_COUNTS = ("direct", "chunked", "spilled", "refused", "passed")


class Ran(NamedTuple):
    """A program that has ended."""

    program: str
    budget: str | None
    exit_code: int
    seconds: float
    """From its first line to its last."""
    stats: Stats | None
    """None when it never loaded torch."""
    peak_bytes: int
    """The most private memory above the process with torch loaded, as sampled."""
    without_bytes: int
    """The same as predicted for a run without interception."""
    device_peaks: Mapping[str, int]
    """The most that torch allocated on each accelerator."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values."""
        calls = None if self.stats is None else self.stats.as_dict()
        return {
            "program": self.program,
            "budget": self.budget,
            "exit_code": self.exit_code,
            "seconds": self.seconds,
            "peak_bytes": self.peak_bytes,
            "predicted_peak_without_bytes": self.without_bytes,
            "device_peak_bytes": dict(self.device_peaks),
            "calls": calls,
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines for people."""
        within = f" within {self.budget} per call" if self.budget else ""
        yield f"accelera: {self.program} ran{within}, {self.seconds:.1f} s, exit code {self.exit_code}"
        if self.stats is None:
            yield "nothing was intercepted: it did not load torch"
            return
        yield from _calls(self.stats)
        yield (
            f"peak above the idle process: {format_bytes(self.peak_bytes)} measured, "
            f"{format_bytes(self.without_bytes)} predicted without"
        )
        for name, peak in self.device_peaks.items():
            yield f"peak of {name}: {format_bytes(peak)} measured"


def _calls(stats: Stats) -> Iterator[str]:
    if not stats.by_op:
        yield "no call was large enough to be looked at"
        return
    named = [*sorted(stats.by_op.items()), ("all", stats.total)]
    head = ("call", *_COUNTS, "operands and results", "in files", "in pieces")
    yield from text_table([head, *(_row(op, each) for op, each in named)]).splitlines()
    for op, each in sorted(stats.by_op.items()):
        yield from (f"{op}: {count} passed, {why}" for why, count in each.passed.items())
        yield from (f"{op}: {count} went on {what}" for what, count in each.fallbacks.items())


def _row(op: str, each: OpStats) -> tuple[str, ...]:
    counts = (each.direct, each.chunked, each.spilled, each.refused, each.passed.total())
    sizes = (format_bytes(each.looked_bytes), format_bytes(each.spilled_bytes))
    return (op, *(str(count) if count else "-" for count in counts), *sizes, f"{each.seconds:.2f} s")
