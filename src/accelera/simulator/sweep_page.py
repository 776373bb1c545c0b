"""A sweep as one HTML page: a drawing, a table beneath it, no script, nothing from the network."""

from __future__ import annotations

from html import escape

import numpy as np

from accelera.plotting import DARK, LIGHT, Theme, dark_colours, format_budget, format_size
from accelera.simulator.curves import Curves
from accelera.simulator.sweep_drawing import Frame, SweepScales, other_colour, sweep_drawing

WIDE, NARROW = Frame(900, 500), Frame(366, 360)
"""Of the two drawings the page shows the one that its width is for, so that letters stay readable."""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Bytes moved over capacity</title>
<style>
{colours}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 0; background: var(--background); color: var(--ink) }}
main {{ max-width: 940px; margin: 0 auto; padding: 24px 12px }}
h1 {{ font-size: 1.6rem; line-height: 1.3; margin: 0 0 .4rem }}
svg {{ display: block; width: 100%; margin: 1rem 0 }}
svg text {{ font-size: 12px; font-family: system-ui, sans-serif }}
svg text:not([fill]) {{ fill: var(--muted) }}
svg .name {{ font-size: 13px; paint-order: stroke; stroke: var(--background); stroke-width: 4px }}
svg text.least {{ fill: var(--least); font-style: italic; font-size: 13px }}
svg .grid {{ stroke: var(--line) }}
svg .knee {{ stroke: var(--muted); stroke-dasharray: 2 4; stroke-width: 1.5 }}
svg .impossible {{ fill: var(--least); fill-opacity: .16 }}
polyline {{ fill: none; stroke-width: 2 }}
polyline.best {{ stroke-width: 3.5 }}
polyline.other {{ stroke: var(--plain); stroke-width: 1; stroke-opacity: .7 }}
circle {{ fill: transparent; pointer-events: all }}
.more {{ display: none }}
.narrow {{ display: none }}
@media (max-width: 640px) {{ .narrow {{ display: block }} .wide {{ display: none }} }}
fieldset {{ border: 1px solid var(--line); border-radius: 8px; padding: .4rem .9rem .6rem }}
fieldset label {{ display: inline-block; margin-right: 1rem; white-space: nowrap }}
{demand}
.table {{ overflow-x: auto; margin-top: 1.4rem }}
table {{ border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums }}
td, th {{ padding: .2rem .8rem .2rem 0; text-align: right; white-space: nowrap; font-weight: normal }}
tr {{ border-bottom: 1px solid var(--line) }}
td:first-child, th:first-child {{ text-align: left }}
.note {{ color: var(--muted) }}
</style>
<main>
<h1>{headline}</h1>
<p>{summary}</p>
{drawings}
{choice}
<div class="table" tabindex="0" role="region" aria-label="Bytes moved by policy and capacity">{table}</div>
<p class="note">{note}</p>
</main>
</html>
"""


def sweep_page(curves: Curves) -> str:
    """Return the page."""
    scales = SweepScales(curves)
    return _PAGE.format(
        colours=_colours(),
        demand=_demand(scales),
        headline=f"{escape(curves.best)} moves the fewest bytes by and large",
        summary=_summary(curves),
        drawings=sweep_drawing(curves, WIDE, "wide") + sweep_drawing(curves, NARROW, "narrow"),
        choice=_choice(scales),
        table=_table(curves),
        note="1 GB is 10⁹ bytes. Bytes moved are those between the first tier and the next, both ways.",
    )


def _summary(curves: Curves) -> str:
    return (
        f"Its knee is at {format_size(curves.knee)}: beyond it more memory saves less. From "
        f"{format_size(curves.without_stalls)} on nobody waits for want of memory."
    )


def _colours() -> str:
    def of(theme: Theme) -> str:
        return (
            f"--background: {theme.background}; --ink: {theme.ink}; --muted: {theme.muted}; "
            f"--line: {theme.grid}; --plain: {theme.plain}; --least: {theme.least}"
        )

    dark = "\n".join(
        f'[fill="{light}"] {{ fill: {there} }} [stroke="{light}"] {{ stroke: {there} }}'
        for light, there in dark_colours().items()
    )
    when = "@media screen and (prefers-color-scheme: dark)"
    return f":root {{ {of(LIGHT)} }}\n{when} {{ :root {{ {of(DARK)} }}\n{dark} }}"


def _choice(scales: SweepScales) -> str:
    """Return the boxes by which the other policies are shown, if there are any."""
    if not scales.others:
        return ""
    boxes = "".join(
        f'<label><input type="checkbox" id="show{index}"/> {escape(name)}</label> '
        for index, name in enumerate(scales.others)
    )
    return f"<fieldset><legend>The others are drawn in grey; show</legend>{boxes}</fieldset>"


def _demand(scales: SweepScales) -> str:
    return "\n".join(
        f"body:has(#show{index}:checked) .p{index} {{ display: inline }} "
        f"#show{index} {{ accent-color: {other_colour(index)} }}"
        for index in range(len(scales.others))
    )


def _table(curves: Curves) -> str:
    shown = np.unique(np.linspace(0, len(curves.capacities) - 1, 8).astype(int)).tolist()
    rows = [_row("th", "capacity", [format_budget(curves.capacities[at]) for at in shown])]
    if curves.bounds is not None:
        rows.append(_row("td", "least possible", [format_size(int(curves.bounds[at])) for at in shown]))
    for policy in curves.ranking():
        rows.append(_row("td", policy, [format_size(int(curves.moved[policy][at])) for at in shown]))
    return f"<table>{''.join(rows)}</table>"


def _row(tag: str, name: str, sizes: list[str]) -> str:
    cells = "".join(f"<{tag}>{size}</{tag}>" for size in sizes)
    return f"<tr><{tag}>{escape(name)}</{tag}>{cells}</tr>"
