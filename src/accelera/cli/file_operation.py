"""Operations that write a file: settle an earlier run, compute, report predicted and measured figures."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from accelera.errors import AcceleraError, StoreChangedError, StoreError
from accelera.units import format_bytes

if TYPE_CHECKING:
    from accelera.engine import MatrixEngine, RunReport


_RESUME = ("resume", "r", "yes", "y")
_RESTART = ("restart", "again")


class UnfinishedRunError(AcceleraError):
    """An earlier run has left something, and no option says what to do with it."""


class Unfinished(NamedTuple):
    """An interrupted run."""

    out: str
    done_fraction: float | None
    """Share of the result that is stored; None when the journal cannot be read."""

    def __str__(self) -> str:
        done = "" if self.done_fraction is None else f", {self.done_fraction:.0%} of it stored"
        return f"a run has left {self.out} unfinished{done}"


def unfinished(out: str) -> Unfinished | None:
    """Return the interrupted run that was writing ``out`` and has stored something, None when there is none.

    One that was killed after it had published its result is finished.
    """
    from accelera.engine._internal import find_journal, journal_path
    from accelera.stores._internal import result_path

    path = result_path(out)
    try:
        left = find_journal(journal_path(path))
        if left is None or not left.boxes or left.is_published(path):
            return None
        total = math.prod(left.header["result"][0])
    except (StoreError, KeyError, IndexError, TypeError):
        return Unfinished(out, None)
    stored = sum(math.prod(stop - start for start, stop in box) for box in left.boxes)
    return Unfinished(out, stored / max(1, total))


def decide(out: str, *, resume: bool, restart: bool) -> bool:
    """Return whether to go on with an earlier run of ``out``; ask where a person can answer.

    Raises UnfinishedRunError when there is such a run and no option says what to do with it, Abort when
    the answer was to leave it alone.
    """
    if resume and restart:
        raise typer.BadParameter("--resume and --restart exclude each other; give one of them")
    left = unfinished(out)
    if resume and left is None and not _is_left(out):
        typer.echo(f"nothing to resume at {out}; starting", err=True)
    if resume or restart or left is None:
        return resume
    if someone_is_there():
        return _ask(left)
    raise UnfinishedRunError(f"[resume] {left}; give --resume to go on with it, or --restart to begin again")


def _is_left(out: str) -> bool:
    from accelera.engine._internal import journal_path
    from accelera.stores._internal import result_path

    return journal_path(result_path(out)).exists()


def someone_is_there() -> bool:
    """Return whether a question would be seen and could be answered."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _ask(left: Unfinished) -> bool:
    answer = typer.prompt(f"{left}. resume, restart or quit?", default="resume", err=True).strip().lower()
    if answer in _RESUME:
        return True
    if answer not in _RESTART:
        raise typer.Abort
    typer.confirm("Throw away what is stored?", abort=True, err=True)
    return False


class FileOperationReport(NamedTuple):
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


Compute = Callable[..., Any]
"""Given the engine and its keywords ``out``, ``budget``, ``resume`` and ``observers``; returns the store."""


class FileOperation(NamedTuple):
    """Options of a file operation, as the command line gave them."""

    out: str
    budget: str | None
    device: str | None
    resume: bool
    restart: bool
    as_json: bool
    quiet: bool
    policy: str | None = None
    chunks: tuple[int, ...] | None = None
    codec: str | None = None


def carry_out(operation: FileOperation, compute: Compute) -> None:
    """Run ``compute`` as ``operation`` says, with a bar on a terminal, and print what it did."""
    resume = decide(operation.out, resume=operation.resume, restart=operation.restart)
    done = _computed(operation, compute, resume)
    if operation.as_json:
        typer.echo(json.dumps(done.to_dict(), indent=2))
    elif not operation.quiet:
        typer.echo("\n".join(done.lines()))


def engine_on(device: str | None, *, bar: bool = False, policy: str | None = None) -> MatrixEngine:
    """Return an engine on the device of that name, or on the usual one."""
    from accelera.engine import MatrixEngine

    return MatrixEngine(device, enable_progress=bar, policy=policy)


def _computed(operation: FileOperation, compute: Compute, resume: bool) -> FileOperationReport:
    from accelera.cli.watermark import Watermark

    engine = engine_on(operation.device, bar=not operation.quiet, policy=operation.policy)
    watermark = Watermark()
    try:
        layout = {"chunks": operation.chunks, "codec": operation.codec}
        how = {"out": operation.out, "budget": operation.budget, "resume": resume, "observers": [watermark]}
        store = compute(engine, **how, **layout)
    except BaseException as error:
        _hint_at_resume(operation.out, error, watermark.started)
        raise
    return FileOperationReport(operation.out, store, engine.last_report, watermark.peak_bytes)


def _hint_at_resume(out: str, error: BaseException, started: bool) -> None:
    """Say how to go on after ``error``, where something is left to go on with."""
    left = unfinished(out)
    if left is None:
        return
    if isinstance(error, StoreChangedError):
        typer.echo("note: --restart begins again", err=True)
    elif started:
        typer.echo(f"note: {left}: --resume goes on from there, --restart begins again", err=True)
