"""Ways to save a page's answer: a run in the history, chart files and a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from accelera._extras import require
from accelera.charts import figure_bytes
from accelera.charts._internal import TITLES, Kind, table_bytes
from accelera.errors import BackendMissingError
from accelera.report import report_page
from accelera.ui.connection import service
from accelera.ui.failures import failures_shown, message_of
from accelera.ui.pictures import theme

FORMATS = {
    "PNG": "image/png",
    "SVG": "image/svg+xml",
    "CSV": "text/csv",
    "Parquet": "application/vnd.apache.parquet",
}
"""Media types by the names of formats."""
_FIGURES = (
    "needs_bytes",
    "budget_bytes",
    "short_bytes",
    "moved_bytes",
    "seconds",
    "compute_seconds",
    "slowdown",
    "best_policy",
    "plain_moved_bytes",
    "ratio",
    "least_bytes",
    "floor_bytes",
    "hit_ratio",
    "evictions",
    "total_s",
    "stall_s",
    "waiting_seconds",
    "per",
)


@dataclass(frozen=True)
class ChartExport:
    """A chart that can be exported, with the JSON of its view."""

    kind: Kind
    view: Any
    budget_bytes: int | None = None


def keep_and_export(
    kind: str,
    request: Mapping[str, Any],
    headline: str,
    figures: Mapping[str, Any],
    pictures: Sequence[ChartExport],
    report: Callable[[], Mapping[str, Any]] | None = None,
) -> None:
    """Draw the buttons that save an answer to the history and export its charts.

    ``report`` returns the contents of a report; it is called when the file is downloaded.
    """
    with st.container(horizontal=True, vertical_alignment="center", key="keeping"):
        if st.button("Save to history", icon=":material/bookmark_add:", key="save"):
            stored_figures = {name: figures[name] for name in _FIGURES if figures.get(name) is not None}
            with failures_shown("save", stop=False):
                service().save_run(
                    kind, request, title=headline[:200], headline=headline[:500], figures=stored_figures
                )
                st.toast("Saved: it is on the page History.", icon=":material/check:")
        if not pictures:
            return
        with st.popover("Export", icon=":material/download:", key="export"):
            _exports(pictures, theme())
            if report is not None:
                st.download_button(
                    "Report (one HTML file)",
                    lambda: report_page(report()).encode(),
                    "report.html",
                    "text/html",
                    key="export_report",
                    on_click="ignore",
                    width="stretch",
                )


@st.fragment
def _exports(pictures: Sequence[ChartExport], theme_name: str) -> None:
    """Draw the choice of a chart and a format, as a fragment: a choice does not redraw the page."""
    names = [TITLES[each.kind] for each in pictures]
    name = st.selectbox("What", names, key="export_what")
    format = str(st.selectbox("As", FORMATS, key="export_as"))
    chosen = pictures[names.index(str(name))] if name in names else pictures[0]
    try:
        _check_backend(format)
    except BackendMissingError as error:
        st.error(message_of(error))
        return
    st.download_button(
        f"Download the {format}",
        lambda: _file(chosen, format.lower(), theme_name),
        f"{chosen.kind}.{format.lower()}",
        FORMATS[format],
        key="export_file",
        on_click="ignore",
        width="stretch",
    )


def _check_backend(format: str) -> None:
    """Raise BackendMissingError if ``format`` needs an absent package: a download cannot show errors."""
    if format in ("PNG", "SVG"):
        require(f"export as {format}", "matplotlib", otherwise="or export the numbers as CSV")
    elif format == "Parquet":
        require("export as Parquet", "pyarrow", otherwise="or export as CSV")


def _file(picture: ChartExport, format: str, theme_name: str) -> bytes:
    if format in ("csv", "parquet"):
        return table_bytes(picture.view, picture.kind, "csv" if format == "csv" else "parquet")
    return figure_bytes(
        picture.view,
        picture.kind,
        "svg" if format == "svg" else "png",
        theme_name,
        budget_bytes=picture.budget_bytes,
    )


def pictures_of(found: Mapping[str, Any]) -> list[ChartExport]:
    """Return the pictures of a fit's answer."""
    pictures = [ChartExport("occupancy", found["occupancy"])]
    return pictures + (
        [ChartExport("policies", found["comparison"])] if found["comparison"]["policies"] else []
    )
