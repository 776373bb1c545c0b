"""Progress bars of long operations: on a terminal, in a notebook, or as lines of the log."""

from __future__ import annotations

import abc
import html
import logging
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, final

from accelera.settings import current_value
from accelera.units import format_seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Display
    from rich.progress import TaskID

T = TypeVar("T")

LOG_INTERVAL_S = 10.0
"""Seconds between two lines of the log."""
_FRAME_S = 0.2
"""Seconds between two updates of a notebook's output, each of which is a message to the browser."""
_LOGGER = logging.getLogger("accelera.progress")


class ProgressBar(abc.ABC):
    """Display of the progress of one operation."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abc.abstractmethod
    def update(self, done: int, total: int, detail: str = "") -> None:
        """Show that ``done`` of ``total`` steps are complete; a total of 0 means that it is unknown."""

    @abc.abstractmethod
    def close(self) -> None:
        """Remove the display."""


@final
class TerminalBar(ProgressBar):
    """Bar that a terminal redraws in place."""

    def __init__(self, name: str, console: Console) -> None:
        from rich import progress

        super().__init__(name)
        self._display: Display = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TextColumn("{task.fields[detail]}"),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._display.start()
        self._task: TaskID = self._display.add_task(name, total=None, detail="")

    def update(self, done: int, total: int, detail: str = "") -> None:
        """Move the bar."""
        self._display.update(self._task, completed=done, total=total or None, detail=detail)

    def close(self) -> None:
        """Remove the bar."""
        self._display.stop()


class _TimedBar(ProgressBar):
    """Progress that is written as text no more often than every ``interval_s`` seconds."""

    def __init__(self, name: str, interval_s: float) -> None:
        super().__init__(name)
        self._interval_s = interval_s
        self._start_s = self._last_s = time.monotonic()

    def update(self, done: int, total: int, detail: str = "") -> None:
        """Write the progress if the last text is old enough."""
        now_s = time.monotonic()
        if now_s - self._last_s < self._interval_s:
            return
        self._last_s = now_s
        elapsed_s = now_s - self._start_s
        parts = [f"{self.name}: {done / total:.0%}, {done} of {total} steps" if total else self.name]
        parts += [*filter(None, [detail]), f"{format_seconds(elapsed_s)} elapsed"]
        if 0 < done <= total:
            parts.append(f"about {format_seconds(elapsed_s * (total - done) / done)} left")
        self._write(", ".join(parts), done / total if total else None)

    @abc.abstractmethod
    def _write(self, line: str, fraction: float | None) -> None:
        """Write one state; ``fraction`` is None if the total is unknown."""


@final
class NotebookBar(_TimedBar):
    """Bar in the output of a notebook's cell; needs no widgets."""

    def __init__(self, name: str) -> None:
        super().__init__(name, _FRAME_S)
        self._display_id = f"accelera-{uuid.uuid4().hex}"
        self._is_visible = False

    def _write(self, line: str, fraction: float | None) -> None:
        value = "" if fraction is None else f' value="{min(fraction, 1.0):.4f}"'
        bar = f'<progress max="1"{value}></progress>'
        self._show({"text/plain": line, "text/html": f"<div>{bar} {html.escape(line)}</div>"})

    def _show(self, formats: dict[str, str]) -> None:
        from IPython import display

        publish: Any = display.publish_display_data
        identity = {"display_id": self._display_id}
        publish(formats, transient=identity, update=self._is_visible)
        self._is_visible = True

    def close(self) -> None:
        """Empty the output."""
        if self._is_visible:
            self._show({"text/plain": "", "text/html": ""})


@final
class LogBar(_TimedBar):
    """Lines of the logger ``accelera.progress``, for runs whose output is a file."""

    def __init__(self, name: str) -> None:
        super().__init__(name, LOG_INTERVAL_S)

    def _write(self, line: str, fraction: float | None) -> None:
        _LOGGER.info(line)

    def close(self) -> None:
        """Leave the lines."""


def progress_is_shown() -> bool:
    """Return whether long operations show their progress, as ``ACCELERA_PROGRESS`` states.

    ``auto`` shows it on a terminal and in a notebook.
    """
    setting = current_value("progress")
    if setting == "auto":
        return sys.stderr.isatty() or _in_notebook()
    return bool(setting != "never")


def load_display() -> None:
    """Import the library that draws, before the memory of a run is measured."""
    if current_value("progress") == "log":
        return
    if _in_notebook():
        from IPython import display as display
    else:
        from rich import progress as progress


def open_bar(name: str) -> ProgressBar:
    """Return a new bar of the kind that suits this process."""
    setting = current_value("progress")
    if setting == "log":
        return LogBar(name)
    if _in_notebook():
        return NotebookBar(name)
    from rich.console import Console

    return TerminalBar(name, Console(stderr=True, force_terminal=setting == "always" or None))


def with_progress(items: Iterable[T], total: int, name: str, *, enabled: bool) -> Iterator[T]:
    """Yield ``items`` and show how many have been yielded, if ``enabled`` and the setting allows it."""
    if not (enabled and progress_is_shown()):
        yield from items
        return
    bar = open_bar(name)
    try:
        for count, item in enumerate(items):
            bar.update(count, total)
            yield item
    finally:
        bar.close()


def _in_notebook() -> bool:
    """Return whether an IPython kernel runs this process, and its display can be used."""
    ipython: Any = sys.modules.get("IPython")
    if ipython is None or "ipykernel" not in sys.modules:
        return False
    return getattr(ipython.get_ipython(), "kernel", None) is not None
