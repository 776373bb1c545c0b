"""A sweep as a table of text."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accelera.simulator.curves import Curves
from accelera.text_table import text_table
from accelera.units import format_bytes


def sweep_table(curves: Curves, columns: int) -> str:
    """Return bytes moved, or multiples of the lower bound, at up to ``columns`` of the capacities."""
    count = len(curves.capacities)
    shown = np.unique(np.linspace(0, count - 1, min(max(columns, 1), count)).astype(int)).tolist()
    rows = [["capacity", *(format_bytes(curves.capacities[at]) for at in shown)]]
    if curves.bounds is not None:
        rows.append(["lower bound", *(format_bytes(int(curves.bounds[at])) for at in shown)])
    for policy in curves.ranking():
        rows.append([policy, *(_cell(curves.moved[policy], curves.bounds, at) for at in shown)])
    return "\n".join([text_table(rows), "", *_findings(curves)])


def _cell(moved: NDArray[np.int64], bounds: NDArray[np.int64] | None, at: int) -> str:
    if bounds is None:
        return format_bytes(int(moved[at]))
    if not bounds[at]:
        return "0 B" if not moved[at] else format_bytes(int(moved[at]))
    return f"{moved[at] / bounds[at]:.3f} x"


def _findings(curves: Curves) -> list[str]:
    return [
        f"best by and large: {curves.best}; its knee: {format_bytes(curves.knee)}",
        f"no stalls for want of memory from {format_bytes(curves.without_stalls)}",
    ]
