"""Transfers against compute over time, and the memory that they fill."""

from __future__ import annotations

from collections.abc import Sequence

from accelera._plotting import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    Scale,
    Theme,
    format_budget,
    format_size,
    round_ticks,
    size_scale,
    theme_of,
    time_scale,
)
from accelera.charts.parts import (
    Option,
    base,
    cut,
    hover,
    message,
    plate,
    tooltip,
    upright_axis,
    value_axis,
)
from accelera.units import format_seconds
from accelera.views._internal import ViewJson

TIMELINE_HEIGHT = 420
COLOURS = {"compute": BLUE, "load": ORANGE, "store": GREEN}
SLOWER = PURPLE
"""Colour of what moves between the slower tiers."""
PALEST = 0.25
"""Opacity of spans that are nearly empty."""
LANE_TOP, LANES, MEMORY_TOP, BOTTOM = 12, 132, 196, 52


def timeline_chart(timeline: ViewJson, theme: str = "light") -> Option:
    """Return lanes of computing, loading and storing over time, the memory below, as an option of ECharts.

    Parameters
    ----------
    timeline
        The JSON of the view: ``seconds busy lanes occupancy budget_bytes``, times in seconds; ``begin`` and
        ``end`` if not all of it is shown.
    theme
        ``"light"`` or ``"dark"``.
    """
    look = theme_of(theme)
    lanes = [lane for lane in timeline["lanes"] if lane["spans"] or lane["name"] == "compute"]
    if not timeline["seconds"] or not any(lane["spans"] for lane in lanes):
        return message(look, "Nothing takes time here: the trace has no durations, and nothing is moved.")
    begin, end = timeline.get("begin", 0.0), timeline.get("end", timeline["seconds"])
    time = time_scale(end)
    shown = round(begin / time.factor, time.decimals + 2), round(end / time.factor, time.decimals + 2)
    option = base(look, _description(timeline)) | {
        "grid": [
            {"left": 84, "right": 18, "top": LANE_TOP, "height": LANES},
            {"left": 84, "right": 18, "top": MEMORY_TOP, "bottom": BOTTOM},
        ],
        "tooltip": tooltip(look, trigger="item"),
        "xAxis": [_time_axis(look, shown, "", 0), _time_axis(look, shown, f"time, {time.unit}", 1)],
        "yAxis": [_lane_axis(look, timeline, lanes), _hidden_axis(len(lanes))],
        "series": [_lane(lane, row, time, _busy_share(lane, timeline)) for row, lane in enumerate(lanes)],
    }
    _add_memory(option, timeline, time, look)
    return option


def _description(timeline: ViewJson) -> str:
    busy = timeline["busy"]
    parts = ", ".join(f"{name} {format_seconds(busy[name])}" for name in busy)
    waiting = format_seconds(timeline["waiting_seconds"])
    return f"In {format_seconds(timeline['seconds'])} busy for {parts}; waiting for data {waiting}."


def _time_axis(theme: Theme, shown: tuple[float, float], name: str, grid: int) -> Option:
    begin, end = shown
    ticks = round_ticks(begin, end, 6)
    axis = value_axis(theme, name, min=begin, max=end, interval=ticks.interval, gridIndex=grid)
    axis["axisLabel"] |= {"showMaxLabel": end == ticks.high, "showMinLabel": begin == ticks.low}
    if not grid:
        axis["axisLabel"] = {"show": False}
    return axis


def _lane_axis(theme: Theme, timeline: ViewJson, lanes: Sequence[ViewJson]) -> Option:
    total = timeline["seconds"]
    labels = [
        f"{{name|{lane['name']}}}\n{{note|{timeline['busy'].get(lane['name'], 0) / total:.0%} busy}}"
        for lane in lanes
    ]
    rich = {
        "name": {"color": theme.ink, "fontSize": 13, "align": "right", "lineHeight": 17},
        "note": {"color": theme.muted, "fontSize": 11, "align": "right", "lineHeight": 14},
    }
    return {
        "type": "category",
        "gridIndex": 0,
        "inverse": True,
        "data": labels,
        "axisLabel": {"interval": 0, "rich": rich, "margin": 8},
        "axisTick": {"show": False},
        "axisLine": {"lineStyle": {"color": theme.grid}},
    }


def _hidden_axis(lanes: int) -> Option:
    """Return the axis by which spans have a height: lanes are 1 apart."""
    return {"type": "value", "gridIndex": 0, "inverse": True, "min": 0, "max": lanes, "show": False}


def _busy_share(lane: ViewJson, timeline: ViewJson) -> float:
    """Return the share of the drawn spans in which a lane is busy: under 1 where many are drawn as one."""
    drawn = sum(span["end"] - span["begin"] for span in lane["spans"])
    whole = not timeline.get("begin") and timeline.get("end", timeline["seconds"]) >= timeline["seconds"]
    if not drawn or not whole:
        return 1.0
    return float(min(max(timeline["busy"].get(lane["name"], drawn) / drawn, PALEST), 1.0))


def _lane(lane: ViewJson, row: int, time: Scale, opacity: float) -> Option:
    """Return a lane: each span is an area of its own, with its own text at the pointer."""
    colour = COLOURS.get(lane["name"], SLOWER)
    return {
        "type": "line",
        "name": lane["name"],
        "xAxisIndex": 0,
        "yAxisIndex": 1,
        "symbol": "none",
        "data": [],
        "markArea": {
            "itemStyle": {"color": colour, "opacity": round(opacity, 2)},
            "label": {"show": False},
            "emphasis": {"label": {"show": False}},
            "data": [_span(span, lane["name"], row, time) for span in lane["spans"]],
        },
    }


def _span(span: ViewJson, lane: str, row: int, time: Scale) -> list[Option]:
    length = format_seconds(span["end"] - span["begin"])
    lines = [f"{lane}: {cut(str(span['label']))}", f"{length} from {format_seconds(span['begin'])} on"]
    if span.get("bytes"):
        lines.insert(1, format_size(span["bytes"]))
    digits = time.decimals + 2
    begin, end = (round(span[at] / time.factor, digits) for at in ("begin", "end"))
    text = {"formatter": hover("\n".join(lines))}
    return [{"xAxis": begin, "yAxis": row + 0.18, "tooltip": text}, {"xAxis": end, "yAxis": row + 0.82}]


def _add_memory(option: Option, timeline: ViewJson, time: Scale, theme: Theme) -> None:
    """Add what is resident over time below the lanes, with the budget."""
    resident = timeline["occupancy"]
    budget = timeline.get("budget_bytes")
    top = max(max(resident["bytes"], default=0), budget or 0) * 1.12
    scale = size_scale(top)
    ticks = round_ticks(0, top / scale.factor, 4)
    title = f"{scale.unit} in memory"
    option["yAxis"].append(
        upright_axis(theme, title, min=0, max=ticks.high, interval=ticks.interval, gridIndex=1)
    )
    seconds = [round(one / time.factor, time.decimals + 2) for one in resident["seconds"]]
    series: Option = {
        "type": "line",
        "name": "in memory",
        "xAxisIndex": 1,
        "yAxisIndex": 2,
        "step": "end",
        "symbol": "none",
        "data": [list(row) for row in zip(seconds, scale.all_of(resident["bytes"]), strict=True)],
        "lineStyle": {"width": 1.5, "color": theme.muted},
        "itemStyle": {"color": theme.muted},
        "areaStyle": {"color": theme.plain, "opacity": 0.45},
        "tooltip": {"valueFormatter": scale.printf},
        "emphasis": {"disabled": True},
    }
    if budget:
        series["markLine"] = {
            "silent": True,
            "symbol": "none",
            "lineStyle": {"color": theme.ink, "width": 2, "type": "solid"},
            "label": plate(
                theme, position="insideEndTop", formatter=f"budget {format_budget(budget)}", distance=3
            ),
            "data": [{"yAxis": budget / scale.factor}],
        }
    option["series"].append(series)
