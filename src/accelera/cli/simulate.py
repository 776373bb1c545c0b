"""``accelera simulate``: what a trace would move, and wait for, in memories of a given size."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from accelera.cli import options
from accelera.cli.options import Json
from accelera.units import format_bytes

if TYPE_CHECKING:
    from accelera.simulator import Report


SCORER_OF = {"scored": "heuristic", "learned": "learned", "iteration_replay": "replay"}
"""Whose scores a policy follows that is given none."""


def simulate(
    trace: options.TraceFile,
    capacity: Annotated[
        str | None,
        typer.Option("--budget", "-b", metavar="SIZE", help="Of the first tier: 8GiB, or 50% of the peak."),
    ] = None,
    hierarchy: options.Machine = None,
    policy: Annotated[
        str, typer.Option("--policy", "-p", metavar="NAME", help="Who is evicted: lru, belady, planner …")
    ] = "lru",
    lookahead: options.Lookahead = 0,
    recompute: options.Recompute = False,
    seed: options.Seed = 0,
    bound: options.Bound = True,
    source_format: options.TraceFormat = None,
    as_json: Json = False,
) -> None:
    """Replay a trace under one policy: bytes moved, evictions, waiting, and the least possible."""
    from accelera.simulator import gated
    from accelera.simulator import simulate as replay

    record = options.opened(trace, source_format)
    machine = options.machine_of(hierarchy, capacity, record)
    scores = options.score_for(policy, record)
    report = replay(
        record, machine, policy, lookahead=lookahead, recompute=recompute, score=scores, seed=seed
    )
    choice = None
    if report.policy in SCORER_OF:
        given = SCORER_OF[report.policy] if scores is None else scores
        choice = gated(record, given, machine, lookahead=lookahead, name=SCORER_OF[report.policy])
    if as_json:
        gate = {} if choice is None else {"gate": choice.to_dict()}
        typer.echo(json.dumps(report.to_dict(bound=bound) | gate, indent=2))
    else:
        notes = [_least(report)] if bound else []
        typer.echo(
            "\n".join([report.table(), *notes, *([] if choice is None else [f"gate: {choice.reason}"])])
        )


def _least(report: Report) -> str:
    if not report.lower_bound_bytes:
        return f"a schedule may move nothing; {report.policy} moves {format_bytes(report.moved_bytes)}"
    least = format_bytes(report.lower_bound_bytes)
    return f"no schedule moves less than {least}: {report.policy} moves {report.regret:.3f} times that"
