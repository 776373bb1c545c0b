"""Sweep as a table of text, as a picture, or as a page that stands alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelera._extras import needed_for
from accelera._plotting import LIGHT, TextSize, text_colour
from accelera._text_table import text_table
from accelera.errors import ArgumentError
from accelera.simulator.sweep_page import EXPLANATION, Curves, SweepScales, sweep_page
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


SIZE_INCHES = (9, 5.5)
TEXT = TextSize(0.0125, 0.045)
"""Of ten-point letters in a picture of this size."""


def plot_sweep(curves: Curves, path: Path) -> Path:
    """Write ``curves`` to ``path``, a ``.png`` or ``.html`` file; return it.

    Raises BackendMissingError when a picture is asked for and matplotlib is absent, ValueError for another
    ending.
    """
    if path.suffix == ".html":
        path.write_text(sweep_page(curves), encoding="utf-8")
    elif path.suffix == ".png":
        _draw(curves, path)
    else:
        raise ArgumentError(f"[sweep] a plot cannot be written to {path.name}; end the name in .png or .html")
    return path


def _draw(curves: Curves, path: Path) -> None:
    with needed_for("sweep", "or plot to a .html file"):
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    with rc_context({"text.parse_math": False}):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        scales = SweepScales(curves)
        _dress(axes, scales)
        _draw_lines(axes, scales)
        _write_names(axes, scales)
        figure.savefig(path, dpi=150)


def _dress(axes: Any, scales: SweepScales) -> None:
    axes.set(xlim=(scales.x.low, scales.x.high), ylim=(0, scales.y.high))
    axes.set_xticks(scales.x.values, [f"{tick:,g}" for tick in scales.x.values])
    axes.set_yticks(scales.y.values, [f"{tick:,g}" for tick in scales.y.values])
    axes.set_xlabel(scales.x_title, color=LIGHT.muted)
    axes.set_title(scales.y_title, loc="left", size=10, color=LIGHT.muted, pad=24)
    axes.tick_params(length=0, labelcolor=LIGHT.muted)
    axes.grid(axis="y", color=LIGHT.grid)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)


def _draw_lines(axes: Any, scales: SweepScales) -> None:
    curves = scales.curves
    sizes = [size / scales.x_unit.factor for size in curves.capacities]
    factor = scales.y_unit.factor
    if curves.bounds is not None:
        axes.fill_between(sizes, curves.bounds / factor, color=LIGHT.least, alpha=0.16, linewidth=0)
    for policy in scales.others:
        axes.plot(sizes, curves.moved[policy] / factor, color=LIGHT.plain, linewidth=0.8)
    for policy in reversed(scales.shown):
        width = 3 if policy == curves.best else 1.6
        axes.plot(sizes, curves.moved[policy] / factor, color=scales.colours[policy], linewidth=width)
    axes.axvline(curves.knee / scales.x_unit.factor, color=LIGHT.muted, linestyle=":")


def _write_names(axes: Any, scales: SweepScales) -> None:
    knee = scales.knee_share
    side = "left" if knee < 0.15 else "right" if knee > 0.85 else "center"
    within = {"transform": axes.transAxes, "va": "center", "ha": "center"}
    axes.text(knee, 1.02, scales.knee_text, color=LIGHT.muted, transform=axes.transAxes, ha=side)
    words = scales.explanation(TEXT)
    if words is not None:
        place = (words.left + words.right) / 2, (words.bottom + words.top) / 2
        axes.text(*place, EXPLANATION, color=LIGHT.least, style="italic", **within)
    for label in scales.labels(TEXT, [] if words is None else [words]):
        colour = scales.colours[label.names[0]] if len(label.names) == 1 else LIGHT.ink
        axes.text(
            label.x,
            label.y,
            ", ".join(label.names),
            color=text_colour(colour, LIGHT.background),
            weight="bold" if scales.curves.best in label.names else "normal",
            **within,
        )
    if scales.others:
        count = len(scales.others)
        note = f"grey: {count} other {'policy' if count == 1 else 'policies'}"
        axes.text(1, 1.02, note, color=LIGHT.muted, size=9, transform=axes.transAxes, ha="right")
