"""Observers of a run: told when it begins, moves on and ends; one of them draws a progress bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from accelera.engine.report import RunReport
from accelera.plan import Plan
from accelera.settings import current
from accelera.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Display
    from rich.progress import TaskID


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


PATIENCE_S = 0.5
"""A run shorter than this draws nothing."""


def progress_observer(enabled: bool = True) -> Observer | None:
    """Return the observer that draws a bar, or None where none is wanted.

    ``ACCELERA_PROGRESS`` decides when ``enabled``: ``auto`` draws on a terminal or in a notebook.
    """
    wish = current().progress
    if not enabled or wish == "never" or (wish == "auto" and not _someone_watches()):
        return None
    from rich import progress as progress  # loaded now, and not while a run's memory is counted
    from rich.console import Console

    return ProgressObserver(Console(stderr=True, force_terminal=True if wish == "always" else None))


def _someone_watches() -> bool:
    return sys.stderr.isatty() or "ipykernel" in sys.modules


@final
class ProgressObserver(Observer):
    """Draws tiles done, bytes moved, rate and time left."""

    def __init__(self, console: Console, patience_s: float = PATIENCE_S) -> None:
        self._console = console
        self._patience_s = patience_s
        self._began_s = 0.0
        self._name = ""
        self._display: Display | None = None
        self._task: TaskID | None = None

    def on_start(self, plan: Plan) -> None:
        """Take note of the time; the bar appears only when the run turns out long."""
        self._began_s = self._began_s or time.monotonic()
        self._name = plan.operation

    def on_progress(self, progress: Progress) -> None:
        """Move the bar."""
        if self._display is None or self._task is None:
            if time.monotonic() - self._began_s < self._patience_s:
                return
            self._display, self._task = self._draw()
        self._display.update(
            self._task,
            completed=progress.done_steps,
            total=progress.total_steps,
            detail=f"{progress.done_tiles} tiles, {format_bytes(progress.moved_bytes)} of "
            f"{format_bytes(progress.planned_bytes)}",
        )

    def on_finish(self, report: RunReport) -> None:
        """Take the bar away."""
        self._stop()

    def on_error(self, error: BaseException) -> None:
        """Take the bar away, so that the error is readable."""
        self._stop()

    def _draw(self) -> tuple[Display, TaskID]:
        from rich import progress as bars

        display = bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.TaskProgressColumn(),
            bars.TextColumn("{task.fields[detail]}"),
            bars.TimeElapsedColumn(),
            bars.TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        display.start()
        return display, display.add_task(self._name, total=None, detail="")

    def _stop(self) -> None:
        if self._display is not None:
            self._display.stop()
        self._display = self._task = None
        self._began_s = 0.0
