"""What every verb that writes a file does: settle an earlier run, compute, say what happened."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from accelera.cli.done import Done
from accelera.cli.unfinished import decide, unfinished
from accelera.errors import StoreChangedError

if TYPE_CHECKING:
    from accelera.engine import MatrixEngine

Compute = Callable[..., Any]
"""Given the engine and its keywords ``out``, ``budget``, ``resume`` and ``observers``; returns the store."""


class Wish(NamedTuple):
    """What the command line said about a run, whatever the operation."""

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


def carry_out(wish: Wish, compute: Compute) -> None:
    """Run ``compute`` as ``wish`` says, with a bar on a terminal, and print what it did."""
    resume = decide(wish.out, resume=wish.resume, restart=wish.restart)
    done = _computed(wish, compute, resume)
    if wish.as_json:
        typer.echo(json.dumps(done.to_dict(), indent=2))
    elif not wish.quiet:
        typer.echo("\n".join(done.lines()))


def engine_on(device: str | None, *, bar: bool = False, policy: str | None = None) -> MatrixEngine:
    """Return an engine on the device of that name, or on the usual one."""
    from accelera.engine import MatrixEngine

    return MatrixEngine(device, enable_progress=bar, policy=policy)


def _computed(wish: Wish, compute: Compute, resume: bool) -> Done:
    from accelera.cli.watermark import Watermark

    engine, watermark = engine_on(wish.device, bar=not wish.quiet, policy=wish.policy), Watermark()
    try:
        layout = {"chunks": wish.chunks, "codec": wish.codec}
        how = {"out": wish.out, "budget": wish.budget, "resume": resume, "observers": [watermark]}
        store = compute(engine, **how, **layout)
    except BaseException as error:
        _advise(wish.out, error, watermark.started)
        raise
    assert engine.last_report is not None
    return Done(wish.out, store, engine.last_report, watermark.peak_bytes)


def _advise(out: str, error: BaseException, started: bool) -> None:
    """Say how to go on after ``error``, where something is left to go on with."""
    left = unfinished(out)
    if left is None:
        return
    if isinstance(error, StoreChangedError):
        typer.echo("note: --restart begins again", err=True)
    elif started:
        typer.echo(f"note: {left}: --resume goes on from there, --restart begins again", err=True)
