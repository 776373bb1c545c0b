"""``accelera report``: the pictures of a trace in one HTML file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accelera.cli import options
from accelera.cli.options import Json, Quiet

if TYPE_CHECKING:
    from accelera.trace import Trace
    from accelera.views import WhatIf

Out = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", metavar="FILE", help="The page: report.html. Without it the trace's name with .html."
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        "-b",
        metavar="SIZE",
        help="Memory of the fastest tier: 8GB, or a share of the trace's peak such as 50%. "
        "Without it what the trace was recorded with, or the hierarchy's.",
    ),
]
Machine = Annotated[
    str, typer.Option("--hierarchy", metavar="NAME", help="The tiers: laptop, gpu-24gb or h200.")
]
Link = Annotated[
    str | None,
    typer.Option("--link", metavar="SIZE", help="Rate of the link to the next memory, per second: 25GB."),
]
Policies = Annotated[
    str | None,
    typer.Option("--policies", "--policy", "-p", metavar="NAMES", help="lru,belady …; four by default."),
]
Bound = Annotated[
    bool | None,
    typer.Option(
        "--bound/--no-bound",
        help="Work out the least bytes any schedule moves. Without either, for traces short enough for that "
        "to take seconds.",
    ),
]
Title = Annotated[str, typer.Option(metavar="TEXT", help="What stands above the verdict.")]


def report(
    trace: options.TraceFile,
    out: Out = None,
    budget: Budget = None,
    hierarchy: Machine = "gpu-24gb",
    link: Link = None,
    policies: Policies = None,
    bound: Bound = None,
    title: Title = "",
    source_format: options.TraceFormat = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write a page about a trace: does it fit, what would it cost, what would more memory buy.

    The page is one file that works offline: verdict, charts, tables, and a slider over the budget.
    """
    from accelera._atomic import atomic_write
    from accelera.report import report_contents, report_page

    path = _checked_out(out, trace)
    machine = _machine(hierarchy, link)
    record = options.opened(trace, source_format)
    contents = report_contents(
        record,
        _budget(budget, machine, record),
        machine,
        _names(policies),
        bound=bound,
        title=title or Path(trace).name,
    )
    page = report_page(contents).encode()
    with atomic_write(path) as partial:
        partial.write_bytes(page)
    if as_json:
        typer.echo(json.dumps(_figures(path, len(page), contents), indent=2))
    elif not quiet:
        verdict = contents["fit"]["verdict"]
        typer.echo(f"{verdict['headline']}\n{verdict['sentence']}\n{path}: open it in a browser")


def _checked_out(out: Path | None, trace: str) -> Path:
    path = Path(f"{Path(trace).stem}.html") if out is None else out
    if path.suffix.lower() not in (".html", ".htm"):
        raise typer.BadParameter(f"{path.name!r} does not end in .html", param_hint="'--out'")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}; make it first", param_hint="'--out'")
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder; name a file in it", param_hint="'--out'")
    return path


def _machine(hierarchy: str, link: str | None) -> WhatIf:
    from accelera.errors import UnknownNameError
    from accelera.units import parse_bytes
    from accelera.views import WhatIf
    from accelera.views._internal import MACHINES

    if hierarchy.lower() not in MACHINES:
        raise UnknownNameError.among("hierarchy", hierarchy, MACHINES)
    try:
        rate = None if link is None else parse_bytes(link.removesuffix("/s"))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--link'") from error
    if rate == 0:
        raise typer.BadParameter("a link of 0 bytes per second moves nothing", param_hint="'--link'")
    return WhatIf(hierarchy.lower(), rate)


def _budget(text: str | None, machine: WhatIf, record: Trace) -> int:
    """Return the budget in bytes: as given, as recorded, or the machine's."""
    if text is not None:
        return options.capacity_of(text, record, "--budget")
    recorded = record.meta.get("capacity_bytes")
    if isinstance(recorded, int) and recorded > 0:
        return recorded
    from accelera.simulator._internal import hierarchy_of

    return hierarchy_of(machine.hierarchy).tiers[0].capacity_bytes


def _names(text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = [part.strip().lower() for part in text.split(",") if part.strip()]
    if not names:
        raise typer.BadParameter("nothing is named; write for example lru,belady", param_hint="'--policies'")
    from accelera.errors import UnknownNameError
    from accelera.views._internal import known_policies

    for name in names:
        if name not in known_policies():
            raise UnknownNameError.among("policy", name, known_policies())
    return names


def _figures(path: Path, size: int, contents: dict[str, Any]) -> dict[str, Any]:
    fit, curves = contents["fit"], contents["curves"] or {}
    return {
        "file": str(path),
        "file_bytes": size,
        "verdict": fit["verdict"],
        "comparison": fit["comparison"],
        "peak": fit["occupancy"]["peak"],
        "knee_bytes": curves.get("knee_bytes"),
    }
