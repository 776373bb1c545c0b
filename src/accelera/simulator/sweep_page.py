"""A sweep as one HTML page: a drawing, a table beneath it, no script, nothing from the network."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

import numpy as np
from numpy.typing import NDArray

from accelera.simulator.curves import Curves
from accelera.units import format_bytes

WIDTH, HEIGHT = 900, 480
LEFT, RIGHT, TOP, BOTTOM = 90, 20, 20, 50
LEGEND_ROW = 20
TICKS = 5

_PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>Bytes moved over capacity</title>
<style>
body {{ font: 15px system-ui, sans-serif; margin: 2rem auto; max-width: 960px; color: #222 }}
svg text {{ font: 12px system-ui, sans-serif; fill: #444 }}
polyline {{ fill: none; stroke-width: 1.4 }}
polyline.best {{ stroke-width: 3 }}
polyline:hover {{ stroke-width: 4 }}
table {{ border-collapse: collapse; margin-top: 1rem }}
td, th {{ padding: 0.15rem 0.7rem; text-align: right; border-bottom: 1px solid #ddd }}
td:first-child, th:first-child {{ text-align: left }}
</style>
<h1>Bytes moved over capacity</h1>
<p>{summary}</p>
{drawing}
{table}
</html>
"""


def sweep_page(curves: Curves) -> str:
    """Return the page."""
    summary = (
        f"Best by and large: <b>{escape(curves.best)}</b>, whose knee is at {format_bytes(curves.knee)}. "
        f"Nobody waits for want of memory from {format_bytes(curves.without_stalls)}."
    )
    return _PAGE.format(summary=summary, drawing=_drawing(curves), table=_table(curves))


def _drawing(curves: Curves) -> str:
    ranking = curves.ranking()
    height = HEIGHT + LEGEND_ROW * -(-len(ranking) // 5)
    parts = [*_grid(curves), *_impossible(curves)]
    knee = _across(curves, curves.knee)
    parts.append(
        f'<line x1="{knee}" x2="{knee}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#888" '
        'stroke-dasharray="3 4"><title>knee</title></line>'
    )
    for index, policy in enumerate(ranking):
        hue = index * 360 // len(ranking)
        parts += [*_curve(curves, policy, hue), *_legend(policy, index, hue)]
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'


def _curve(curves: Curves, policy: str, hue: int) -> Iterable[str]:
    thick = ' class="best"' if policy == curves.best else ""
    yield (
        f'<polyline{thick} stroke="hsl({hue} 65% 45%)" points="{_points(curves, curves.moved[policy])}">'
        f"<title>{escape(policy)}</title></polyline>"
    )


def _legend(policy: str, index: int, hue: int) -> Iterable[str]:
    x, y = LEFT + index % 5 * 160, HEIGHT + index // 5 * LEGEND_ROW + 8
    yield f'<rect x="{x}" y="{y - 8}" width="12" height="8" fill="hsl({hue} 65% 45%)"/>'
    yield f'<text x="{x + 18}" y="{y}">{escape(policy)}</text>'


def _impossible(curves: Curves) -> Iterable[str]:
    if curves.bounds is not None:
        floor = HEIGHT - BOTTOM
        first, last = (_across(curves, curves.capacities[end]) for end in (0, -1))
        points = f"{first},{floor} {_points(curves, curves.bounds)} {last},{floor}"
        yield f'<polygon fill="#ddd" points="{points}"><title>no schedule moves so little</title></polygon>'


def _grid(curves: Curves) -> Iterable[str]:
    for share in np.linspace(0, 1, TICKS):
        moved = share * _most(curves)
        y = _down(curves, moved)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#eee"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{format_bytes(moved)}</text>'
        size = curves.capacities[0] + share * (curves.capacities[-1] - curves.capacities[0])
        x = _across(curves, size)
        yield f'<text x="{x}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{format_bytes(size)}</text>'


def _points(curves: Curves, moved: NDArray[np.int64]) -> str:
    pairs = zip(curves.capacities, moved.tolist(), strict=True)
    return " ".join(f"{_across(curves, size)},{_down(curves, each)}" for size, each in pairs)


def _across(curves: Curves, size: float) -> float:
    span = max(curves.capacities[-1] - curves.capacities[0], 1)
    return round(LEFT + (size - curves.capacities[0]) / span * (WIDTH - LEFT - RIGHT), 1)


def _down(curves: Curves, moved: float) -> float:
    return round(TOP + (1 - moved / _most(curves)) * (HEIGHT - TOP - BOTTOM), 1)


def _most(curves: Curves) -> float:
    return float(max(1, *(int(each.max()) for each in curves.moved.values())))


def _table(curves: Curves) -> str:
    shown = np.unique(np.linspace(0, len(curves.capacities) - 1, 8).astype(int)).tolist()
    rows = [_row("th", "capacity", [curves.capacities[at] for at in shown])]
    if curves.bounds is not None:
        rows.append(_row("td", "lower bound", [int(curves.bounds[at]) for at in shown]))
    for policy in curves.ranking():
        rows.append(_row("td", policy, [int(curves.moved[policy][at]) for at in shown]))
    return f"<table>{''.join(rows)}</table>"


def _row(tag: str, name: str, sizes: list[int]) -> str:
    cells = "".join(f"<{tag}>{format_bytes(size)}</{tag}>" for size in sizes)
    return f"<tr><{tag}>{escape(name)}</{tag}>{cells}</tr>"
