"""Watermark: the most RAM that the process took while an operation ran."""

from __future__ import annotations

from typing import final

from accelera.engine import RunObserver, RunReport
from accelera.memory import process_memory, reset_peak
from accelera.plan import Plan


@final
class Watermark(RunObserver):
    """Measures from the first step on; the plan, made before, is part of the idle process."""

    def __init__(self) -> None:
        self.peak_bytes: int | None = None
        """Peak above the idle process, private and file-mapped pages; None where it cannot be told."""
        self._idle_bytes: int | None = None
        self._resets = False

    @property
    def started(self) -> bool:
        """Whether a run has begun."""
        return self._idle_bytes is not None

    def on_start(self, plan: Plan) -> None:
        """Take the idle process as zero; a smaller plan later does not reset it."""
        if not self.started:
            self._resets = reset_peak()
            self._idle_bytes = process_memory().rss_bytes

    def on_finish(self, report: RunReport) -> None:
        """Read the peak."""
        if self._resets and self._idle_bytes is not None:
            self.peak_bytes = max(0, process_memory().peak_bytes - self._idle_bytes)
