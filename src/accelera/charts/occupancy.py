"""Memory over the steps of a run, stacked by role, with the budget drawn in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelera._plotting import (
    Scale,
    Theme,
    Ticks,
    format_budget,
    format_size,
    ink_on,
    role_colours,
    round_ticks,
    size_scale,
    theme_of,
    whole_ticks,
)
from accelera.charts.parts import (
    SMALL,
    TEXT,
    Option,
    base,
    cut,
    letters,
    message,
    painted,
    pin,
    pins,
    plate,
    tooltip,
    upright_axis,
    value_axis,
    verbatim,
)
from accelera.views._internal import ViewJson

Array = NDArray[np.float64]

OCCUPANCY_HEIGHT = 360
"""Pixels that the chart is laid out for."""
HEADROOM = 1.1
"""Of the upright axis over the peak, for labels."""
BOTTOM_UP = ("weight", "optimizer_state", "kv_cache", "gradient", "input", "activation", "workspace")
WORTH_NAMING = 1e-3
"""Smallest share of the peak with which a role is in the legend; smaller ones are only in the chart."""
FAR = 3.0
"""A budget of more than this many peaks is not drawn: the picture would be a thin strip."""
NEAR_PEAK = 0.8
"""A budget of more than this share of the peak is named below its line: above it the peak is."""
NARROW = 300
"""Pixels of the drawn area on a phone, which labels must fit into."""
CHARACTER, PLAIN_CHARACTER = 6.2, 5.3
"""Pixels of a bold character, and of one that is not."""


def occupancy_chart(occupancy: ViewJson, theme: str = "light") -> Option:
    """Return memory over steps as an option of ECharts.

    Roles are stacked, those that stay below those that come and go; what lies above the budget is red; the
    peak is named.

    Parameters
    ----------
    occupancy
        The JSON of the view: ``steps roles total peak phases steps_in_all budget_bytes``, sizes in bytes.
    theme
        ``"light"`` or ``"dark"``.
    """
    look = theme_of(theme)
    if not occupancy["steps"] or not max(occupancy["total"], default=0):
        return message(look, "This trace holds no memory: there is nothing to draw.")
    return _OccupancyDrawing(occupancy, look).option()


def occupancy_legend(occupancy: ViewJson, theme: str = "light") -> list[dict[str, str]]:
    """Return ``label colour text`` per role, the text being its size at the peak; from the bottom up."""
    look = theme_of(theme)
    colours = role_colours([one["role"] for one in occupancy["roles"]])
    at_peak = (occupancy.get("peak") or {}).get("roles", {})
    rows = [
        {
            "label": str(one["label"]),
            "colour": colours[one["role"]],
            "text": format_size(at_peak.get(one["role"], max(one["bytes"], default=0))),
        }
        for one in stacked_roles(occupancy)
        if max(one["bytes"], default=0) >= WORTH_NAMING * occupancy["peak"]["bytes"]
    ]
    budget = occupancy.get("budget_bytes")
    if budget and occupancy["peak"]["bytes"] > budget:
        short = format_size(occupancy["peak"]["bytes"] - budget)
        rows.append({"label": "above the budget", "colour": look.excess, "text": short})
    return rows


class _OccupancyDrawing:
    """Builder of one option of ECharts."""

    def __init__(self, view: ViewJson, theme: Theme) -> None:
        self.view, self.theme = view, theme
        self.end = max(int(view["steps_in_all"]), int(view["steps"][-1]) + 1)
        self.peak = view["peak"]
        budget = int(view.get("budget_bytes") or 0)
        self.budget = budget if 0 < budget <= FAR * self.peak["bytes"] else None
        top = max(self.peak["bytes"] * HEADROOM, (self.budget or 0) * 1.04)
        self.scale: Scale = size_scale(top)
        self.ticks: Ticks = round_ticks(0, top / self.scale.factor, 8)
        self.roles = stacked_roles(view)
        self.layers = _layers(self.roles)

    def option(self) -> Option:
        option = base(self.theme, self._description())
        labels = max(len(f"{tick:g}") for tick in self.ticks.values)
        return option | {
            "grid": {"left": 14 + 7 * labels, "right": 14, "top": 40, "bottom": 52},
            "tooltip": tooltip(
                self.theme,
                trigger="axis",
                valueFormatter=self.scale.printf,
                axisPointer={"type": "line", "label": {"precision": 0, "formatter": "operation {value}"}},
            ),
            "xAxis": self._x_axis(),
            "yAxis": self._y_axis(),
            "series": painted(self._series()),
        }

    def _description(self) -> str:
        peak = f"Memory over {self.end} operations; the peak is {format_size(self.peak['bytes'])}"
        during = f" during {cut(self.peak['op'])}" if self.peak.get("op") else ""
        return f"{peak}{during}, the budget {format_size(self.view.get('budget_bytes') or 0)}."

    def _x_axis(self) -> Option:
        name = "operation, in order"
        if self.view.get("budget_bytes") and self.budget is None:
            name += f" (the budget, {format_budget(self.view['budget_bytes'])}, is far above)"
        axis = value_axis(self.theme, name, min=0, max=self.end, interval=whole_ticks(self.end))
        axis["splitLine"] = {"show": False}
        axis["axisLabel"] |= {"showMaxLabel": self.end % whole_ticks(self.end) == 0, "hideOverlap": True}
        return axis

    def _y_axis(self) -> Option:
        ticks = self.ticks
        return upright_axis(self.theme, self.scale.unit, min=0, max=ticks.high, interval=ticks.interval)

    def _series(self) -> list[Option]:
        roles = self.roles
        colours = role_colours([one["role"] for one in roles])
        # The upper layers first, each from its top down to 0: later ones are painted over them.
        series = [
            self._layer(one, self.layers[index], colours[one["role"]])
            for index, one in reversed(list(enumerate(roles)))
        ]
        if self.budget is not None:
            series.append(self._excess())
        series.append(self._marks(colours))
        return series

    def _layer(self, role: ViewJson, top: Array, colour: str) -> Option:
        return {
            "type": "line",
            "name": str(role["label"]),
            "step": "end",
            "symbol": "none",
            "data": self._rows(top, role["bytes"]),
            "encode": {"x": 0, "y": 1, "tooltip": 2},
            "lineStyle": {"width": 0},
            "itemStyle": {"color": colour},
            "areaStyle": {"color": colour, "opacity": 1},
            "emphasis": {"disabled": True},
        }

    def _excess(self) -> Option:
        assert self.budget is not None
        total = np.asarray(self.view["total"], np.float64)
        return {
            "type": "line",
            "name": "above the budget",
            "step": "end",
            "symbol": "none",
            "data": self._rows(np.maximum(total, self.budget), np.maximum(total - self.budget, 0)),
            "encode": {"x": 0, "y": 1, "tooltip": 2},
            "lineStyle": {"width": 0},
            "itemStyle": {"color": self.theme.excess},
            "areaStyle": {
                "color": self.theme.excess,
                "opacity": 0.82,
                "origin": self.budget / self.scale.factor,
            },
            "emphasis": {"disabled": True},
        }

    def _rows(self, tops: Any, own: Any) -> list[list[float]]:
        """Return ``[step, top of the layer, its own size]``; the last step lasts to the end."""
        steps = [*self.view["steps"], self.end]
        tops, own = self.scale.all_of(tops), self.scale.all_of(own)
        return [list(row) for row in zip(steps, [*tops, tops[-1]], [*own, own[-1]], strict=True)]

    def _marks(self, colours: Mapping[str, str]) -> Option:
        series: Option = {
            "type": "line",
            "name": "in all",
            "step": "end",
            "symbol": "none",
            "data": self._rows(self.view["total"], self.view["total"]),
            "encode": {"x": 0, "y": 1, "tooltip": 2},
            "lineStyle": {"width": 0},
            "itemStyle": {"color": self.theme.ink},
            "emphasis": {"disabled": True},
            "markArea": {"silent": True, "data": self._phases()},
            "markPoint": pins([*self._role_names(colours), *self._excess_text(), self._peak()]),
        }
        if self.budget is not None:
            series["markLine"] = self._budget_line(self.budget)
        return series

    @property
    def _short_bytes(self) -> int:
        return int(self.peak["bytes"]) - self.budget if self.budget is not None else 0

    @property
    def _is_budget_right(self) -> bool:
        """Whether the budget's label is at the right end of its line, away from the peak."""
        return bool(self.peak["step"] <= 0.55 * self.end)

    def _budget_line(self, budget: int) -> Option:
        text, end = f"budget {format_budget(budget)}", "End" if self._is_budget_right else "Start"
        side = "Bottom" if NEAR_PEAK * self.peak["bytes"] < budget <= self.peak["bytes"] else "Top"
        return {
            "silent": True,
            "symbol": "none",
            "lineStyle": {"color": self.theme.ink, "width": 2, "type": "solid"},
            "label": plate(self.theme, position=f"inside{end}{side}", formatter=text, distance=3),
            "data": [{"yAxis": budget / self.scale.factor}],
        }

    def _phases(self) -> list[list[Option]]:
        bands = []
        phases = self.view.get("phases") or []
        kinds = list(dict.fromkeys(phase["name"] for phase in phases))
        by_kind = 1 < len(kinds) <= len(self.theme.bands)
        for place, phase in enumerate(phases):
            index = kinds.index(phase["name"]) if by_kind else place % 2
            share = (phase["end"] - phase["begin"]) / self.end
            fits = len(phase["name"]) * PLAIN_CHARACTER < share * NARROW * 1.1
            label = {
                "show": fits,
                "position": "insideTop",
                "color": self.theme.muted,
                **letters(SMALL),
                "formatter": verbatim(phase["name"]),
            }
            colour = self.theme.bands[index % len(self.theme.bands)]
            begin = {"xAxis": phase["begin"], "label": label, "itemStyle": {"color": colour, "opacity": 1}}
            bands.append([begin, {"xAxis": phase["end"]}])
        return bands

    def _peak(self) -> Option:
        at = self.peak["step"] / self.end
        side = "right" if at < 0.5 else "left"
        size, op = f"peak {format_size(self.peak['bytes'])}", cut(str(self.peak.get("op") or ""), 24)
        room = max(at, 1 - at) * NARROW
        joint = ": " if (len(size) + len(op) + 2) * CHARACTER < room else "\n"
        label = plate(self.theme, position=side, distance=6, align="left" if side == "right" else "right")
        return pin(
            self.peak["step"],
            self.scale.of(self.peak["bytes"]),
            f"{size}{joint}{op}" if op else size,
            label,
            symbolSize=9,
            itemStyle={"color": self.theme.ink},
        )

    def _excess_text(self) -> list[Option]:
        if self._short_bytes / self.scale.factor < 0.15 * self.ticks.high or self.budget is None:
            return []
        low, high = (0.17, 0.55) if self._is_budget_right else (0.45, 0.83)
        at = min(max(self.peak["step"] / self.end, low), high) * self.end
        height = self.scale.of(self.budget + 0.4 * self._short_bytes)
        colour = "#8c1c13"
        label = plate(self.theme, color="#ffffff", backgroundColor=colour, **letters(TEXT))
        return [pin(at, height, f"{format_size(self._short_bytes)} too much", label)]

    def _role_names(self, colours: Mapping[str, str]) -> list[Option]:
        marks = []
        lower = np.zeros(len(self.view["steps"]))
        for role, upper in zip(self.roles, self.layers, strict=True):
            visible = upper if self.budget is None else np.minimum(upper, self.budget)
            place = self._largest_place(lower, visible, str(role["label"]))
            if place is not None:
                ink = ink_on(colours[role["role"]])
                label = {"color": ink, **letters(TEXT), "fontWeight": "bold"}
                marks.append(pin(place[0], self.scale.of(place[1]), str(role["label"]), label))
            lower = upper
        return marks

    def _largest_place(self, lower: Array, upper: Array, text: str) -> tuple[float, float] | None:
        """Return the middle of the largest place for ``text`` between two curves; None if it fits nowhere."""
        steps = np.asarray(self.view["steps"], np.float64)
        need = 20 / 260 * self.ticks.high * self.scale.factor
        half = (len(text) + 1) * 7.0 / NARROW * self.end / 2
        best, place = need, None
        for middle in np.linspace(half, self.end - half, 41) if 2 * half < self.end else []:
            within = (steps >= middle - half) & (steps <= middle + half)
            if not within.any():
                within[max(int(np.searchsorted(steps, middle, "right")) - 1, 0)] = True
            bottom, top = float(lower[within].max()), float(upper[within].min())
            if top - bottom > best * 1.02:
                best, place = top - bottom, (float(middle), (top + bottom) / 2)
        return place


def stacked_roles(view: ViewJson) -> list[ViewJson]:
    """Return the roles from the bottom up; a trace without roles has one, of all tensors."""
    roles = list(view["roles"])
    if [one["role"] for one in roles] == ["other"]:
        return [{**roles[0], "label": "tensors"}]
    return sorted(roles, key=_steadiness)


def _steadiness(role: ViewJson) -> tuple[int, float]:
    """Return the place of a role in the stack: what stays all the time lies below what comes and goes."""
    sizes = np.asarray(role["bytes"], np.float64)
    known = BOTTOM_UP.index(role["role"]) if role["role"] in BOTTOM_UP else len(BOTTOM_UP)
    return known, float(sizes.std() / max(sizes.mean(), 1))


def _layers(roles: Sequence[ViewJson]) -> list[Array]:
    """Return per role the upper edge of its layer, shape (steps,)."""
    return list(np.cumsum([np.asarray(one["bytes"], np.float64) for one in roles], axis=0))
