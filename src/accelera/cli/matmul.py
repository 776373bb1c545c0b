"""``accelera matmul``: a product of two files into a third, within a budget."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from accelera.cli import options
from accelera.cli.done import Done
from accelera.cli.options import Source
from accelera.cli.unfinished import decide, unfinished


def matmul(
    a: options.A,
    b: options.B,
    out: options.Out,
    budget: options.Budget = None,
    device: options.Device = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run, if there is one.")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Throw away what an interrupted run has stored.")
    ] = False,
    as_json: options.Json = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress bar and no table; errors only.")
    ] = False,
    a_shape: options.AShape = None,
    a_dtype: options.ADtype = None,
    a_offset: options.AOffset = 0,
    b_shape: options.BShape = None,
    b_dtype: options.BDtype = None,
    b_offset: options.BOffset = 0,
) -> None:
    """Compute A @ B into a file, within a memory budget.

    The result appears under its name when it is complete, and replaces what was there. An
    interrupted run leaves FILE.partial and FILE.journal; --resume goes on from them.
    """
    left, right = Source(a, a_shape, a_dtype, a_offset), Source(b, b_shape, b_dtype, b_offset)
    goes_on = decide(out, resume=resume, restart=restart)
    done = _run(left, right, out, budget, device, goes_on, not quiet)
    if as_json:
        typer.echo(json.dumps(done.to_dict(), indent=2))
    elif not quiet:
        typer.echo("\n".join(done.lines()))


def _run(
    a: Source, b: Source, out: str, budget: str | None, device: str | None, resume: bool, bar: bool
) -> Done:
    from accelera.cli.watermark import Watermark
    from accelera.engine import MatrixEngine
    from accelera.settings import current

    watermark = Watermark()
    engine = MatrixEngine(device or current().device, enable_progress=bar)
    try:
        store = engine.matmul(
            a.open(), b.open(), out=out, budget=budget, resume=resume, observers=[watermark]
        )
    except BaseException:
        left = unfinished(out)
        if left is not None:
            typer.echo(f"note: {left}: --resume goes on from there, --restart begins again", err=True)
        raise
    assert engine.last_report is not None
    return Done(out, store, engine.last_report, watermark.peak_bytes)
