"""``accelera sweep``: every policy at every capacity, as a table and a plot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accelera.cli import tiers
from accelera.cli.options import Json, Quiet

if TYPE_CHECKING:
    from accelera.trace import Trace


def _checked_plot(path: Path | None) -> Path | None:
    if path is not None and path.suffix not in (".png", ".html"):
        raise typer.BadParameter(f"{path.name!r} ends in neither .png nor .html")
    return path


def sweep(
    trace: tiers.TraceFile,
    policies: Annotated[
        str | None,
        typer.Option("--policies", "-p", metavar="NAMES", help="lru,belady,planner …; all by default."),
    ] = None,
    capacities: Annotated[
        str,
        typer.Option(
            "--capacities",
            "-c",
            metavar="SIZES",
            help="4GiB,8GiB,50% …, or how many from the largest step to the peak.",
        ),
    ] = "50",
    hierarchy: tiers.Machine = None,
    lookahead: tiers.Lookahead = 0,
    recompute: tiers.Recompute = False,
    seed: tiers.Seed = 0,
    bound: tiers.Bound = True,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", callback=_checked_plot, help="Draw the curves: .png or .html."),
    ] = None,
    source_format: tiers.TraceFormat = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Replay a trace under every policy at many capacities: who moves least, where memory stops paying."""
    from accelera.simulator import sweep as run

    record = tiers.opened(trace, source_format)
    found = run(
        record,
        None if policies is None else [name.strip() for name in policies.split(",") if name.strip()],
        _sizes(capacities, record),
        hierarchy,
        lookahead=lookahead,
        recompute=recompute,
        seed=seed,
        progress=not (quiet or as_json),
    )
    if plot is not None:
        found.plot(plot, bound=bound)
    if as_json:
        typer.echo(json.dumps(found.to_dict(bound=bound), indent=2))
    elif not quiet:
        typer.echo(found.table(bound=bound))


def _sizes(text: str, trace: Trace) -> int | list[int | str]:
    """Return how many, from a number below 1000 on its own, else the sizes in bytes."""
    parts = [part for part in text.split(",") if part.strip()]
    if len(parts) == 1 and parts[0].strip().isdigit() and int(parts[0]) < 1000:
        return int(parts[0])
    return [tiers.capacity_of(part, trace) for part in parts]
