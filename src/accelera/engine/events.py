"""What a run tells whoever listens: it began, it moved on, it ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from accelera.engine.report import RunReport
from accelera.plan import Plan


@dataclass(frozen=True)
class Progress:
    """Progress of a run."""

    done_steps: int
    """Steps computed, and those met so far that an earlier run had computed."""
    total_steps: int
    done_tiles: int
    """Blocks of the result that this run has completed."""
    moved_bytes: int
    """Bytes read and written so far."""
    planned_bytes: int
    """Bytes the whole plan moves."""


class Observer:
    """Listens to a run; every method does nothing unless overridden.

    Observers are called from the thread that computes, so they must be quick. What they raise
    ends the run.
    """

    def on_start(self, plan: Plan) -> None:
        """A run of ``plan`` begins (again, after a smaller plan replaced it)."""

    def on_progress(self, progress: Progress) -> None:
        """A step was computed."""

    def on_finish(self, report: RunReport) -> None:
        """The result is complete."""

    def on_error(self, error: BaseException) -> None:
        """The run ends with ``error``."""


class Observers(Observer):
    """Passes everything on to several observers, in order."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = tuple(observers)

    def on_start(self, plan: Plan) -> None:
        """Pass on."""
        for each in self._observers:
            each.on_start(plan)

    def on_progress(self, progress: Progress) -> None:
        """Pass on."""
        for each in self._observers:
            each.on_progress(progress)

    def on_finish(self, report: RunReport) -> None:
        """Pass on."""
        for each in self._observers:
            each.on_finish(report)

    def on_error(self, error: BaseException) -> None:
        """Pass on."""
        for each in self._observers:
            each.on_error(error)
