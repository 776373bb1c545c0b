"""HTML page of a sweep: an SVG drawing with a few named lines, the others pale, and a table beneath it.

The page has no script and loads nothing from the network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape

import numpy as np
from numpy.typing import NDArray

from accelera._plotting import (
    DARK,
    LIGHT,
    Box,
    LineLabel,
    Scale,
    TextSize,
    Theme,
    Ticks,
    dark_colours,
    format_budget,
    format_size,
    place_labels,
    policy_colours,
    round_ticks,
    shown_lines,
    size_scale,
    text_colour,
)


@dataclass(frozen=True, eq=False)
class Curves:
    """Bytes moved per policy and capacity; all sizes in bytes."""

    capacities: tuple[int, ...]
    """Rising."""
    moved: Mapping[str, NDArray[np.int64]]
    """Per policy, shape (capacities,)."""
    bounds: NDArray[np.int64] | None
    """What any schedule moves at least, shape (capacities,)."""
    best: str
    """The policy that moves the fewest bytes by and large."""
    knee: int
    """Of the best policy's curve."""
    without_stalls: int
    """From here on the best policy waits for nothing but what it would wait for anyway."""

    def ranking(self) -> list[str]:
        """Return the policies, those that move fewer bytes by and large first."""
        return sorted(self.moved, key=lambda name: (float(np.log1p(self.moved[name]).sum()), name))


DASHES = ("7 4", "2 4", "10 3 2 3", "4 2")
"""Of lines that are shown on demand: they have the colours of the others."""
EXPLANATION = "no schedule moves less"


@dataclass(frozen=True)
class Frame:
    """The size of a drawing in pixels, and of its letters."""

    width: int
    height: int
    left: int = 46
    right: int = 16
    top: int = 58
    bottom: int = 48
    character: float = 6.7

    @property
    def across(self) -> int:
        """Pixels of the plane from left to right."""
        return self.width - self.left - self.right

    @property
    def upright(self) -> int:
        """Pixels of the plane from top to bottom."""
        return self.height - self.top - self.bottom

    @property
    def text(self) -> TextSize:
        """The size of a text in shares of the plane."""
        return TextSize(self.character / self.across, 17 / self.upright)


class SweepScales:
    """Units, ticks and colours of a sweep's picture, the same on the page and in a file."""

    def __init__(self, curves: Curves) -> None:
        self.curves = curves
        most = float(max(1, *(int(each.max(initial=0)) for each in curves.moved.values())))
        self.y_unit: Scale = size_scale(most)
        self.y: Ticks = round_ticks(0, most * 1.08 / self.y_unit.factor, 8)
        low, high = curves.capacities[0], curves.capacities[-1]
        self.x_unit: Scale = size_scale(high)
        # From zero, unless that would leave half of the width empty.
        self.x: Ticks = round_ticks(
            0 if low < high / 2 else low / self.x_unit.factor, high / self.x_unit.factor
        )
        self.shown = shown_lines(curves.moved)
        if curves.best not in self.shown:
            self.shown = [curves.best, *self.shown[:-1]]
        self.others = [name for name in curves.ranking() if name not in self.shown]
        self.colours = policy_colours(self.shown)

    @cached_property
    def x_shares(self) -> NDArray[np.float64]:
        """Capacities in shares of the width, shape (capacities,)."""
        return self.x_share(np.array(self.curves.capacities, np.float64))

    def x_share(self, capacity: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return capacities in bytes in shares of the width."""
        return (capacity / self.x_unit.factor - self.x.low) / (self.x.high - self.x.low)

    def y_share(self, moved: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return bytes moved in shares of the height."""
        found: NDArray[np.float64] = moved / self.y_unit.factor / self.y.high
        return found

    @property
    def knee_share(self) -> float:
        """The knee in shares of the width."""
        return float(self.x_share(np.array([self.curves.knee], np.float64))[0])

    @property
    def knee_text(self) -> str:
        """What is written over the knee."""
        return f"knee {format_budget(self.curves.knee)}"

    @property
    def x_title(self) -> str:
        """The title of the axis of capacities."""
        return f"capacity of the first tier, {self.x_unit.unit}"

    @property
    def y_title(self) -> str:
        """The title of the axis of bytes."""
        return f"{self.y_unit.unit} moved"

    def labels(self, size: TextSize, taken: Iterable[Box] = ()) -> list[LineLabel]:
        """Return the places of the names of the shown lines, and of the least possible if there is one."""
        lines = {name: self.y_share(self.curves.moved[name]) for name in self.shown}
        texts = {name: name for name in self.shown}
        if self.curves.bounds is not None:
            lines["least"] = self.y_share(self.curves.bounds)
        return place_labels(self.x_shares, lines, texts, size=size, taken=[self._knee_box, *taken])

    @property
    def _knee_box(self) -> Box:
        return Box(self.knee_share - 0.004, self.knee_share + 0.004, 0, 1)

    def explanation(self, size: TextSize) -> Box | None:
        """Return where the shaded area says what it is; None where it is too small for that."""
        if self.curves.bounds is None:
            return None
        heights, half = self.y_share(self.curves.bounds), len(EXPLANATION) * size.character / 2
        first, last = float(self.x_shares[0]) + half + 0.02, float(self.x_shares[-1]) - half
        for middle in np.linspace(first, last, 25).tolist() if first < last else []:
            height = float(np.interp([middle - half, middle + half], self.x_shares, heights).min())
            bottom = height * 0.4 - size.line / 2
            found = Box(middle - half, middle + half, bottom, bottom + size.line)
            if height > 2 * size.line and not found.overlaps(self._knee_box):
                return found
        return None


def sweep_drawing(curves: Curves, frame: Frame, name: str) -> str:
    """Return an ``svg`` element of class ``name``."""
    scales = SweepScales(curves)
    drawing = _SweepDrawing(scales, frame)
    policies = ", ".join(scales.shown)
    title = f"Bytes moved over the capacity of the first tier, for {policies}; {curves.best} is best."
    return (
        f'<svg class="{name}" viewBox="0 0 {frame.width} {frame.height}" role="img" '
        f'aria-label="{escape(title)}">{"".join(drawing.parts())}</svg>'
    )


class _SweepDrawing:
    """One drawing in the making."""

    def __init__(self, scales: SweepScales, frame: Frame) -> None:
        self.scales, self.curves, self.frame = scales, scales.curves, frame

    def parts(self) -> Iterator[str]:
        yield from self._impossible()
        yield from self._grid()
        yield from self._knee()
        labels = self._labels()
        for index, policy in enumerate(self.scales.others):
            yield from self._other(policy, index, [label.box for label in labels])
        for policy in reversed(self.scales.shown):
            yield self._line(policy)
        yield from self._names(labels)
        for policy in self.scales.shown:
            yield from self._values(policy)

    def _x(self, share: float) -> float:
        return round(self.frame.left + share * self.frame.across, 1)

    def _y(self, share: float) -> float:
        return round(self.frame.top + (1 - share) * self.frame.upright, 1)

    def _points(self, moved: NDArray[np.int64]) -> str:
        pairs = zip(self.scales.x_shares.tolist(), self.scales.y_share(moved).tolist(), strict=True)
        return " ".join(f"{self._x(x)},{self._y(y)}" for x, y in pairs)

    def _grid(self) -> Iterator[str]:
        left, right, floor = self._x(0), self._x(1), self._y(0)
        for tick in self.scales.y.values:
            y = self._y(tick / self.scales.y.high)
            yield f'<line class="grid" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>'
            yield f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{tick:,g}</text>'
        span = self.scales.x.high - self.scales.x.low
        for tick in self.scales.x.values:
            x = self._x((tick - self.scales.x.low) / span)
            yield f'<text x="{x}" y="{floor + 20}" text-anchor="middle">{tick:,g}</text>'
        middle = (left + right) / 2
        yield f'<text x="{middle}" y="{floor + 40}" text-anchor="middle">{self.scales.x_title}</text>'
        yield f'<text x="{left}" y="16">{self.scales.y_title}</text>'

    def _impossible(self) -> Iterator[str]:
        if self.curves.bounds is None:
            return
        ends, floor = self.scales.x_shares[[0, -1]].tolist(), self._y(0)
        points = f"{self._x(ends[0])},{floor} {self._points(self.curves.bounds)} {self._x(ends[1])},{floor}"
        yield f'<polygon class="impossible" points="{points}"/>'

    def _knee(self) -> Iterator[str]:
        share = self.scales.knee_share
        x, y = self._x(share), self.frame.top - 12
        side = "start" if share < 0.15 else "end" if share > 0.85 else "middle"
        yield f'<line class="knee" x1="{x}" x2="{x}" y1="{self.frame.top - 6}" y2="{self._y(0)}"/>'
        yield f'<text x="{x}" y="{y}" text-anchor="{side}">{self.scales.knee_text}</text>'

    def _line(self, policy: str) -> str:
        best = ' class="best"' if policy == self.curves.best else ""
        points = self._points(self.curves.moved[policy])
        return f'<polyline{best} stroke="{self.scales.colours[policy]}" points="{points}"/>'

    def _other(self, policy: str, index: int, taken: list[Box]) -> Iterator[str]:
        """Yield a pale line, and a coloured one with its name that is seen when its box is ticked."""
        points = self._points(self.curves.moved[policy])
        yield f'<polyline class="other" points="{points}"><title>{escape(policy)}</title></polyline>'
        colour = other_colour(index)
        dashes = DASHES[index // 5 % len(DASHES)]
        lines = {name: self.scales.y_share(self.curves.moved[name]) for name in [*self.scales.shown, policy]}
        x, size = self.scales.x_shares, self.frame.text
        [label] = place_labels(x, lines, {policy: policy}, size=size, taken=taken)
        line = f'<polyline stroke="{colour}" stroke-dasharray="{dashes}" points="{points}"/>'
        yield f'<g class="more p{index}">{line}{self._name(label, colour)}</g>'

    def _labels(self) -> list[LineLabel]:
        words = self.scales.explanation(self.frame.text)
        return self.scales.labels(self.frame.text, [] if words is None else [words])

    def _names(self, labels: Iterable[LineLabel]) -> Iterator[str]:
        words = self.scales.explanation(self.frame.text)
        if words is not None:
            x, y = self._x((words.left + words.right) / 2), self._y((words.bottom + words.top) / 2)
            yield f'<text class="least" x="{x}" y="{y + 4}" text-anchor="middle">{EXPLANATION}</text>'
        for label in labels:
            one = len(label.names) == 1
            yield self._name(label, self.scales.colours[label.names[0]] if one else LIGHT.ink)

    def _name(self, label: LineLabel, colour: str) -> str:
        weight = ' font-weight="bold"' if self.curves.best in label.names else ""
        text = escape(", ".join(label.names))
        colour = text_colour(colour, LIGHT.background)
        place = f'x="{self._x(label.x)}" y="{self._y(label.y) + 4}"'
        return f'<text class="name" {place} text-anchor="middle" fill="{colour}"{weight}>{text}</text>'

    def _values(self, policy: str) -> Iterator[str]:
        """Yield unseen circles whose titles are the numbers at the pointer."""
        heights = self.scales.y_share(self.curves.moved[policy]).tolist()
        for x, y, size, moved in zip(
            self.scales.x_shares.tolist(),
            heights,
            self.curves.capacities,
            self.curves.moved[policy].tolist(),
            strict=True,
        ):
            text = f"{policy}: {format_budget(moved)} moved in {format_budget(size)}"
            yield f'<circle cx="{self._x(x)}" cy="{self._y(y)}" r="6"><title>{escape(text)}</title></circle>'


def other_colour(index: int) -> str:
    """Return the colour of the line number ``index`` of those on demand."""
    names = [str(one) for one in range(5)]
    return policy_colours(names)[names[index % 5]]


WIDE, NARROW = Frame(900, 500), Frame(366, 360)
"""Of the two drawings the page shows the one that its width is for, so that letters stay readable."""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Bytes moved over capacity</title>
<style>
{colours}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 0; background: var(--background); color: var(--ink) }}
main {{ max-width: 940px; margin: 0 auto; padding: 24px 12px }}
h1 {{ font-size: 1.6rem; line-height: 1.3; margin: 0 0 .4rem }}
svg {{ display: block; width: 100%; margin: 1rem 0 }}
svg text {{ font-size: 12px; font-family: system-ui, sans-serif }}
svg text:not([fill]) {{ fill: var(--muted) }}
svg .name {{ font-size: 13px; paint-order: stroke; stroke: var(--background); stroke-width: 4px }}
svg text.least {{ fill: var(--least); font-style: italic; font-size: 13px }}
svg .grid {{ stroke: var(--line) }}
svg .knee {{ stroke: var(--muted); stroke-dasharray: 2 4; stroke-width: 1.5 }}
svg .impossible {{ fill: var(--least); fill-opacity: .16 }}
polyline {{ fill: none; stroke-width: 2 }}
polyline.best {{ stroke-width: 3.5 }}
polyline.other {{ stroke: var(--plain); stroke-width: 1; stroke-opacity: .7 }}
circle {{ fill: transparent; pointer-events: all }}
.more {{ display: none }}
.narrow {{ display: none }}
@media (max-width: 640px) {{ .narrow {{ display: block }} .wide {{ display: none }} }}
fieldset {{ border: 1px solid var(--line); border-radius: 8px; padding: .4rem .9rem .6rem }}
fieldset label {{ display: inline-block; margin-right: 1rem; white-space: nowrap }}
{demand}
.table {{ overflow-x: auto; margin-top: 1.4rem }}
table {{ border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums }}
td, th {{ padding: .2rem .8rem .2rem 0; text-align: right; white-space: nowrap; font-weight: normal }}
tr {{ border-bottom: 1px solid var(--line) }}
td:first-child, th:first-child {{ text-align: left }}
.note {{ color: var(--muted) }}
</style>
<main>
<h1>{headline}</h1>
<p>{summary}</p>
{drawings}
{choice}
<div class="table" tabindex="0" role="region" aria-label="Bytes moved by policy and capacity">{table}</div>
<p class="note">{note}</p>
</main>
</html>
"""


def sweep_page(curves: Curves) -> str:
    """Return the page."""
    scales = SweepScales(curves)
    return _PAGE.format(
        colours=_colours(),
        demand=_demand(scales),
        headline=f"{escape(curves.best)} moves the fewest bytes by and large",
        summary=_summary(curves),
        drawings=sweep_drawing(curves, WIDE, "wide") + sweep_drawing(curves, NARROW, "narrow"),
        choice=_choice(scales),
        table=_page_table(curves),
        note="1 GB is 10⁹ bytes. Bytes moved are those between the first tier and the next, both ways.",
    )


def _summary(curves: Curves) -> str:
    return (
        f"Its knee is at {format_size(curves.knee)}: beyond it more memory saves less. From "
        f"{format_size(curves.without_stalls)} on nobody waits for want of memory."
    )


def _colours() -> str:
    def of(theme: Theme) -> str:
        return (
            f"--background: {theme.background}; --ink: {theme.ink}; --muted: {theme.muted}; "
            f"--line: {theme.grid}; --plain: {theme.plain}; --least: {theme.least}"
        )

    dark = "\n".join(
        f'[fill="{light}"] {{ fill: {there} }} [stroke="{light}"] {{ stroke: {there} }}'
        for light, there in dark_colours().items()
    )
    when = "@media screen and (prefers-color-scheme: dark)"
    return f":root {{ {of(LIGHT)} }}\n{when} {{ :root {{ {of(DARK)} }}\n{dark} }}"


def _choice(scales: SweepScales) -> str:
    """Return the boxes by which the other policies are shown, if there are any."""
    if not scales.others:
        return ""
    boxes = "".join(
        f'<label><input type="checkbox" id="show{index}"/> {escape(name)}</label> '
        for index, name in enumerate(scales.others)
    )
    return f"<fieldset><legend>The others are drawn in grey; show</legend>{boxes}</fieldset>"


def _demand(scales: SweepScales) -> str:
    return "\n".join(
        f"body:has(#show{index}:checked) .p{index} {{ display: inline }} "
        f"#show{index} {{ accent-color: {other_colour(index)} }}"
        for index in range(len(scales.others))
    )


def _page_table(curves: Curves) -> str:
    shown = np.unique(np.linspace(0, len(curves.capacities) - 1, 8).astype(int)).tolist()
    rows = [_page_row("th", "capacity", [format_budget(curves.capacities[at]) for at in shown])]
    if curves.bounds is not None:
        rows.append(_page_row("td", "least possible", [format_size(int(curves.bounds[at])) for at in shown]))
    for policy in curves.ranking():
        rows.append(_page_row("td", policy, [format_size(int(curves.moved[policy][at])) for at in shown]))
    return f"<table>{''.join(rows)}</table>"


def _page_row(tag: str, name: str, sizes: list[str]) -> str:
    cells = "".join(f"<{tag}>{size}</{tag}>" for size in sizes)
    return f"<tr><{tag}>{escape(name)}</{tag}>{cells}</tr>"
