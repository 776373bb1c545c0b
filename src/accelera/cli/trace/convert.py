"""``accelera trace convert``: a trace file as another."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from accelera.cli.options import Json

Format = Annotated[str | None, typer.Option(metavar="NAME", help="Its format, where its name does not tell.")]


def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="The trace to read.")],
    target: Annotated[str, typer.Argument(metavar="OUT", help="The file to write.")],
    source_format: Format = None,
    target_format: Format = None,
    as_json: Json = False,
) -> None:
    """Write a trace in another format, which the name of the file decides.

    Parquet holds everything; what the other formats leave out is in the documentation.
    """
    from accelera.trace import read_trace, write_trace

    trace = read_trace(source, source_format)
    write_trace(trace, target, target_format)
    found = {
        "path": target,
        "accesses": trace.access_count,
        "buffers": trace.buffer_count,
        "steps": trace.step_count,
        "model_type": trace.model_type,
    }
    typer.echo(json.dumps(found, indent=2) if as_json else f"{target}: {trace}")
