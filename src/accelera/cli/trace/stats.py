"""``accelera trace stats``: what a trace is like."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from accelera.cli.options import Json


def _checked_share(share: float | None) -> float | None:
    if share is not None and not 0 < share <= 1:
        raise typer.BadParameter(f"{share:g} is not over 0 and up to 1")
    return share


def stats(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The trace: .parquet, .csv, .json …")],
    source_format: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="Its format, where its name does not tell.")
    ] = None,
    sample: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            callback=_checked_share,
            help="Estimate the LRU curve from this share of the buffers, such as 0.01.",
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="How many of the largest tensors to list.")] = 10,
    as_json: Json = False,
) -> None:
    """Describe a trace: sizes, the peak and what is alive then, reuse, and what LRU would miss."""
    from accelera.trace import read_trace, statistics

    found = statistics(read_trace(file, source_format), sample=sample, top=top)
    typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else found.table())
