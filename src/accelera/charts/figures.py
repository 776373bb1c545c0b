"""The charts as files: the same options, drawn by matplotlib without a browser."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from accelera._extras import needed_for
from accelera._plotting import Theme, theme_of
from accelera.charts.curves import CURVES_HEIGHT, curves_chart, curves_legend
from accelera.charts.figure_marks import draw_series
from accelera.charts.heatmap import HEATMAP_HEIGHT, heatmap_chart
from accelera.charts.occupancy import OCCUPANCY_HEIGHT, occupancy_chart, occupancy_legend
from accelera.charts.parts import Option, unstyled
from accelera.charts.policies import bars_height, policy_bars
from accelera.charts.timeline import TIMELINE_HEIGHT, timeline_chart
from accelera.errors import ArgumentError

Kind = Literal["occupancy", "policies", "curves", "timeline", "heatmap"]
Format = Literal["png", "svg"]

WIDTH, HEAD = 900, 76
"""Pixels across, and above the chart for title and legend."""
PIXELS_PER_INCH = 100
SHARPNESS = 2
"""Pixels of a PNG per pixel of the layout."""
TITLES: Mapping[str, str] = {
    "occupancy": "What fills the memory, step by step",
    "policies": "What each policy moves",
    "curves": "What more memory would buy",
    "timeline": "Transfers against compute",
    "heatmap": "Eviction scores",
}
_CHARTS: Mapping[str, tuple[Callable[..., Option], Callable[[Any], int]]] = {
    "occupancy": (occupancy_chart, lambda _: OCCUPANCY_HEIGHT),
    "policies": (policy_bars, bars_height),
    "curves": (curves_chart, lambda _: CURVES_HEIGHT),
    "timeline": (timeline_chart, lambda _: TIMELINE_HEIGHT),
    "heatmap": (heatmap_chart, lambda _: HEATMAP_HEIGHT),
}
_LEGENDS: Mapping[str, Callable[..., list[dict[str, str]]]] = {
    "occupancy": occupancy_legend,
    "curves": curves_legend,
}


def figure_bytes(
    view: Any,
    kind: Kind,
    format: Format = "png",
    theme: str = "light",
    *,
    budget_bytes: int | None = None,
    title: str | None = None,
) -> bytes:
    """Return a chart as a PNG or SVG file.

    Parameters
    ----------
    view
        The JSON of the view that ``kind`` draws; for ``"heatmap"`` scored accesses.
    theme
        ``"light"`` or ``"dark"``.
    budget_bytes
        For ``"curves"``: where ``you`` are.
    title
        Above the chart; a general one by default.

    Raises
    ------
    BackendMissingError
        matplotlib is absent.
    ValueError
        No such kind, format or theme.
    """
    if kind not in _CHARTS:
        raise ArgumentError(f"[figure] {kind!r} is no chart; take one of {', '.join(_CHARTS)}")
    if format not in ("png", "svg"):
        raise ArgumentError(f"[figure] {format!r} is no format; take 'png' or 'svg'")
    make, height = _CHARTS[kind]
    palette = theme_of(theme)
    extra = {"budget_bytes": budget_bytes} if kind == "curves" else {}
    option = make(view, theme=theme, **extra)
    legend = _LEGENDS[kind](view, theme) if kind in _LEGENDS and option["series"] else []
    return _render(option, (title or TITLES[kind], legend), height(view), format, palette)


def _render(
    option: Option, head: tuple[str, Sequence[Mapping[str, str]]], height: int, format: str, theme: Theme
) -> bytes:
    with needed_for("figure", "or take the charts in a report"):
        import matplotlib as mpl
        from matplotlib.figure import Figure

    # Names may hold dollar signs, which are no formulas, and characters that no font here has.
    settings: Any = {"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "accelera"}
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        total = height + HEAD
        size = (WIDTH / PIXELS_PER_INCH, total / PIXELS_PER_INCH)
        figure = Figure(figsize=size, dpi=PIXELS_PER_INCH, facecolor=theme.background)
        _write_head(figure, *head, total, theme)
        _draw_option(figure, option, height, theme)
        file = io.BytesIO()
        dots = PIXELS_PER_INCH * SHARPNESS if format == "png" else PIXELS_PER_INCH
        figure.savefig(file, format=format, dpi=dots, metadata={"Date": None} if format == "svg" else None)
    return file.getvalue()


def _write_head(
    figure: Any, title: str, legend: Sequence[Mapping[str, str]], height: int, theme: Theme
) -> None:
    figure.text(14 / WIDTH, 1 - 24 / height, title, size=13, weight="bold", color=theme.ink, va="center")
    if not legend:
        return
    from matplotlib.patches import Patch

    handles = [
        Patch(color=row["colour"], label=f"{row['label']}  {row['text']}".rstrip()) for row in legend[:8]
    ]
    figure.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=(6 / WIDTH, 1 - 54 / height),
        ncols=min(len(handles), 5),
        frameon=False,
        fontsize=8.5,
        labelcolor=theme.ink,
        handlelength=0.9,
        handleheight=0.9,
        handletextpad=0.5,
        columnspacing=1.2,
    )


def _draw_option(figure: Any, option: Option, height: int, theme: Theme) -> None:
    total = height + HEAD
    if not option["series"]:
        figure.text(0.5, 0.45, option["title"]["text"], ha="center", size=11, color=theme.muted)
        return
    grids = option["grid"] if isinstance(option["grid"], list) else [option["grid"]]
    x_axes = option["xAxis"] if isinstance(option["xAxis"], list) else [option["xAxis"]]
    y_axes = option["yAxis"] if isinstance(option["yAxis"], list) else [option["yAxis"]]
    # The fonts here are wider than a browser's.
    extra = 24 if any(one["type"] == "category" for one in y_axes) else 0
    planes = []
    for index, grid in enumerate(grids):
        bottom = grid.get("bottom", height - grid["top"] - grid.get("height", 0))
        plot_height = height - grid["top"] - bottom
        left = grid["left"] + extra
        width = WIDTH - left - grid["right"]
        axes = figure.add_axes((left / WIDTH, bottom / total, width / WIDTH, plot_height / total))
        axes.set_facecolor("none")
        x = next(one for one in x_axes if one.get("gridIndex", 0) == index)
        y = next(one for one in y_axes if one.get("gridIndex", 0) == index)
        _style_axes(axes, x, y, (width, plot_height), theme)
        planes.append(axes)
    for series in option["series"]:
        draw_series(planes[series.get("xAxisIndex", 0)], series, option, theme)


def _style_axes(axes: Any, x: Option, y: Option, size: tuple[int, int], theme: Theme) -> None:
    """Give a plane its axes: limits, ticks, titles, lines."""
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0, labelsize=9, labelcolor=theme.muted)
    axes.set_axisbelow(True)
    for axis, name in ((x, "x"), (y, "y")):
        if axis["type"] == "category":
            _categories(axes, axis, name, theme)
        else:
            _numbers(axes, axis, name, theme)
    if x.get("name"):
        axes.set_xlabel(x["name"], size=9, color=theme.muted, labelpad=6)
    if y.get("name"):
        gap = y.get("nameGap", 10)
        axes.text(0, 1 + gap / size[1], y["name"], size=9, color=theme.muted, transform=axes.transAxes)


def _numbers(axes: Any, axis: Option, name: str, theme: Theme) -> None:
    low, high, interval = axis["min"], axis["max"], axis["interval"]
    ticks = [low + index * interval for index in range(int((high - low) / interval + 1e-6) + 1)]
    shown = axis["axisLabel"].get("show", True)
    labels = [f"{round(tick, 9):,.12g}" if shown else "" for tick in ticks]
    getattr(axes, f"set_{name}lim")(low, high)
    getattr(axes, f"set_{name}ticks")(ticks, labels)
    if axis.get("splitLine", {}).get("show", True):
        axes.grid(axis=name, color=theme.grid, linewidth=0.8)


def _categories(axes: Any, axis: Option, name: str, theme: Theme) -> None:
    labels = [unstyled(one["value"] if isinstance(one, dict) else one) for one in axis["data"]]
    limits = (-0.5, len(labels) - 0.5)
    getattr(axes, f"set_{name}lim")(*(limits[::-1] if axis.get("inverse") else limits))
    rotation = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if name == "x" else {}
    getattr(axes, f"set_{name}ticks")(range(len(labels)), labels, color=theme.ink, **rotation)
    if name == "x" and len(labels) > 20:
        axes.tick_params(axis="x", labelsize=7)
