"""What a run did, beside what its plan said it would do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from accelera.plan import Plan
from accelera.units import format_bytes


@dataclass(frozen=True)
class RunReport:
    """Measured figures of one operation; all sizes in bytes, times in seconds."""

    plan: Plan
    """The plan of the last run (a smaller one, if memory ran out on the way)."""
    device: str
    """Name of the device that computed."""
    seconds: float
    """Wall time, plan and publication included."""
    bytes_read: Mapping[str, int]
    """Bytes read from stores, by operand."""
    bytes_written: int
    """Bytes written to the result's store."""
    peak_pool_bytes: int
    """Most bytes the pool had allocated at any time, spare buffers included."""
    hits: int
    misses: int
    evictions: int
    steps_run: int
    steps_skipped: int = 0
    """Steps found finished in the journal."""
    fallbacks: tuple[str, ...] = field(default=())
    """What had to be done otherwise than planned, in words."""

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written."""
        return sum(self.bytes_read.values()) + self.bytes_written

    def table(self) -> str:
        """Return predicted and measured figures side by side."""
        plan = self.plan
        rows = [
            ("pool peak", format_bytes(plan.forecast.peak_pool_bytes), format_bytes(self.peak_pool_bytes)),
            ("bytes read", format_bytes(sum(plan.forecast.bytes_read.values())), _sum(self.bytes_read)),
            ("bytes written", format_bytes(plan.forecast.bytes_written), format_bytes(self.bytes_written)),
            ("seconds", f"{plan.forecast.seconds:.2f}", f"{self.seconds:.2f}"),
        ]
        head = f"{'':14}{'predicted':>14}{'measured':>14}"
        return "\n".join([head, *(f"{name:14}{said:>14}{did:>14}" for name, said, did in rows)])

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-able values."""
        return {
            "plan": self.plan.to_dict(),
            "device": self.device,
            "seconds": self.seconds,
            "bytes_read": dict(self.bytes_read),
            "bytes_written": self.bytes_written,
            "moved_bytes": self.moved_bytes,
            "peak_pool_bytes": self.peak_pool_bytes,
            "hits": self.hits,
            "misses": self.misses,
            "evictions": self.evictions,
            "steps_run": self.steps_run,
            "steps_skipped": self.steps_skipped,
            "fallbacks": list(self.fallbacks),
        }


def _sum(sizes: Mapping[str, int]) -> str:
    return format_bytes(sum(sizes.values()))
