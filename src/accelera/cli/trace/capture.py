"""``accelera trace capture``: a Python script run with every tensor access recorded."""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accelera.cli.ending import exit_code_of
from accelera.cli.options import Json
from accelera.units import format_bytes

if TYPE_CHECKING:
    from accelera.trace import Trace

Script = Annotated[
    Path, typer.Argument(metavar="SCRIPT.py", exists=True, dir_okay=False, help="The script to run.")
]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="[ARGUMENTS]...", help="The script's own; put -- before them.")
]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="The file to write; by default SCRIPT.parquet here.")
]
Names = Annotated[
    bool, typer.Option(help="Name activations after the modules that make them; without, it is quicker.")
]


def capture(
    script: Script,
    arguments: Arguments = None,
    out: Out = None,
    names: Names = True,
    as_json: Json = False,
) -> None:
    """Run a Python script and record every tensor access that PyTorch makes in it.

    The script runs as with python: its arguments, output, errors and exit code are its own; with --json what
    it prints goes to stderr. A trace is written of a script that fails, too.
    """
    from accelera.capture import capture_script, is_own
    from accelera.trace import write_trace

    target = out or Path(f"{script.stem}.parquet")
    _check_target(target)
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        captured = capture_script(script, arguments or (), names=names)
    write_trace(captured.trace, target)
    found = _found(captured.trace, target)
    typer.echo(json.dumps(found, indent=2) if as_json else _line(captured.trace, found))
    raise typer.Exit(exit_code_of(captured.error, is_own))


def _check_target(target: Path) -> None:
    """Raise what writing would, before the script runs: an unknown format, a folder that is not there."""
    from accelera.trace import Trace, write_trace

    if not target.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {target.parent}")
    with tempfile.TemporaryDirectory() as folder:
        write_trace(Trace.from_arrays([], []), Path(folder) / target.name)


def _found(trace: Trace, target: Path) -> dict[str, Any]:
    return {
        "path": str(target),
        "accesses": trace.access_count,
        "buffers": trace.buffer_count,
        "steps": trace.step_count,
        "iterations": len(trace.meta["iterations"]),
        "peak_live_bytes": trace.meta["peak_live_bytes"],
    }


def _line(trace: Trace, found: dict[str, Any]) -> str:
    return f"{found['path']}: {trace}, at most {format_bytes(found['peak_live_bytes'])} alive"
