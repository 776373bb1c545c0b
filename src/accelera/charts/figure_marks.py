"""Series of an option drawn by matplotlib: the lines, areas, bars, cells and marks that the charts use."""

from __future__ import annotations

from typing import Any

import numpy as np

from accelera._plotting import Theme
from accelera.charts.parts import Option

POINTS = 0.72
"""Points per pixel, at a hundred pixels per inch."""
_DASHES = {"solid": "-", "dashed": "--", "dotted": ":"}


def draw_series(axes: Any, series: Option, option: Option, theme: Theme) -> None:
    """Draw one series with its marks."""
    draw = {"line": _line, "bar": _bars, "heatmap": _cells}[series["type"]]
    for area in series.get("markArea", {}).get("data", []):
        _area(axes, area, series["markArea"])
    draw(axes, series, option, theme)
    lines = series.get("markLine", {})
    for line in lines.get("data", []):
        _mark_line(axes, line, lines)
    for point in series.get("markPoint", {}).get("data", []):
        _mark_point(axes, point)


def _line(axes: Any, series: Option, _: Option, __: Theme) -> None:
    rows = series["data"]
    if not rows:
        return
    x, y = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    stepped = "step" in series
    area = series.get("areaStyle")
    if area:
        axes.fill_between(
            x,
            y,
            area.get("origin", 0),
            step="post" if stepped else None,
            color=area.get("color"),
            alpha=area.get("opacity", 1),
            linewidth=0,
        )
    style = series["lineStyle"]
    if style["width"]:
        kind = style.get("type", "solid")
        dashes = _DASHES[kind] if isinstance(kind, str) else (0, tuple(kind))
        axes.plot(
            x,
            y,
            color=style.get("color"),
            linewidth=style["width"] * POINTS,
            linestyle=dashes,
            drawstyle="steps-post" if stepped else "default",
            zorder=series.get("z", 2),
        )


def _bars(axes: Any, series: Option, _: Option, __: Theme) -> None:
    for row, bar in enumerate(series["data"]):
        axes.barh(row, bar["value"], height=0.58, color=bar["itemStyle"]["color"])
        label = bar["label"]
        axes.annotate(
            label["formatter"],
            (bar["value"], row),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            size=9,
            weight=label["fontWeight"],
            color=label["color"],
        )


def _cells(axes: Any, series: Option, option: Option, theme: Theme) -> None:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    scale = option["visualMap"]
    colours = LinearSegmentedColormap.from_list("scores", scale["inRange"]["color"])
    for cell in series["data"]:
        x, y, _, rank = cell["value"]
        patch = Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colours(rank), edgecolor=theme.background)
        axes.add_patch(patch)
    first, last = scale["text"][1], scale["text"][0]
    bar = axes.inset_axes((0.8, 1.05, 0.12, 0.035))
    bar.imshow(np.linspace(0, 1, 64)[None], aspect="auto", cmap=colours)
    bar.set_axis_off()
    for text, place, side in ((first, 0.79, "right"), (last, 0.93, "left")):
        axes.text(
            place, 1.05, text, ha=side, va="bottom", size=9, color=theme.muted, transform=axes.transAxes
        )


def _area(axes: Any, area: list[Option], common: Option) -> None:
    begin, end = area
    style = begin.get("itemStyle") or common["itemStyle"]
    if "yAxis" in begin:
        height = begin["yAxis"], end["yAxis"]
        # The lanes' labels are categories, whose middles are whole numbers here.
        low, high = height[0] - 0.5, height[1] - 0.5
        axes.broken_barh(
            [(begin["xAxis"], end["xAxis"] - begin["xAxis"])],
            (low, high - low),
            color=style["color"],
            alpha=style.get("opacity", 1),
            linewidth=0,
        )
        return
    axes.axvspan(begin["xAxis"], end["xAxis"], color=style["color"], linewidth=0, zorder=0)
    label = begin["label"]
    if label["show"]:
        axes.text(
            (begin["xAxis"] + end["xAxis"]) / 2,
            0.985,
            label["formatter"],
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="top",
            size=8,
            color=label["color"],
        )


def _mark_line(axes: Any, line: Option, common: Option) -> None:
    style, label = common.get("lineStyle", {}) | line.get("lineStyle", {}), dict(common.get("label", {}))
    label |= line.get("label", {})
    look = {
        "color": style["color"],
        "linewidth": style["width"] * POINTS,
        "linestyle": _DASHES[style["type"]],
        "zorder": 4,
    }
    text = {"size": 9, "weight": "bold", "color": label["color"], "zorder": 6, "annotation_clip": False}
    if "yAxis" in line:
        axes.axhline(line["yAxis"], **look)
        right = "End" in label["position"]
        axes.annotate(
            label["formatter"],
            (1 if right else 0, line["yAxis"]),
            xycoords=axes.get_yaxis_transform(),
            xytext=(-5 if right else 5, 4),
            textcoords="offset points",
            ha="right" if right else "left",
            va="bottom",
            bbox=_plate(label),
            **text,
        )
        return
    axes.axvline(line["xAxis"], **look)
    axes.annotate(
        label["formatter"],
        (line["xAxis"], 1),
        xycoords=axes.get_xaxis_transform(),
        xytext=(0, label.get("distance", 5) * POINTS),
        textcoords="offset points",
        ha=label["align"],
        va="bottom",
        **text,
    )


def _mark_point(axes: Any, point: Option) -> None:
    label = point["label"]
    colour = point["itemStyle"]["color"]
    if colour != "transparent":
        axes.plot(*point["coord"], "o", color=colour, markersize=point["symbolSize"] * POINTS, zorder=7)
    side = {"left": (-8, "right"), "right": (8, "left")}.get(label["position"], (0, "center"))
    axes.annotate(
        label["formatter"],
        point["coord"],
        xytext=(side[0], 0),
        textcoords="offset points",
        ha=side[1],
        va="center",
        size=9,
        weight=label.get("fontWeight", "normal"),
        style=label.get("fontStyle", "normal"),
        color=label["color"],
        bbox=_plate(label),
        zorder=8,
        annotation_clip=False,
    )


def _plate(label: Option) -> dict[str, Any] | None:
    colour = label.get("backgroundColor")
    return colour and {"boxstyle": "round,pad=0.18", "facecolor": colour, "linewidth": 0}
