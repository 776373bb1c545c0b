"""``accelera sweep``: every policy at every capacity, as a table and a plot."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accelera.cli import options
from accelera.cli.options import Json, Quiet

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import numpy as np
    from numpy.typing import NDArray

    from accelera.trace import Trace


def _checked_plot(path: Path | None) -> Path | None:
    if path is not None and path.suffix not in (".png", ".html"):
        raise typer.BadParameter(f"{path.name!r} ends in neither .png nor .html")
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}; make it first")
    return path


def _checked_cluster(word: str | None) -> str | None:
    if word is not None and word.lower() != "ray":
        raise typer.BadParameter(f"{word!r} is no cluster; the only one known is ray")
    return word


@contextmanager
def _executor(cluster: str | None) -> Iterator[Executor | None]:
    """Yield the executor of the replays: None for this process, or that of the running Ray cluster."""
    if cluster is None:
        yield None
        return
    from accelera.execution import RayExecutor

    with RayExecutor() as executor, executor.as_futures() as pool:
        yield pool


def sweep(
    trace: options.TraceFile,
    policies: Annotated[
        str | None,
        typer.Option("--policies", "-p", metavar="NAMES", help="lru,belady,planner …; all by default."),
    ] = None,
    capacities: Annotated[
        str,
        typer.Option(
            "--budgets",
            "-b",
            metavar="SIZES",
            help="4GiB,8GiB,50% …, or how many from the largest step to the peak.",
        ),
    ] = "50",
    hierarchy: options.Machine = None,
    lookahead: options.Lookahead = 0,
    recompute: options.Recompute = False,
    seed: options.Seed = 0,
    bound: options.Bound = True,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", callback=_checked_plot, help="Draw the curves: .png or .html."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="ray", callback=_checked_cluster, help="Replay on the nodes of a Ray cluster."),
    ] = None,
    source_format: options.TraceFormat = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Replay a trace under every policy at many capacities: who moves least, where memory stops paying."""
    from accelera.simulator import sweep as run

    record = options.opened(trace, source_format)
    names = None if policies is None else _names(policies)
    with _executor(cluster) as executor:
        found = run(
            record,
            names,
            _sizes(capacities, record),
            hierarchy,
            lookahead=lookahead,
            recompute=recompute,
            scores=_scores(names, record),
            seed=seed,
            executor=executor,
            progress=not (quiet or as_json),
        )
    if plot is not None:
        found.plot(plot, bound=bound)
    if as_json:
        typer.echo(json.dumps(found.to_dict(bound=bound), indent=2))
    elif not quiet:
        typer.echo(found.table(bound=bound))


def _listed(text: str, option: str, example: str) -> list[str]:
    """Return what stands between commas; raises BadParameter when that is nothing."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise typer.BadParameter(f"nothing is named; write for example {example}", param_hint=f"'{option}'")
    return parts


def _names(text: str) -> list[str]:
    return _listed(text, "--policies", "lru,planner, or leave it out to try all")


def _scores(names: list[str] | None, trace: Trace) -> dict[str, NDArray[np.float64]]:
    """Return the scores of those named that make none of their own."""
    found = {name: options.score_for(name, trace) for name in names or ()}
    return {name.lower(): score for name, score in found.items() if score is not None}


def _sizes(text: str, trace: Trace) -> int | list[int | str]:
    """Return how many, from a number below 1000 on its own, else the sizes in bytes; raises BadParameter."""
    parts = _listed(text, "--budgets", "4GiB,50%, or how many")
    if len(parts) == 1 and parts[0].isdigit() and 0 < int(parts[0]) < 1000:
        return int(parts[0])
    if parts == ["0"]:
        raise typer.BadParameter("0 capacities are none; give at least 1", param_hint="'--budgets'")
    return [options.capacity_of(part, trace, "--budgets") for part in parts]
