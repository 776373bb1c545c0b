"""SVG with the project's colours, readable on light and dark pages: by hand, or from matplotlib.

Every picture has a background of its own, and a style sheet that swaps its colours where the reader's system
is dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from accelera._plotting import DARK, LIGHT, OKABE_ITO, dark_colours, text_colour

FONT = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY, YELLOW = OKABE_ITO
COLOURS = {
    "background": (LIGHT.background, DARK.background),
    "ink": (LIGHT.ink, DARK.ink),
    "muted": (LIGHT.muted, DARK.muted),
    "grid": (LIGHT.grid, DARK.grid),
    "box": ("#eef3f8", "#1b2330"),
    "edge": ("#9fb0c3", "#52647a"),
    "best": (LIGHT.best, DARK.best),
    "plain": (LIGHT.plain, DARK.plain),
    "excess": (LIGHT.excess, DARK.excess),
    "least": (LIGHT.least, DARK.least),
    "read": (SKY, SKY),
    "compute": (LIGHT.best, DARK.best),
    "write": (ORANGE, ORANGE),
}
"""By part: the colour on a light page, and on a dark one."""


class Drawing:
    """A picture that is put together from rectangles, lines and words."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self._parts: list[str] = []

    def box(
        self,
        place: Sequence[float],
        fill: str = "box",
        *,
        stroke: str | None = "edge",
        radius: float = 6,
        hint: str = "",
        dashes: str = "",
    ) -> None:
        """Draw a rectangle; ``place``: left, top, width, height."""
        left, top, width, height = place
        edge = f"stroke-{stroke}" if stroke else ""
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        inside = f"<title>{escape(hint)}</title>" if hint else ""
        self._parts.append(
            f'<rect x="{left:g}" y="{top:g}" width="{max(width, 0.5):.5g}" height="{height:g}" '
            f'rx="{radius:g}" class="fill-{fill} {edge}"{dashed}>{inside}</rect>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        colour: str = "ink",
        size: float = 13,
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        """Write one line, its foot at ``y``."""
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}" class="fill-{colour}"'
            f"{weight}>{escape(words)}</text>"
        )

    def line(
        self,
        path: str,
        colour: str = "edge",
        *,
        width: float = 1.2,
        arrow: bool = False,
        dashes: str = "",
        opacity: float = 1,
        hint: str = "",
    ) -> None:
        """Draw an SVG path without filling it."""
        head = ' marker-end="url(#arrow)"' if arrow else ""
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        faint = f' opacity="{opacity:g}"' if opacity < 1 else ""
        inside = f"<title>{escape(hint)}</title>" if hint else ""
        self._parts.append(
            f'<path d="{path}" fill="none" stroke-width="{width:g}" class="stroke-{colour}"'
            f"{head}{dashed}{faint}>{inside}</path>"
        )

    def svg(self) -> str:
        """Return the file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" font-family="{FONT}" role="img">'
        )
        marker = (
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            'markerHeight="8" markerUnits="userSpaceOnUse" '
            'orient="auto"><path d="M0 0 8 4 0 8z" class="fill-edge"/></marker></defs>'
        )
        ground = f'<rect width="{self.width}" height="{self.height}" rx="8" class="fill-background"/>'
        lines = [head, f"<title>{escape(self.title)}</title>", _styles(), marker, ground, *self._parts]
        return "\n".join([*lines, "</svg>\n"])


def _styles() -> str:
    def rules(which: int) -> str:
        return "".join(
            f".fill-{name}{{fill:{both[which]}}}.stroke-{name}{{stroke:{both[which]}}}"
            for name, both in COLOURS.items()
        )

    return f"<style>{rules(0)}@media (prefers-color-scheme: dark){{{rules(1)}}}</style>"


def plain_figure(width: int, height: int, columns: int = 1, **grid: Any) -> tuple[Any, Any]:
    """Return a matplotlib figure of so many pixels, and its axes, dressed as the project's charts are."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "accelera",
            "text.parse_math": False,
            "font.size": 9,
            "text.color": LIGHT.ink,
        }
    )
    figure = Figure(figsize=(width / 100, height / 100), dpi=100, facecolor=LIGHT.background)
    axes = figure.subplots(1, columns, squeeze=False, **grid)[0]
    for each in axes:
        each.set_facecolor("none")
        each.set_axisbelow(True)
        for side in each.spines.values():
            side.set_visible(False)
        each.tick_params(length=0, labelsize=9, labelcolor=LIGHT.muted)
        each.xaxis.label.set_color(LIGHT.muted)
        each.yaxis.label.set_color(LIGHT.muted)
    return figure, axes if columns > 1 else axes[0]


def figure_svg(figure: Any, title: str) -> str:
    """Return a matplotlib figure as SVG text, its colours swapped on dark systems."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Title": title})
    text = file.getvalue()
    text = re.sub(r"<\?xml.*?<svg", "<svg", text, count=1, flags=re.DOTALL)
    text = re.sub(r"<metadata>.*?</metadata>", f"<title>{escape(title)}</title>", text, flags=re.DOTALL)
    text = re.sub(r"font: (\d[\d.]*px) [^;\"]*", rf"font: \1 {FONT.replace(chr(39), '')}", text)
    text = re.sub(r"font-family: [^;\"]*", f"font-family: {FONT.replace(chr(39), '')}", text)
    text = "\n".join(line.rstrip() for line in text.splitlines())
    return text.replace("</style>", f"{_dark_rules()}</style>", 1) + "\n"


def _dark_rules() -> str:
    rules = "".join(
        f'[style*="{part}: {light}"]{{{part}:{dark}!important}}'
        for light, dark in dark_colours().items()
        for part in ("fill", "stroke")
    )
    return f"@media (prefers-color-scheme: dark){{{rules}}}"


def words_in(colour: str) -> str:
    """Return a colour dark enough for text on a light page."""
    return text_colour(colour, LIGHT.background)
