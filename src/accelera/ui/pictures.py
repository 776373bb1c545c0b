"""Parts of every page: links to other pages, charts with their legends and their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, Literal

import streamlit as st

PAGES = ("fit", "policies", "timeline", "traces", "history")
"""In the order of the navigation; the first is where visitors start."""


def page_of(name: str, shown: Callable[[], None] | None = None) -> st.Page:
    """Return the page; ``shown`` draws it, and is left out in a link to it."""
    known = st.session_state.setdefault("_pages", {})
    if shown is not None:
        known[name] = st.Page(
            shown,
            title=name.capitalize(),
            url_path="" if name == PAGES[0] else name,
            default=name == PAGES[0],
        )
    page: st.Page = known[name]
    return page


FONT = "'Source Sans', 'Source Sans Pro', sans-serif"
"""Of the page, so that the charts look the same."""
SVG_POINTS = 5_000
"""Above this the canvas is faster than SVG."""


def theme() -> str:
    """Return ``"light"`` or ``"dark"``, as the reader's page is."""
    return "dark" if st.context.theme.type == "dark" else "light"


def main_button() -> Literal["primary", "secondary"]:
    """Return the type of a form's button: white on the accent is too pale on dark pages."""
    return "primary" if theme() == "light" else "secondary"


def draw(option: Mapping[str, Any], key: str | None, height: int) -> None:
    """Draw a chart; screen readers hear the description that is in its option."""
    points = sum(len(series.get("data") or ()) for series in option.get("series", ()))
    text = {**option.get("textStyle", {}), "fontFamily": FONT}
    st.echarts_chart(
        {**option, "textStyle": text},
        height=height,
        theme=None,
        key=key,
        renderer="canvas" if points > SVG_POINTS else "svg",
    )


def legend(
    rows: Sequence[Mapping[str, str]],
    lead: str = "",
    apart: Sequence[Mapping[str, str]] = (),
    lead_apart: str = "",
) -> None:
    """Draw labels with their colours and sizes; they wrap on narrow screens.

    ``apart`` are rows behind a rule: what is in them is not to be added to the others.
    """
    parts = _parts(rows, lead)
    if apart:
        inner = "".join(_parts(apart, lead_apart))
        rule = "display:flex;flex-wrap:wrap;gap:.3rem .6rem;border-left:1px solid;padding-left:1.1rem"
        parts.append(f'<span style="{rule}">{inner}</span>')
    body = "".join(parts)
    st.html(f'<div style="display:flex;flex-wrap:wrap;gap:.3rem 1.1rem;font-size:.95rem">{body}</div>')


def _parts(rows: Sequence[Mapping[str, str]], lead: str) -> list[str]:
    parts = [f"<span>{escape(lead)}</span>"] if lead else []
    for row in rows:
        square = (
            f'<span style="display:inline-block;width:.8em;height:.8em;border-radius:3px;'
            f'margin-right:.4em;background:{escape(row["colour"])}"></span>'
        )
        text = f" <b>{escape(row['text'])}</b>" if row.get("text") else ""
        parts.append(f'<span style="white-space:nowrap">{square}{escape(row["label"])}{text}</span>')
    return parts


def escaped(text: str) -> str:
    """Return a text as Markdown that shows it as it is."""
    return "".join(f"\\{letter}" if letter in r"\`*_{}[]()#+-.!|<>$:~" else letter for letter in text)


def note(text: str) -> None:
    """Write small print in a colour that is readable, which ``st.caption`` is not on narrow screens."""
    st.markdown(f":gray[:small[{text}]]")
