"""Results as HTML for notebooks: a title, bars of memory against a limit, and the report as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from accelera.units import format_bytes

_WIDTH, _HEIGHT, _LABEL_HEIGHT = 520, 18, 16
"""Pixels of a bar and of the line of text above it."""
_OPACITIES = (0.75, 0.5, 0.35, 0.6, 0.25)
"""Shades of neighboring parts; the color is that of the text, so that dark themes are readable."""


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
    preformatted = f'<pre style="line-height:1.3;overflow-x:auto">{escape(text)}</pre>' if text else ""
    return f"<div><strong>{escape(title)}</strong>{drawings}{preformatted}</div>"


def page_html(page: str, height: int) -> str:
    """Return a complete page as a frame of the given height in pixels."""
    style = f"width:100%;height:{height}px;border:0"
    return f'<iframe srcdoc="{escape(page)}" sandbox="" style="{style}"></iframe>'


def _bar_html(bar: MemoryBar) -> str:
    scale = _WIDTH / max(bar.total_bytes, bar.limit_bytes or 0, 1)
    limit = "" if bar.limit_bytes is None else f" of {format_bytes(bar.limit_bytes)}"
    label = escape(f"{bar.label}: {format_bytes(bar.total_bytes)}{limit}")
    shapes = "".join(_part_shapes(list(bar.parts.items()), scale))
    if bar.limit_bytes is not None:
        x = bar.limit_bytes * scale
        shapes += (
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_LABEL_HEIGHT - 3}" y2="{_LABEL_HEIGHT + _HEIGHT + 3}" '
            'stroke="currentColor" stroke-width="2"/>'
        )
    return (
        f'<svg role="img" aria-label="{label}" width="{_WIDTH + 2}" height="{_LABEL_HEIGHT + _HEIGHT + 6}" '
        'style="display:block;margin:6px 0">'
        f'<text x="0" y="11" font-size="12" fill="currentColor">{label}</text>{shapes}</svg>'
    )


def _part_shapes(parts: Sequence[tuple[str, int]], scale: float) -> Iterable[str]:
    start_bytes = 0
    for index, (name, nbytes) in enumerate(parts):
        x, width = start_bytes * scale, nbytes * scale
        start_bytes += nbytes
        yield (
            f'<rect x="{x:.1f}" y="{_LABEL_HEIGHT}" width="{width:.1f}" height="{_HEIGHT}" '
            f'fill="currentColor" fill-opacity="{_OPACITIES[index % len(_OPACITIES)]}">'
            f"<title>{escape(name)}: {format_bytes(nbytes)}</title></rect>"
        )
