"""One HTML file with a report: verdict, charts, tables; it loads nothing and works offline."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from accelera._plotting import DARK, LIGHT, Theme, dark_colours, format_budget, format_count, format_size
from accelera.charts._internal import (
    CIVIDIS,
    CURVES_HEIGHT,
    HEATMAP_HEIGHT,
    OCCUPANCY_HEIGHT,
    TIMELINE_HEIGHT,
    Measure,
    bars_height,
    curves_chart,
    curves_legend,
    heatmap_chart,
    heatmap_colour,
    occupancy_chart,
    occupancy_legend,
    policy_bars,
    timeline_chart,
)
from accelera.report import tables
from accelera.report.contents import states_of
from accelera.views._internal import ViewJson

_SCORE_COLOURS = (("keep", CIVIDIS[0]), ("evict first", CIVIDIS[-1]))
"""Label and colour at both ends of the colour scale of scores."""
MESSAGE_HEIGHT = 90
"""Pixels of a chart that only says why there is nothing to draw."""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="Accelera">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
<script type="application/json" id="data">{data}</script>
<script>{library}</script>
<script>{script}</script>
</body>
</html>
"""


def report_page(contents: ViewJson) -> str:
    """Return the page.

    Parameters
    ----------
    contents
        What ``report_contents`` returns, or a part of it: ``fit``, the JSON of that view, and if they are
        there ``title facts curves timeline scores largest``. Names in it are shown as text, whatever they
        hold.
    """
    fit = contents["fit"]
    states = states_of(fit, contents["curves"]) if _has_slider(contents) else []
    charts = _charts(contents)
    library, script = _asset("vendor", "echarts", "echarts.common.min.js"), _asset("page.js")
    return _PAGE.format(
        policy=_content_policy(library, script),
        title=escape(contents.get("title") or fit["verdict"]["headline"]),
        style=_variables() + _asset("page.css"),
        body="\n".join(_body(contents, states)),
        data=_json({"charts": charts, "states": states, "dark": dark_colours()}),
        library=library,
        script=script,
    )


def _has_slider(contents: ViewJson) -> bool:
    curves = contents.get("curves")
    return bool(curves and len(curves["capacities"]) > 1 and contents["fit"]["occupancy"]["steps"])


def _has_scores(contents: ViewJson) -> bool:
    scores = contents.get("scores")
    return bool(scores and scores["cells"])


def _charts(contents: ViewJson) -> dict[str, Any]:
    """Return an option and a height per chart, by the id of its place in the page."""
    fit, budget = contents["fit"], contents["fit"]["verdict"]["budget_bytes"]
    charts = {
        "memory": (occupancy_chart(fit["occupancy"]), OCCUPANCY_HEIGHT),
        "policies": (policy_bars(fit["comparison"]), bars_height(fit["comparison"])),
    }
    if contents.get("curves"):
        charts["curves"] = curves_chart(contents["curves"], budget), CURVES_HEIGHT
        charts["misses"] = curves_chart(contents["curves"], budget, measure="miss_ratio"), CURVES_HEIGHT
    if contents.get("timeline"):
        charts["timeline"] = timeline_chart(contents["timeline"]), TIMELINE_HEIGHT
    if _has_scores(contents):
        charts["scores"] = _as_scatter(heatmap_chart(contents["scores"])), HEATMAP_HEIGHT
    return {
        name: {"option": option, "height": height if option["series"] else MESSAGE_HEIGHT}
        for name, (option, height) in charts.items()
    }


def _as_scatter(heatmap: dict[str, Any]) -> dict[str, Any]:
    """Return a heatmap as squares of a scatter chart: the page's ECharts has no heatmaps.

    The page's script gives them the size of a cell.
    """
    for series in heatmap["series"]:
        series |= {"type": "scatter", "symbol": "rect", "cells": True}
        for cell in series["data"]:
            cell["itemStyle"] = {"color": heatmap_colour(cell["value"][-1]), "opacity": 1}
    return {name: part for name, part in heatmap.items() if name != "visualMap"}


def _body(contents: ViewJson, states: Sequence[ViewJson]) -> list[str]:
    fit = contents["fit"]
    budget, per = format_budget(fit["verdict"]["budget_bytes"]), fit["comparison"]["per"]
    parts = [*_header(contents), *_slider(states)]
    memory = tables.at_peak(fit["occupancy"], contents.get("largest") or [])
    legend = _legend("at the peak:", occupancy_legend(fit["occupancy"]))
    parts += _section("memory", "What fills the memory, step by step", legend, memory)
    parts.append('<div class="pair">')
    bars = f"What <span data-budget>{budget}</span> makes you move, per {escape(per)}"
    parts += _section("policies", bars, "", tables.policies(fit["comparison"]))
    curves = contents.get("curves")
    if curves:
        legend = _curves_legend(curves, "moved")
        parts += _section("curves", "What more memory would buy", legend, tables.curves(curves))
    parts.append("</div>")
    if curves:
        legend = _curves_legend(curves, "miss_ratio")
        parts += _section("misses", "Misses over the size of memory", legend, tables.misses(curves))
    timeline = contents.get("timeline")
    if timeline:
        title = f"Transfers against compute, in {budget}"
        parts += _section("timeline", title, _busy(timeline), tables.timeline(timeline))
    if _has_scores(contents):
        ends = [{"label": label, "text": "", "colour": colour} for label, colour in _SCORE_COLOURS]
        table = tables.scores(contents["scores"])
        parts += _section("scores", "Eviction scores and reuse", _legend("", ends), table)
    return [*parts, *_footer(contents)]


def _header(contents: ViewJson) -> list[str]:
    verdict = contents["fit"]["verdict"]
    headline = _with_fixed_units(escape(verdict["headline"]))
    if verdict["short_bytes"] > 0:
        # The last sentence of a headline says how much is missing.
        first, _, last = headline.rpartition(". ")
        headline = f'{first}{". " if first else ""}<span class="short">{last}</span>'
    parts = [
        "<header>",
        f"<h1>{headline}</h1>",
        f'<p class="sentence">{_with_fixed_units(escape(verdict["sentence"]))}</p>',
    ]
    title = contents.get("title")
    if title and title != verdict["headline"]:
        parts.insert(1, f'<p class="about">{escape(title)}</p>')
    notes = contents["fit"]["comparison"].get("notes") or [] if verdict["short_bytes"] > 0 else []
    return [*parts, *(f'<p class="note">{escape(note)}</p>' for note in notes), "</header>"]


def _with_fixed_units(text: str) -> str:
    """Return ``text`` with a no-break space between every number and its unit."""
    return re.sub(r"(\d) (B|[kMGTP]B)\b", "\\1\N{NO-BREAK SPACE}\\2", text)


def _slider(states: Sequence[ViewJson]) -> list[str]:
    if not states:
        return []
    at = next(index for index, one in enumerate(states) if one.get("given"))
    return [
        '<div class="what-if" hidden>',
        f'<label for="budget">Try another budget: <output for="budget" data-budget>'
        f"{escape(states[at]['budget'])}</output></label>",
        f'<input type="range" id="budget" min="0" max="{len(states) - 1}" value="{at}" step="1" '
        f'aria-valuetext="{escape(states[at]["budget"])}">',
        f'<p id="what-if" aria-live="polite">{escape(states[at]["text"])}</p>',
        '<button type="button" id="back" disabled>back to the budget asked for</button>',
        "</div>",
    ]


def _section(name: str, title: str, above: str, table: str) -> list[str]:
    """Return a chart's place; ``title``, ``above`` and ``table`` are HTML."""
    return [
        f'<section aria-labelledby="{name}-title">',
        f'<h2 id="{name}-title">{title}</h2>',
        above,
        f'<div class="chart" id="{name}"></div>',
        f"<details><summary>The numbers</summary>{table}</details>",
        "</section>",
    ]


def _legend(lead: str, rows: Sequence[Mapping[str, str]]) -> str:
    items = "".join(
        f'<li><i style="background:{_swatch(row["colour"])}"></i>{escape(row["label"])} '
        f"<b{' data-short' if row['colour'] == LIGHT.excess else ''}>{escape(row['text'])}</b></li>"
        for row in rows
    )
    if not rows:
        return ""
    return f'<ul class="legend">{f"<li>{escape(lead)}</li>" if lead else ""}{items}</ul>'


def _curves_legend(curves: ViewJson, measure: Measure) -> str:
    return _legend("", curves_legend(curves, measure=measure) if len(curves["capacities"]) > 1 else [])


def _swatch(colour: str) -> str:
    """Return a colour for the page's style, which follows the theme where the colour does."""
    follows = {LIGHT.excess: "var(--short)", LIGHT.least: "var(--least)", LIGHT.best: "var(--accent)"}
    return follows.get(colour, escape(colour))


def _busy(timeline: ViewJson) -> str:
    text = timeline.get("sentence") or ""
    if timeline.get("left_out"):
        merged = format_count(timeline["left_out"])
        text += f" Where {merged} more lie too close together to be drawn, colours are paler."
    return f"<p>{escape(text)}</p>"


def _footer(contents: ViewJson) -> list[str]:
    facts = contents.get("facts") or []
    verdict = contents["fit"]["verdict"]
    lines = [*facts, f"the largest operation alone needs {format_size(verdict['floor_bytes'])}"]
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return [
        "<noscript><p>The charts and the slider need JavaScript; the numbers above do not.</p></noscript>",
        f"<footer><ul>{items}</ul><p>Made by Accelera; charts drawn by Apache ECharts, "
        "which is part of this file under the Apache License 2.0.</p></footer>",
    ]


def _variables() -> str:
    """Return the colours of the page as CSS variables, those of the charts."""

    def of(theme: Theme) -> str:
        return (
            f"--background:{theme.background};--ink:{theme.ink};--muted:{theme.muted};--line:{theme.grid};"
            f"--band:{theme.bands[1]};--short:{theme.excess};--accent:{theme.best};--least:{theme.least}"
        )

    return f":root{{{of(LIGHT)}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{of(DARK)}}}}}\n"


def _content_policy(*scripts: str) -> str:
    """Return the rule by which a browser runs nothing but ``scripts`` and loads nothing."""
    hashes = (base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts)
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:"


def _json(value: Any) -> str:
    """Return JSON that cannot end the element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(*path: str) -> str:
    return files("accelera.report").joinpath(*path).read_text(encoding="utf-8")
