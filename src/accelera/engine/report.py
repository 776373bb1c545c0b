"""Report of a run (measured figures beside those its plan predicted), and the observers told on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, final

from accelera._progress import ProgressBar, load_display, open_bar, progress_is_shown
from accelera._result_html import MemoryBar, result_html
from accelera.plan import Plan
from accelera.units import format_bytes, format_seconds


@final
@dataclass(frozen=True)
class DeviceRun:
    """What one device did of a product that several made together."""

    blocks: int = 0
    """Blocks of the result that it made."""
    failed: int = 0
    """Attempts at a block that failed; another one, or another device, made it."""
    busy_s: float = 0.0
    moved_bytes: int = 0
    """Bytes that it read and wrote."""
    peak_pool_bytes: int = 0
    """Most bytes that its blocks took at any time, in its own memory."""


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
    fetched_bytes: int
    """Bytes brought into the pool, in the element type of its blocks."""
    saved_bytes: int
    """Bytes of the pool's blocks that went to the result's store."""
    stall_s: float
    """Seconds in which the thread that computes waited for data."""
    compute_s: float
    """Seconds in which it computed."""
    steps_run: int
    steps_skipped: int = 0
    """Steps found finished in the journal."""
    fallbacks: tuple[str, ...] = field(default=())
    """What had to be done otherwise than planned, in words."""
    per_device: Mapping[str, DeviceRun] = field(default_factory=dict)
    """What each device did, where several worked together; peaks above are the CPU's then."""

    def __repr__(self) -> str:
        predicted = format_seconds(self.plan.forecast.seconds)
        return (
            f"<RunReport {self.plan.operation} on {self.device}: {format_seconds(self.seconds)} "
            f"({predicted} predicted), {format_bytes(self.moved_bytes)} moved, "
            f"pool peak {format_bytes(self.peak_pool_bytes)}>"
        )

    def _repr_html_(self) -> str:
        limit_bytes = self.plan.capacity_bytes
        bars = [
            MemoryBar("predicted pool peak", {"blocks": self.plan.forecast.peak_pool_bytes}, limit_bytes),
            MemoryBar("measured pool peak", {"blocks": self.peak_pool_bytes}, limit_bytes),
        ]
        return result_html(repr(self), self.table(), bars)

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written."""
        return sum(self.bytes_read.values()) + self.bytes_written

    def rows(self) -> list[tuple[str, str, str]]:
        """Return (figure, predicted, measured), as people read them."""
        said = self.plan.forecast
        return [
            ("pool peak", format_bytes(said.peak_pool_bytes), format_bytes(self.peak_pool_bytes)),
            ("hits", str(said.hits), str(self.hits)),
            ("misses", str(said.misses), str(self.misses)),
            ("evictions", str(said.evictions), str(self.evictions)),
            ("bytes read", _sum(said.bytes_read), _sum(self.bytes_read)),
            ("bytes written", format_bytes(said.bytes_written), format_bytes(self.bytes_written)),
            ("waiting", format_seconds(said.stall_s), format_seconds(self.stall_s)),
            ("time", format_seconds(said.seconds), format_seconds(self.seconds)),
            *self._blocks(),
        ]

    def _blocks(self) -> list[tuple[str, str, str]]:
        placed = self.plan.placement
        said = {} if placed is None else {each.device: each.blocks for each in placed.devices}
        names = dict.fromkeys((*said, *self.per_device))
        return [
            (f"blocks on {name}", str(said.get(name, 0)), str(self.per_device.get(name, DeviceRun()).blocks))
            for name in names
        ]

    def table(self) -> str:
        """Return predicted and measured figures side by side."""
        head = f"{'policy ' + self.plan.eviction.name:24}{'predicted':>14}{'measured':>14}"
        return "\n".join([head, *(f"{name:24}{said:>14}{did:>14}" for name, said, did in self.rows())])

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
            "fetched_bytes": self.fetched_bytes,
            "saved_bytes": self.saved_bytes,
            "stall_seconds": self.stall_s,
            "compute_seconds": self.compute_s,
            "steps_run": self.steps_run,
            "steps_skipped": self.steps_skipped,
            "fallbacks": list(self.fallbacks),
            "per_device": {name: asdict(did) for name, did in self.per_device.items()},
        }


def nothing_run(plan: Plan, device: str) -> RunReport:
    """Return the report of a run that found its result complete."""
    return RunReport(
        plan=plan,
        device=device,
        seconds=0.0,
        bytes_read={operand.name: 0 for operand in plan.operands[:-1]},
        bytes_written=0,
        peak_pool_bytes=0,
        hits=0,
        misses=0,
        evictions=0,
        fetched_bytes=0,
        saved_bytes=0,
        stall_s=0.0,
        compute_s=0.0,
        steps_run=0,
        steps_skipped=plan.forecast.steps,
    )


_ADDED_UP = (
    *("bytes_written", "hits", "misses", "evictions", "fetched_bytes", "saved_bytes"),
    *("stall_s", "compute_s"),
)


def totals(reports: Iterable[RunReport]) -> dict[str, Any]:
    """Return bytes, counts and seconds of several runs, each added up, by the name of the figure.

    What depends on how the runs lie in time (seconds, steps, peaks) is left to the caller.
    """
    return {name: sum(getattr(each, name) for each in reports) for name in _ADDED_UP}


def _sum(sizes: Mapping[str, int]) -> str:
    return format_bytes(sum(sizes.values()))


@dataclass(frozen=True)
class Progress:
    """Progress of a run."""

    done_steps: int
    """Steps computed, and those skipped so far because an earlier run had computed them."""
    total_steps: int
    done_tiles: int
    """Blocks of the result that this run has completed."""
    moved_bytes: int
    """Bytes read and written so far."""
    planned_bytes: int
    """Bytes the whole plan moves."""


class RunObserver:
    """Is told of the events of a run; every method does nothing unless overridden.

    Observers are called from the thread that computes, so they must be quick. An exception of theirs
    ends the run.
    """

    def on_start(self, plan: Plan) -> None:
        """Called when a run of ``plan`` begins, also when a smaller plan replaces an earlier one."""

    def on_progress(self, progress: Progress) -> None:
        """Called after each step."""

    def on_finish(self, report: RunReport) -> None:
        """Called when the result is complete."""

    def on_error(self, error: BaseException) -> None:
        """Called when the run ends with ``error``."""


class Observers(RunObserver):
    """Passes everything on to several observers, in order."""

    def __init__(self, observers: Iterable[RunObserver] = ()) -> None:
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


def progress_observer(enabled: bool = True) -> RunObserver | None:
    """Return the observer that shows the progress, or None if ``enabled`` or the setting forbids it.

    Imports the library that draws, so that the memory of a run can be measured afterwards.
    """
    if not (enabled and progress_is_shown()):
        return None
    load_display()
    return ProgressObserver()


@final
class ProgressObserver(RunObserver):
    """Shows tiles done, bytes moved, rate and time left."""

    def __init__(
        self, bar_factory: Callable[[str], ProgressBar] = open_bar, patience_s: float = PATIENCE_S
    ) -> None:
        self._bar_factory = bar_factory
        self._patience_s = patience_s
        self._start_s: float | None = None
        self._name = ""
        self._bar: ProgressBar | None = None

    def on_start(self, plan: Plan) -> None:
        """Note the time; the bar appears only after ``patience_s``."""
        if self._start_s is None:
            self._start_s = time.monotonic()
        self._name = plan.operation

    def on_progress(self, progress: Progress) -> None:
        """Move the bar."""
        if self._bar is None:
            if self._start_s is None or time.monotonic() - self._start_s < self._patience_s:
                return
            self._bar = self._bar_factory(self._name)
        moved, planned = format_bytes(progress.moved_bytes), format_bytes(progress.planned_bytes)
        detail = f"{progress.done_tiles} tiles, {moved} of {planned}"
        self._bar.update(progress.done_steps, progress.total_steps, detail)

    def on_finish(self, report: RunReport) -> None:
        """Remove the bar."""
        self._stop()

    def on_error(self, error: BaseException) -> None:
        """Remove the bar, so that the error is readable."""
        self._stop()

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = self._start_s = None
