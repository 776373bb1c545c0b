"""``accelera simulate``: what a trace would move, and wait for, in memories of a given size."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from accelera.cli import tiers
from accelera.cli.options import Json
from accelera.units import format_bytes

if TYPE_CHECKING:
    from accelera.simulator import Report


def simulate(
    trace: tiers.TraceFile,
    capacity: Annotated[
        str | None,
        typer.Option("--capacity", "-c", metavar="SIZE", help="Of the first tier: 8GiB, or 50% of the peak."),
    ] = None,
    hierarchy: tiers.Machine = None,
    policy: Annotated[
        str, typer.Option("--policy", "-p", metavar="NAME", help="Who is evicted: lru, belady, planner …")
    ] = "lru",
    lookahead: tiers.Lookahead = 0,
    recompute: tiers.Recompute = False,
    seed: tiers.Seed = 0,
    bound: tiers.Bound = True,
    source_format: tiers.TraceFormat = None,
    as_json: Json = False,
) -> None:
    """Replay a trace under one policy: bytes moved, evictions, waiting, and the least possible."""
    from accelera.simulator import simulate as replay

    record = tiers.opened(trace, source_format)
    machine = tiers.machine_of(hierarchy, capacity, record)
    report = replay(
        record,
        machine,
        policy,
        lookahead=lookahead,
        recompute=recompute,
        score=tiers.score_for(policy, record),
        seed=seed,
    )
    if as_json:
        typer.echo(json.dumps(report.to_dict(bound=bound), indent=2))
    else:
        typer.echo("\n".join([report.table(), *([_least(report)] if bound else [])]))


def _least(report: Report) -> str:
    least = format_bytes(report.lower_bound_bytes)
    return f"no schedule moves less than {least}: {report.policy} moves {report.regret:.3f} times that"
