"""The memories that a trace is replayed in, as they were named on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from accelera.units import size_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from accelera.memory import Hierarchy
    from accelera.trace import Trace

TraceFile = Annotated[str, typer.Argument(metavar="TRACE", help="The trace: .parquet, .csv, .json …")]
TraceFormat = Annotated[
    str | None, typer.Option("--format", metavar="NAME", help="Its format, where its name does not tell.")
]
Machine = Annotated[
    str | None,
    typer.Option(
        "--hierarchy", metavar="NAME", help="The tiers: laptop, gpu-24gb, h200, or copilot (the seed's)."
    ),
]
Lookahead = Annotated[
    int, typer.Option(metavar="STEPS", min=0, help="How many further steps are admitted while one computes.")
]
Recompute = Annotated[
    bool, typer.Option("--recompute", help="Make buffers again where that is faster than moving them.")
]
Seed = Annotated[int, typer.Option(metavar="N", min=0, max=2**63 - 1, help="Of policies that throw dice.")]
Bound = Annotated[
    bool,
    typer.Option(
        "--bound/--no-bound", help="Work out the least bytes any schedule moves; seconds on long traces."
    ),
]


def opened(path: str, source_format: str | None) -> Trace:
    """Return the trace in a file."""
    from accelera.trace import read_trace

    return read_trace(path, source_format)


def capacity_of(text: str, trace: Trace, option: str = "--capacity") -> int:
    """Return ``"8GiB"``, or a share such as ``"50%"`` of the trace's peak, in bytes; raises BadParameter."""
    from accelera.trace import Occupancy

    try:
        return size_of(text, lambda: Occupancy(trace).peak_bytes)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from error


def score_for(policy: str, trace: Trace) -> NDArray[np.float64] | None:
    """Return the score of a policy that makes none of its own, per access; None for all others.

    Raises BackendMissingError when the trained scorer's library is absent.
    """
    if policy.lower() != "learned":
        return None
    from accelera.simulator import score

    return score(trace, "learned")


def machine_of(name: str | None, capacity: str | None, trace: Trace) -> Hierarchy:
    """Return the tiers meant by ``--hierarchy``, ``--capacity`` or both; raises BadParameter for neither."""
    from accelera.memory import Hierarchy
    from accelera.simulator import hierarchy_of

    if name is None and capacity is None:
        raise typer.BadParameter("give --capacity, for example 8GiB or 50%, or --hierarchy, or both")
    size = None if capacity is None else capacity_of(capacity, trace)
    if name is None:
        return Hierarchy.of(size or 0)
    machine = hierarchy_of(name)
    return machine if size is None else machine.with_capacity(size)
