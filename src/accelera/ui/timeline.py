"""Page Timeline: transfers against compute, and the memory under the budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from accelera._plotting import format_budget, format_count, format_size
from accelera.charts._internal import TIMELINE_HEIGHT, timeline_chart
from accelera.ui.connection import ask, service
from accelera.ui.controls import BOUND, controls
from accelera.ui.exports import ChartExport, keep_and_export
from accelera.ui.failures import failures_shown
from accelera.ui.pictures import draw, note, theme
from accelera.ui.questions import GB, POLICIES, ConfigQuestion, Question
from accelera.units import format_seconds

AHEAD = (0, 1, 2, 4, 8, 16)
"""Steps on the slider."""


def show() -> None:
    """Draw the page."""
    question = controls(policies=False)
    if isinstance(question, ConfigQuestion):
        st.title("Capture the model first.", anchor=False)
        st.info("A timeline needs a trace: on the page Fit, press **Capture its accesses**, then open it.")
        return
    title = st.container()
    with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
        policy = st.selectbox(
            "Policy of the timeline",
            list(POLICIES),
            index=list(POLICIES).index("belady"),
            format_func=POLICIES.__getitem__,
            key="timeline_policy",
            bind=BOUND,
            width=260,
        )
        ahead = st.select_slider(
            "Load ahead (operations)", AHEAD, value=1, key="ahead", bind=BOUND, width=320
        )
    options = {**question.options(), "policy": policy, "lookahead": ahead}
    options.pop("policies")
    with failures_shown("timeline"):
        found = ask("timeline", question.source, question.budget_bytes, **options)
    with title:
        st.title(headline_of(found), anchor=False)
        st.markdown(_sentence(found, question))
    draw(timeline_chart(found, theme()), None, TIMELINE_HEIGHT)
    _figures(found)
    if found.get("left_out"):
        count = format_count(found["left_out"])
        note(f"{count} spans lie too close together to be drawn alone: they are paler, merged with others.")
    request = {**question.request(), "policy": policy, "lookahead": ahead}
    pictures = [ChartExport("timeline", found)]
    figures = {"seconds": found["seconds"], "waiting_seconds": found["waiting_seconds"]}
    keep_and_export(
        "timeline", request, headline_of(found), figures, pictures, lambda: _report(question, found)
    )


def _report(question: Question, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contents of a report: the timeline, and the fit it belongs to."""
    fit = service().fit(question.source, question.budget_bytes, **question.options())
    return {"fit": fit, "timeline": found}


def headline_of(found: Mapping[str, Any]) -> str:
    """Return how much of the time is spent on waiting."""
    share = found["waiting_seconds"] / found["seconds"] if found["seconds"] else 0.0
    total = format_seconds(found["seconds"])
    if share < 0.01:
        return f"It takes {total}, and computing never waits for memory."
    return f"It takes {total}, and {share:.0%} of that is waiting for memory, the first load included."


def _sentence(found: Mapping[str, Any], question: Question) -> str:
    busy = found["busy"]
    words = [f"computing for **{format_seconds(busy['compute'])}**"]
    words += [
        f"{_word(name)} for **{format_seconds(busy[name])}**"
        for name in busy
        if name != "compute" and busy[name]
    ]
    within = format_budget(question.budget_bytes)
    link = f"{question.link_bytes_per_s / GB:g} GB/s"
    return f"Within {within} and over {link} it is {', '.join(words)}; loads overlap computing."


def _word(lane: str) -> str:
    """Return what a lane does: ``disk read`` is reading from disk."""
    tier, _, way = lane.rpartition(" ")
    if not tier:
        return {"load": "loading", "store": "writing back"}.get(lane, lane)
    return f"reading from {tier}" if way == "read" else f"writing to {tier}"


def _figures(found: Mapping[str, Any]) -> None:
    with st.container(horizontal=True):
        st.metric("Computing", format_seconds(found["busy"]["compute"]), width="content")
        st.metric("Loading", format_seconds(found["busy"].get("load", 0)), width="content")
        st.metric("Writing back", format_seconds(found["busy"].get("store", 0)), width="content")
        for name in list(found["busy"])[3:]:
            st.metric(_word(name).capitalize(), format_seconds(found["busy"][name]), width="content")
        st.metric("Waiting", format_seconds(found["waiting_seconds"]), width="content")
        if found["occupancy"]["bytes"]:
            st.metric("Most in memory", format_size(max(found["occupancy"]["bytes"])), width="content")
