"""Pages by name, for navigation and for links from one to another."""

from __future__ import annotations

from collections.abc import Callable

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
