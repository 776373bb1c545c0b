"""What a finished product says: where it is, and what was predicted and measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from accelera.units import format_bytes

if TYPE_CHECKING:
    from accelera.engine import RunReport


class Done(NamedTuple):
    """A result in its file."""

    out: str
    result: Any
    """Its store."""
    report: RunReport
    process_peak_bytes: int | None
    """Most RAM above the idle process; None where it cannot be told."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values."""
        result = {
            "path": self.out,
            "shape": list(self.result.shape),
            "dtype": str(self.result.dtype),
            "bytes": self.result.nbytes,
        }
        return {
            "result": result,
            "process_peak_bytes": self.process_peak_bytes,
            **self.report.to_dict(),
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines for people."""
        kind = f"{self.result.dtype}{list(self.result.shape)}"
        yield f"{self.out}: {kind}, {format_bytes(self.result.nbytes)}, computed on {self.report.device}"
        yield f"{'':<16}{'predicted':>12}{'measured':>12}"
        for name, predicted, measured in self._rows():
            yield f"{name:<16}{predicted:>12}{measured:>12}"
        if self.report.steps_skipped:
            total = self.report.steps_skipped + self.report.steps_run
            yield f"{self.report.steps_skipped} of {total} steps were done by the interrupted run"
        yield from self.report.fallbacks

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        report, plan = self.report, self.report.plan
        for tier, peak in plan.peak_bytes.items():
            measured = self.process_peak_bytes if tier == "ram" else report.peak_pool_bytes
            yield (
                f"peak of {tier}",
                format_bytes(peak),
                "unknown" if measured is None else format_bytes(measured),
            )
        yield from report.rows()[1:]
