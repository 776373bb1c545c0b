"""The numbers of the charts as HTML tables, for readers who cannot see them and for those who want digits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from accelera._plotting import format_count, format_share, format_size
from accelera.charts._internal import distance_class_of
from accelera.units import format_seconds
from accelera.views._internal import ViewJson, policy_label

COLUMNS = 8
"""Budgets in the table of curves."""
TOP = 20
"""Tensors in the table of scores."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """Return a table of texts, the first column being its rows' names."""
    titles = "".join(f'<th scope="col">{escape(one)}</th>' for one in head)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(one)}</td>" for one in row[1:])
        + "</tr>"
        for row in rows
    )
    caption_html = f"<caption>{escape(caption)}</caption>" if caption else ""
    name = escape(caption or "The numbers")
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{name}"><table>'
        f"{caption_html}<thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def at_peak(occupancy: ViewJson, largest: Sequence[ViewJson]) -> str:
    """Return what is alive at the peak by role, and the largest tensors of it."""
    peak = occupancy["peak"]
    labels = {one["role"]: str(one["label"]) for one in occupancy["roles"]}
    total = max(peak["bytes"], 1)
    by_role = [
        [labels.get(role, role), format_size(size), format_share(size / total)]
        for role, size in peak["roles"].items()
    ]
    during = f" (operation {format_count(peak['step'])}, {peak['op']})" if peak.get("op") else ""
    html = table(("role", "bytes", "share"), by_role, f"At the peak of {format_size(peak['bytes'])}{during}")
    if largest:
        rows = [[str(one["name"]), one["role"] or "–", format_size(one["size_bytes"])] for one in largest]
        html += table(("tensor", "role", "bytes"), rows, "The largest tensors alive then")
    return html


def policies(comparison: ViewJson) -> str:
    """Return what each policy moves and how long it takes."""
    per = comparison["per"]
    rows = [
        [
            str(one["label"]),
            format_size(one["moved_bytes"]),
            format_seconds(one["seconds"]),
            format_share(one["hit_ratio"]),
            format_count(one["evictions"]),
            "yes" if one["needs_schedule"] else "no",
        ]
        for one in comparison["policies"]
    ]
    head = ("policy", f"moved per {per}", f"time per {per}", "hits", "evictions", "needs the schedule")
    return table(
        head, rows, f"Figures per {per}, without the first load; hits and evictions of the whole trace"
    )


def curves(view: ViewJson) -> str:
    """Return bytes moved per policy at a few of the budgets."""
    shown = _column_indices(view)
    rows = [
        [policy_label(name), *(format_size(moved[at]) for at in shown)]
        for name, moved in view["moved"].items()
    ]
    if view.get("least"):
        rows.append(["least possible", *(format_size(view["least"][at]) for at in shown)])
    head = ("memory", *(format_size(view["capacities"][at]) for at in shown))
    return table(head, rows, f"Bytes moved per {view['per']}, without the first load")


def misses(view: ViewJson) -> str:
    """Return the share of accesses that miss per policy, at a few of the budgets."""
    shown = _column_indices(view)
    rows = [
        [policy_label(name), *(format_share(ratio[at]) for at in shown)]
        for name, ratio in view["miss_ratio"].items()
    ]
    head = ("memory", *(format_size(view["capacities"][at]) for at in shown))
    return table(head, rows, "Misses, share of all accesses; the first access to a tensor is one")


def _column_indices(view: ViewJson) -> list[int]:
    """Return the indices of at most ``COLUMNS`` capacities, evenly spread."""
    count = len(view["capacities"])
    places: list[int] = np.unique(np.linspace(0, count - 1, min(COLUMNS, count)).astype(int)).tolist()
    return places


def scores(view: ViewJson) -> str:
    """Return the tensors with the highest scores among those of the picture."""
    best: dict[int, ViewJson] = {}
    for cell in sorted(view["cells"], key=lambda cell: -cell["score"]):
        best.setdefault(cell["tensor"], cell)
    rows = [
        [
            str(view["tensors"][tensor]),
            distance_class_of(cell["row"]),
            f"{cell['score']:.3f}",
            format_count(cell["accesses"]),
        ]
        for tensor, cell in list(best.items())[:TOP]
    ]
    return table(("tensor", "reuse distance", "score", "accesses"), rows, f"The {len(rows)} highest scores")


def timeline(view: ViewJson) -> str:
    """Return how long each lane is busy."""
    seconds = view["seconds"] or 1
    rows = [[name, format_seconds(busy), format_share(busy / seconds)] for name, busy in view["busy"].items()]
    rows.append(
        ["waiting", format_seconds(view["waiting_seconds"]), format_share(view["waiting_seconds"] / seconds)]
    )
    return table(("lane", "busy", "share of the time"), rows, f"In {format_seconds(view['seconds'])}")
