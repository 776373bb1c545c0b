"""``accelera trace``: records of what was accessed. A new verb is one file and one line here."""

from __future__ import annotations

import typer

from accelera.cli.trace.capture import capture
from accelera.cli.trace.convert import convert
from accelera.cli.trace.generate import generate
from accelera.cli.trace.stats import stats

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")
for _verb in (generate, convert, stats):
    app.command()(_verb)
app.command(context_settings={"ignore_unknown_options": True})(capture)


@app.callback()
def trace() -> None:
    """Generate, capture, describe and convert traces: records of what was accessed, in order."""


__all__ = ["app"]
