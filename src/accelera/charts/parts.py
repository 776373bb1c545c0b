"""Parts that the options of all charts are put together from."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from accelera._plotting import Theme

Option = dict[str, Any]
"""An option of ECharts: JSON-able, without JavaScript."""

TEXT = 12
SMALL = 11
LONGEST_NAME = 32
"""Longer names of operations and tensors are cut in the drawing."""


def letters(size: int) -> Option:
    """Return the size of a text and of its lines.

    Without the second, ECharts takes the width of a Chinese character for the height of a line, which is
    a few pixels where no font has one.
    """
    return {"fontSize": size, "lineHeight": round(size * 1.3)}


def base(theme: Theme, description: str) -> Option:
    """Return what every chart has: no animation, a description for screen readers."""
    return {
        "backgroundColor": "transparent",
        "animation": False,
        "textStyle": {"color": theme.ink, **letters(TEXT)},
        "aria": {"enabled": True, "label": {"description": description}},
    }


def message(theme: Theme, text: str) -> Option:
    """Return a chart that only says ``text``: for views with nothing in them."""
    style = {"color": theme.muted, **letters(14), "fontWeight": "normal", "width": 280, "overflow": "break"}
    return base(theme, text) | {
        "title": {"text": text, "left": "center", "top": "middle", "textStyle": style},
        "series": [],
    }


def value_axis(theme: Theme, name: str, **more: Any) -> Option:
    """Return an axis of numbers with a title in the middle below it."""
    return {
        "type": "value",
        "name": name,
        "nameLocation": "middle",
        "nameGap": 30,
        "nameTextStyle": {"color": theme.muted, **letters(TEXT)},
        "axisLabel": {"color": theme.muted, **letters(TEXT)},
        "axisLine": {"show": True, "lineStyle": {"color": theme.grid}},
        "axisTick": {"show": False},
        "splitLine": {"lineStyle": {"color": theme.grid}},
        **more,
    }


def upright_axis(theme: Theme, name: str, **more: Any) -> Option:
    """Return an axis of numbers from bottom to top, its title above its top end."""
    title = {"align": "left", "padding": [0, 0, 4, 0], "color": theme.muted, **letters(TEXT)}
    upright = {"nameLocation": "end", "nameGap": 10, "nameTextStyle": title}
    return value_axis(theme, name) | upright | {"axisLine": {"show": False}} | more


def tooltip(theme: Theme, **more: Any) -> Option:
    """Return the box at the pointer: kept inside the chart, in the page's colours."""
    return {
        "confine": True,
        "backgroundColor": theme.bands[-1],
        "borderColor": theme.grid,
        "textStyle": {"color": theme.ink, **letters(TEXT)},
        **more,
    }


def plate(theme: Theme, **more: Any) -> Option:
    """Return the style of a text on a plate, readable on whatever lies behind it."""
    return {
        "color": theme.ink,
        **letters(SMALL),
        "fontWeight": "bold",
        "backgroundColor": theme.background + "d9",
        "borderRadius": 3,
        "padding": [2, 4],
        **more,
    }


def pin(x: float, y: float, text: str, label: Option, **more: Any) -> Option:
    """Return a text at a place of the plane, as data of a ``markPoint``."""
    return {
        "coord": [x, y],
        "symbol": "circle",
        "symbolSize": 1,
        "itemStyle": {"color": "transparent"},
        "label": {"show": True, "formatter": verbatim(text), "position": "inside", **label},
        **more,
    }


def painted(series: list[Option]) -> list[Option]:
    """Return ``series`` with a ``z`` each, so that every one is painted over those before it.

    Without ``z``, a chart that gets a new option keeps the order in which its series were first added.
    """
    for place, one in enumerate(series):
        one["z"] = round(2 + place / (len(series) + 1), 3)
    return series


def pins(data: list[Option]) -> Option:
    """Return a ``markPoint`` of texts."""
    return {"silent": True, "animation": False, "data": data}


def verbatim(text: str) -> str:
    """Return ``text`` as a template that ECharts writes as it stands: names may hold its placeholders."""
    return text.replace("{", "(").replace("}", ")")


def hover(text: str) -> str:
    """Return lines of text as the template of a box at the pointer, which ECharts reads as HTML."""
    return verbatim(escape(text)).replace("\n", "<br/>")


def cut(name: str, longest: int = LONGEST_NAME) -> str:
    """Return a name on one line, its middle left out where it is long."""
    name = " ".join("".join(one if one.isprintable() else " " for one in name).split())
    if len(name) <= longest:
        return name
    head = (longest - 1) // 2
    return f"{name[:head]}…{name[-(longest - 1 - head) :]}"


def unstyled(text: str) -> str:
    """Return ``{style|text}`` of a label in several styles as plain text."""
    return re.sub(r"\{\w+\|([^{}]*)\}", r"\1", text)
