"""Bytes moved, or misses, over the size of memory: one line per policy, beside the least possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from accelera._plotting import (
    Box,
    Scale,
    TextSize,
    Theme,
    format_budget,
    place_labels,
    policy_colours,
    round_ticks,
    shown_lines,
    size_scale,
    text_colour,
    theme_of,
)
from accelera.charts.parts import (
    TEXT,
    Option,
    base,
    letters,
    message,
    painted,
    pin,
    pins,
    plate,
    tooltip,
    upright_axis,
    value_axis,
)
from accelera.views._internal import ViewJson, policy_label

Array = NDArray[np.float64]
Measure = Literal["moved", "miss_ratio"]

CURVES_HEIGHT = 340
HEADROOM = 1.1
"""Of the upright axis over the largest value, for the name of a flat line."""
DASHES: tuple[str | list[int], ...] = ("solid", "dashed", "dotted", [8, 3, 2, 3], [3, 3])


def curves_chart(
    curves: ViewJson,
    budget_bytes: int | None = None,
    theme: str = "light",
    *,
    measure: Measure = "moved",
    chosen: Sequence[str] | None = None,
) -> Option:
    """Return what each policy moves over the size of memory as an option of ECharts.

    At most five lines, the best one bold, names beside the lines, the knee and the budget marked; below the
    least possible the area is shaded and says so.

    Parameters
    ----------
    curves
        The JSON of the view: ``per capacities moved miss_ratio least knee_bytes miss_knee_bytes``, sizes in
        bytes.
    budget_bytes
        Budget, marked as ``you``; no mark when absent.
    theme
        ``"light"`` or ``"dark"``.
    measure
        ``"moved"`` bytes, or ``"miss_ratio"`` in percent.
    chosen
        The policies to draw, when not the five that differ most.
    """
    look = theme_of(theme)
    values = curves[measure]
    if len(curves["capacities"]) < 2 or not values:
        return message(look, "This trace needs the same at every size of memory: there is no curve.")
    return _CurvesDrawing(curves, budget_bytes, look, measure, shown_lines(values, chosen)).option()


def budget_mark(
    curves: ViewJson, budget_bytes: int, theme: str = "light", *, measure: Measure = "moved"
) -> Option | None:
    """Return the mark of ``you`` in ``curves_chart``, data of a ``markLine``; None where it is off."""
    return _CurvesDrawing(
        curves, budget_bytes, theme_of(theme), measure, shown_lines(curves[measure])
    ).budget_mark()


def curves_legend(
    curves: ViewJson, theme: str = "light", *, measure: Measure = "moved", chosen: Sequence[str] | None = None
) -> list[dict[str, str]]:
    """Return ``label colour text`` per drawn line, the best first, then the least possible; no texts."""
    names = shown_lines(curves[measure], chosen)
    look = theme_of(theme)
    colours = policy_colours(names, look)
    rows = [{"label": policy_label(name), "colour": colours[name], "text": ""} for name in names]
    if measure == "moved" and curves.get("least"):
        rows.append({"label": "least possible", "colour": look.least, "text": ""})
    return rows


class _CurvesDrawing:
    """Builder of one option of ECharts."""

    def __init__(
        self, curves: ViewJson, budget: int | None, theme: Theme, measure: Measure, names: list[str]
    ) -> None:
        self.curves, self.theme, self.names = curves, theme, names
        self.colours = policy_colours(names, theme)
        self.bytes = measure == "moved"
        values = [np.asarray(curves[measure][name], np.float64) for name in names]
        largest = max(float(one.max()) for one in values)
        self.scale = size_scale(largest) if self.bytes else Scale("%", 0.01, 1)
        self.lines = {name: one / self.scale.factor for name, one in zip(names, values, strict=True)}
        least = curves.get("least") if self.bytes else None
        self.least = None if not least else np.asarray(least, np.float64) / self.scale.factor
        sizes = np.asarray(curves["capacities"], np.float64)
        self.x_scale: Scale = size_scale(float(sizes[-1]))
        self.sizes = sizes / self.x_scale.factor
        self.budget = None if budget is None else budget / self.x_scale.factor
        reach = float(self.sizes[-1])
        if self.budget is not None and self.budget > 1.6 * reach:
            self.budget = None
        self.x = round_ticks(0, max(reach, self.budget or 0), 6)
        knee = curves.get("knee_bytes" if self.bytes else "miss_knee_bytes")
        self.knee = None if not knee else knee / self.x_scale.factor
        self.has_two_marks = self.budget is not None and self.knee is not None
        """Whether budget and knee are both marked: their labels then have a row each, not to overlap."""
        self.y = round_ticks(0, (largest / self.scale.factor or 1.0) * HEADROOM, 8)

    def option(self) -> Option:
        unit = f"{self.scale.unit} moved per {self.curves['per']}" if self.bytes else "misses, % of accesses"
        digits = max(len(f"{tick:g}") for tick in self.y.values)
        x = value_axis(
            self.theme,
            f"memory, {self.x_scale.unit}",
            min=0,
            max=self.x.high,
            interval=self.x.interval,
        )
        y = upright_axis(self.theme, unit, min=0, max=self.y.high, interval=self.y.interval)
        y["nameGap"] = 46 if self.has_two_marks else 30
        return base(self.theme, self._description()) | {
            "grid": {
                "left": 14 + 7 * digits,
                "right": 22,
                "top": 78 if self.has_two_marks else 62,
                "bottom": 52,
            },
            "tooltip": tooltip(
                self.theme,
                trigger="axis",
                valueFormatter=self.scale.printf.replace("%%", "%") if self.bytes else "%.1f %%",
                axisPointer={"label": {"precision": 1, "formatter": f"{{value}} {self.x_scale.unit}"}},
            ),
            "xAxis": x,
            "yAxis": y,
            "series": painted(self._series()),
        }

    def _description(self) -> str:
        what = "Bytes moved" if self.bytes else "Share of misses"
        names = ", ".join(policy_label(name) for name in self.names)
        return f"{what} per {self.curves['per']} over the size of memory, for {names}; the first is best."

    def _series(self) -> list[Option]:
        series = []
        if self.least is not None:
            series.append(self._lower_bound(self.least))
        for index, name in reversed(list(enumerate(self.names))):
            series.append(self._line(name, policy_label(name), index))
        series[-1]["markLine"] = self._marks()
        series[-1]["markPoint"] = pins(self._labels())
        return series

    def _line(self, name: str, label: str, index: int) -> Option:
        colours_before = [self.colours[one] for one in self.names[:index]]
        return {
            "type": "line",
            "name": label,
            "symbol": "none",
            "data": self._rows(self.lines[name]),
            "lineStyle": {
                "width": 3.5 if not index else 2,
                "color": self.colours[name],
                "type": DASHES[colours_before.count(self.colours[name]) % len(DASHES)],
            },
            "itemStyle": {"color": self.colours[name]},
            "emphasis": {"disabled": True},
        }

    def _lower_bound(self, least: Array) -> Option:
        return {
            "type": "line",
            "name": "least possible",
            "symbol": "none",
            "data": self._rows(least),
            "lineStyle": {"width": 1.5, "color": self.theme.least},
            "itemStyle": {"color": self.theme.least},
            "areaStyle": {"color": self.theme.least, "opacity": 0.16},
            "emphasis": {"disabled": True},
        }

    def _rows(self, values: Array) -> list[list[float]]:
        pairs = zip(self.sizes.tolist(), values.tolist(), strict=True)
        return [[round(size, self.x_scale.decimals), round(one, self.scale.decimals)] for size, one in pairs]

    def _marks(self) -> Option:
        data = []
        budget_line = self.budget_mark()
        if budget_line is not None:
            data.append(budget_line)
        if self.knee is not None:
            text = f"knee {self._size(self.knee)}"
            mark = self._vertical_mark(self.knee, text, self.theme.muted, 22 if self.has_two_marks else 6)
            mark["lineStyle"] = {"color": self.theme.muted, "width": 1.5, "type": "dotted"}
            data.append(mark)
        return {"silent": True, "symbol": "none", "data": data}

    def _size(self, value: float) -> str:
        return format_budget(round(value * self.x_scale.factor))

    def budget_mark(self) -> Option | None:
        """Return the mark of the budget, data of a ``markLine``; None where it is off the picture."""
        if self.budget is None:
            return None
        return self._vertical_mark(self.budget, f"you: {self._size(self.budget)}", self.theme.ink, 6)

    def _vertical_mark(self, at: float, text: str, colour: str, distance: int) -> Option:
        share = at / self.x.high
        align = "left" if share < 0.15 else "right" if share > 0.85 else "center"
        label = {
            "position": "end",
            "formatter": text,
            "color": colour,
            **letters(TEXT),
            "fontWeight": "bold",
        }
        return {
            "xAxis": round(at, self.x_scale.decimals),
            "label": label | {"distance": distance, "align": align},
            "lineStyle": {"color": colour, "width": 2, "type": "solid"},
        }

    def _labels(self) -> list[Option]:
        """Return the names beside the lines, and what the shaded area is."""
        x = self.sizes / self.x.high
        lines = {name: line / self.y.high for name, line in self.lines.items()}
        reserved = self._reserved_boxes()
        marks = []
        if self.least is not None:
            lines["least"] = self.least / self.y.high
            marks += self._explanation(x, lines["least"], reserved)
        texts = {name: policy_label(name) for name in self.names}
        if self.least is not None and not marks:
            texts["least"] = "least possible"
        for found in place_labels(x, lines, texts, taken=reserved):
            text = ", ".join(texts[name] for name in found.names)
            marks.append(pin(found.x * self.x.high, found.y * self.y.high, text, self._style(found.names)))
        return marks

    def _style(self, names: Sequence[str]) -> Option:
        colour = self.theme.least if names[0] == "least" else self.colours[names[0]]
        if len(names) > 1:
            colour = self.theme.ink
        return plate(
            self.theme,
            color=text_colour(colour, self.theme.background),
            **letters(TEXT),
            fontWeight="bold" if self.names[0] in names else "normal",
            padding=[1, 3],
        )

    def _reserved_boxes(self) -> list[Box]:
        """Return where the upright lines and their texts are."""
        boxes = []
        for at, row in ((self.budget, 1.02), (self.knee, 1.1 if self.has_two_marks else 1.02)):
            if at is not None:
                middle = at / self.x.high
                boxes += [Box(middle - 0.16, middle + 0.16, row, row + 0.08)]
                boxes += [Box(middle - 0.005, middle + 0.005, 0, 1)]
        return boxes

    def _explanation(self, x: Array, least: Array, reserved: list[Box]) -> list[Option]:
        """Return the words in the shaded area, where it is large enough for them; adds them to ``taken``."""
        text = "no schedule moves less"
        half = len(text) * TextSize.character * 0.95 / 2
        for middle in np.linspace(float(x[0]) + half + 0.02, 1 - half, 25).tolist():
            height = float(np.interp([middle - half, middle, middle + half], x, least).min())
            box = Box(middle - half, middle + half, height * 0.4 - 0.045, height * 0.4 + 0.045)
            if height > 0.16 and not any(box.overlaps(other) for other in reserved):
                reserved.append(box)
                label = {"color": self.theme.least, **letters(TEXT), "fontStyle": "italic"}
                return [pin(middle * self.x.high, height * 0.4 * self.y.high, text, label)]
        return []
