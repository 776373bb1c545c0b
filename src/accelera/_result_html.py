"""Results as HTML for notebooks: a title, bars of memory against a limit, and the report as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape

from accelera.units import format_bytes

_MAX_WIDTH, _HEIGHT = 520, 18
"""Pixels of a bar, which is narrower where the notebook is."""
_FULL_PERCENT = 99.5
"""Width of the longest bar; the rest is for half of the line at the limit."""
_OPACITIES = (0.9, 0.5, 0.7, 0.3, 0.8, 0.4, 0.2)
"""Shades of neighboring parts; the color is that of the text, so that dark themes are readable."""
_MAX_LEGEND_PARTS = 6


@dataclass(frozen=True)
class MemoryBar:
    """Bytes of one memory by use, drawn against its limit."""

    label: str
    parts: Mapping[str, int]
    """Bytes by use."""
    limit_bytes: int | None = None

    @property
    def total_bytes(self) -> int:
        """Bytes of all uses."""
        return sum(self.parts.values())


def result_html(title: str, text: str, bars: Iterable[MemoryBar] = ()) -> str:
    """Return an HTML fragment without scripts, which notebooks show as it is."""
    drawings = "".join(map(_bar_html, bars))
    style = "margin:4px 0 0;line-height:1.3;overflow-x:auto"
    preformatted = f'<pre style="{style}">{escape(text)}</pre>' if text else ""
    heading = f'<strong style="overflow-wrap:anywhere">{escape(title)}</strong>'
    return f"<div>{heading}{drawings}{preformatted}</div>"


def page_html(page: str, height: int, title: str) -> str:
    """Return a complete page as a frame of ``height`` pixels; screen readers announce ``title``."""
    style = f"width:100%;height:{height}px;border:0"
    return f'<iframe srcdoc="{escape(page)}" sandbox="" title="{escape(title)}" style="{style}"></iframe>'


def _bar_html(bar: MemoryBar) -> str:
    limit = "" if bar.limit_bytes is None else f" of {format_bytes(bar.limit_bytes)}"
    label = escape(f"{bar.label}: {format_bytes(bar.total_bytes)}{limit}")
    drawing = _drawing(bar, label) if bar.total_bytes or bar.limit_bytes else ""
    legend = _legend(bar) if len(bar.parts) > 1 else ""
    return f'<div style="margin:6px 0;font-size:12px;line-height:1.4">{label}{drawing}{legend}</div>'


def _drawing(bar: MemoryBar, label: str) -> str:
    """Return the bar as SVG in percent of its width, so that it fits narrow notebooks."""
    scale = _FULL_PERCENT / max(bar.total_bytes, bar.limit_bytes or 0)
    shapes = "".join(_part_shapes(bar, scale))
    if bar.limit_bytes is not None:
        x = f"{bar.limit_bytes * scale:.2f}%"
        shapes += (
            f'<line x1="{x}" x2="{x}" y1="0" y2="{_HEIGHT + 6}" stroke="currentColor" stroke-width="2"/>'
        )
    return (
        f'<svg role="img" aria-label="{label}" width="100%" height="{_HEIGHT + 6}" '
        f'style="display:block;max-width:{_MAX_WIDTH}px">{shapes}</svg>'
    )


def _part_shapes(bar: MemoryBar, scale: float) -> Iterable[str]:
    start_bytes = 0
    for index, (name, nbytes) in enumerate(bar.parts.items()):
        x, width = start_bytes * scale, nbytes * scale
        start_bytes += nbytes
        yield (
            f'<rect x="{x:.2f}%" y="3" width="{width:.2f}%" height="{_HEIGHT}" '
            f'fill="currentColor" fill-opacity="{_opacity(index)}">'
            f"<title>{escape(name)}: {format_bytes(nbytes)}</title></rect>"
        )


def _legend(bar: MemoryBar) -> str:
    """Return the names of the largest parts with their shades, for screens without a pointer."""
    parts = [(nbytes, index, name) for index, (name, nbytes) in enumerate(bar.parts.items()) if nbytes]
    largest = sorted(sorted(parts, reverse=True)[:_MAX_LEGEND_PARTS], key=lambda part: part[1])
    entries = [
        f"{_swatch(index)}{escape(name.replace('_', ' '))} {format_bytes(nbytes)}"
        for nbytes, index, name in largest
    ]
    if len(parts) > len(largest):
        entries.append(f"{len(parts) - len(largest)} more")
    return "".join(
        f'<span style="display:inline-block;margin-right:12px">{entry}</span>' for entry in entries
    )


def _swatch(index: int) -> str:
    square = f"display:inline-block;width:10px;height:10px;background:currentColor;opacity:{_opacity(index)}"
    return f'<span style="{square};margin-right:4px"></span>'


def _opacity(index: int) -> float:
    return _OPACITIES[index % len(_OPACITIES)]
