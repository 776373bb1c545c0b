"""Bytes moved per policy, side by side, beside the least possible."""

from __future__ import annotations

from collections.abc import Sequence

from accelera._plotting import (
    Scale,
    Theme,
    format_share,
    format_size,
    round_ticks,
    size_scale,
    theme_of,
)
from accelera.charts.parts import (
    SMALL,
    TEXT,
    Option,
    base,
    cut,
    hover,
    letters,
    message,
    tooltip,
    value_axis,
    verbatim,
)
from accelera.units import format_seconds
from accelera.views._internal import ViewJson

ROW = 44
"""Pixels per policy."""
AROUND = 108
"""Pixels above and below the bars."""


def bars_height(comparison: ViewJson) -> int:
    """Return the pixels that ``policy_bars`` is laid out for."""
    return AROUND + ROW * max(len(comparison["policies"]), 2)


def policy_bars(comparison: ViewJson, theme: str = "light") -> Option:
    """Return the bytes that each policy moves as an option of ECharts: bars, the best one coloured.

    Parameters
    ----------
    comparison
        The JSON of the view: ``per policies first_load_bytes least_bytes``, sizes in bytes, fewest first.
    theme
        ``"light"`` or ``"dark"``.
    """
    look = theme_of(theme)
    policies = comparison["policies"]
    if not policies:
        return message(look, "No policy was replayed: choose at least one.")
    largest = max(max(one["moved_bytes"] for one in policies), comparison.get("least_bytes") or 0)
    if not largest:
        return message(look, "Everything stays in memory: no policy has to move anything.")
    scale = size_scale(largest)
    # Room to the right of the longest bar for its number.
    ticks = round_ticks(0, largest / scale.factor * 1.24, 5)
    title = f"{scale.unit} moved per {comparison['per']}"
    loaded = comparison.get("first_load_bytes")
    if loaded:
        title += f", after a first load of {format_size(loaded)}"
    option = base(look, _description(comparison))
    return option | {
        "grid": {"left": _left(policies), "right": 18, "top": 34, "bottom": 52},
        "tooltip": tooltip(look, trigger="item"),
        "xAxis": value_axis(look, title, min=0, max=ticks.high, interval=ticks.interval)
        | {"axisLine": {"show": False}},
        "yAxis": _names(policies, look),
        "series": [_bars(comparison, scale, ticks.high, look)],
    }


def _description(comparison: ViewJson) -> str:
    parts = [f"{one['label']} {format_size(one['moved_bytes'])}" for one in comparison["policies"]]
    least = comparison.get("least_bytes")
    end = "" if least is None else f"; the least possible is {format_size(least)}"
    return f"Bytes moved per {comparison['per']}: {', '.join(parts)}{end}."


def _label(policy: ViewJson) -> str:
    note = "\nneeds the schedule" if policy.get("needs_schedule") else ""
    return f"{cut(str(policy['label']), 16)}{note}"


def _left(policies: Sequence[ViewJson]) -> int:
    names = max(len(cut(str(one["label"]), 16)) for one in policies) * 7.4
    notes = 102 if any(one.get("needs_schedule") for one in policies) else 0
    return int(max(names, notes)) + 16


def _names(policies: Sequence[ViewJson], theme: Theme) -> Option:
    labels = [
        {"value": f"{{name|{verbatim(name)}}}" + (f"\n{{note|{note}}}" if note else "")}
        for name, _, note in (_label(one).partition("\n") for one in policies)
    ]
    rich = {
        "name": {"color": theme.ink, "fontSize": 13, "align": "right", "lineHeight": 17},
        "note": {"color": theme.muted, "fontSize": SMALL, "align": "right", "lineHeight": 14},
    }
    return {
        "type": "category",
        "inverse": True,
        "data": labels,
        "axisLabel": {"interval": 0, "margin": 8, "rich": rich},
        "axisLine": {"lineStyle": {"color": theme.grid}},
        "axisTick": {"show": False},
    }


def _bars(comparison: ViewJson, scale: Scale, high: float, theme: Theme) -> Option:
    series: Option = {
        "type": "bar",
        "barWidth": "58%",
        "itemStyle": {"borderRadius": [0, 4, 4, 0]},
        "emphasis": {"disabled": True},
        "data": [
            _bar(one, comparison["per"], scale, theme, best=not index)
            for index, one in enumerate(comparison["policies"])
        ],
    }
    least = comparison.get("least_bytes")
    if least is not None:
        series["markLine"] = _least(least, scale, high, theme)
    return series


def _bar(policy: ViewJson, per: str, scale: Scale, theme: Theme, *, best: bool) -> Option:
    text = format_size(policy["moved_bytes"])
    label = {
        "show": True,
        "position": "right",
        "formatter": verbatim(text),
        "color": theme.ink,
        **letters(TEXT),
        "fontWeight": "bold" if best else "normal",
    }
    lines = [f"{cut(str(policy['label']))}: {text} moved per {per}"]
    if policy.get("seconds") is not None:
        lines.append(f"{format_seconds(policy['seconds'])} per {per}")
    if policy.get("hit_ratio") is not None:
        lines.append(f"{format_share(policy['hit_ratio'])} of the accesses found their tensor there")
    if policy.get("needs_schedule"):
        lines.append("must know the order of accesses beforehand")
    return {
        "value": scale.of(policy["moved_bytes"]),
        "itemStyle": {"color": theme.best if best else theme.plain},
        "label": label,
        "tooltip": {"formatter": hover("\n".join(lines))},
    }


def _least(least: int, scale: Scale, high: float, theme: Theme) -> Option:
    at = scale.of(least)
    share = at / high
    # The text stands over the line, inside the chart: it begins at the line near the left edge.
    align = "left" if share < 0.3 else "right" if share > 0.75 else "center"
    return {
        "silent": True,
        "symbol": "none",
        "lineStyle": {"color": theme.least, "width": 2, "type": "solid"},
        "label": {
            "position": "start",
            "formatter": f"least possible {format_size(least)}",
            "color": theme.least,
            "fontWeight": "bold",
            **letters(TEXT),
            "align": align,
        },
        "data": [{"xAxis": at}],
    }
