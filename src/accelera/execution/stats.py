"""What a manager has done so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from accelera.execution.shares import DeviceShare


@final
@dataclass(frozen=True, slots=True)
class ManagerStats:
    """Counts over all batches and streams that are over."""

    executions: int
    """Batches and streams, those that ended with an exception among them."""
    failures: int
    """Those that ended with an exception."""
    fallbacks: int
    """Those in which the CPU did what a GPU was to do and failed at."""
    recent_fallback_rate: float
    """The share of the last 20 that fell back, from 0 to 1."""
    per_device: Mapping[str, DeviceShare]
    """What each device did: tasks, pieces, busy seconds."""

    @property
    def fallback_rate(self) -> float:
        """The share of all that fell back, from 0 to 1."""
        return self.fallbacks / self.executions if self.executions else 0.0
