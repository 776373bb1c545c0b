"""``accelera advise``: what to do about a trace in less memory than it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from accelera.cli import options
from accelera.cli.options import Json
from accelera.units import parse_share

if TYPE_CHECKING:
    from accelera.trace import Trace

Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        "-b",
        metavar="SIZE",
        help="Memory of the fastest tier: 512MiB, or a share of the trace's peak such as 50%. "
        "Without it what the trace was recorded with, or the hierarchy's.",
    ),
]
Bound = Annotated[
    bool | None,
    typer.Option("--bound/--no-bound", help="Work out the least bytes any schedule moves, or do not."),
]


def advise(
    trace: options.TraceFile,
    budget: Budget = None,
    hierarchy: options.Machine = None,
    bound: Bound = None,
    source_format: options.TraceFormat = None,
    as_json: Json = False,
) -> None:
    """Say which policy to use for a trace, how far ahead to load, what to keep, and whether it pays.

    Every policy is simulated; the least bytes that any schedule could move stand beside what each moves.
    """
    from accelera.simulator import advise as ask

    record = options.opened(trace, source_format)
    advice = ask(record, _amount(budget, hierarchy, record), hierarchy, bound=bound)
    typer.echo(advice.to_json() if as_json else advice.table())


def _amount(budget: str | None, hierarchy: str | None, record: Trace) -> int | float | None:
    """Return the budget in bytes or as a share; raises BadParameter where no budget is known."""
    if budget is None:
        if hierarchy is None and "capacity_bytes" not in record.meta:
            raise typer.BadParameter("the trace does not tell: give --budget, for example 8GiB or 50%")
        return None
    try:
        return parse_share(budget)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--budget'") from error
