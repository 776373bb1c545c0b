"""What an interrupted run has left beside its result, and what to do about it."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import NamedTuple

import typer

from accelera.errors import AcceleraError, StoreError

_RESUME = ("resume", "r", "yes", "y")
_RESTART = ("restart", "again")


class UnfinishedRunError(AcceleraError):
    """An earlier run has left something, and nobody said what to do with it."""


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
    from accelera.engine import find_journal, journal_path
    from accelera.stores import split_key

    path = Path(out).expanduser()
    try:
        left = find_journal(journal_path(path))
        if left is None or not left.boxes or left.is_published(split_key(path, None)[0]):
            return None
        total = math.prod(left.header["result"][0])
    except (StoreError, KeyError, IndexError, TypeError):
        return Unfinished(out, None)
    stored = sum(math.prod(stop - start for start, stop in box) for box in left.boxes)
    return Unfinished(out, stored / max(1, total))


def decide(out: str, *, resume: bool, restart: bool) -> bool:
    """Return whether to go on with an earlier run of ``out``; ask where a person can answer.

    Raises UnfinishedRunError when there is such a run and nobody said what to do with it, Abort when
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
    from accelera.engine import journal_path

    return journal_path(Path(out).expanduser()).exists()


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
