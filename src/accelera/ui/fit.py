"""Page Fit: whether it fits, what fills the memory, what it costs, and the ways out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import streamlit as st

from accelera._plotting import format_budget, format_count, format_size
from accelera.charts._internal import (
    CURVES_HEIGHT,
    OCCUPANCY_HEIGHT,
    bars_height,
    curves_chart,
    curves_legend,
    occupancy_chart,
    occupancy_legend,
    policy_bars,
)
from accelera.ui.connection import ask, service
from accelera.ui.controls import apply, controls
from accelera.ui.exports import ChartExport, keep_and_export, pictures_of
from accelera.ui.failures import failures_shown
from accelera.ui.huggingface import show_config
from accelera.ui.pictures import draw, legend, note, theme
from accelera.ui.questions import GB, ConfigQuestion, Question

POINTS = 40
EXCESS = "above the budget"
"""A part of what the roles take together, and no role."""
_SIZE = re.compile(r"(\d) ([kMGTP]?B\b)")


def show() -> None:
    """Draw the page in the order in which answers come."""
    question = controls()
    if isinstance(question, ConfigQuestion):
        show_config(question)
        return
    with failures_shown("fit"):
        found = ask("fit", question.source, question.budget_bytes, **question.options())
    verdict = found["verdict"]
    st.title(_headline(verdict["headline"]), anchor=False)
    st.markdown(_emphasised(verdict["sentence"]))
    ways = st.container(key="ways")
    _occupancy(found["occupancy"])
    left, right = st.columns(2, gap="large")
    with left:
        bars = _bars(found["comparison"], question, verdict)
        least = st.container()
    with right:
        curve = st.container()
    end = st.container()
    with ways:
        _ways(question)
    if bars is not None:
        with least:
            _add_least(bars, found["comparison"], question)
    with curve:
        curves = _curve(question)
    with end:
        _small_print(found, question)
        pictures = pictures_of(found)
        if curves is not None:
            pictures.append(ChartExport("curves", curves, question.budget_bytes))
        keep_and_export(
            "fit",
            question.request(),
            verdict["headline"],
            verdict,
            pictures,
            lambda: _report(question, found, curves),
        )


def _report(question: Question, found: Mapping[str, Any], curves: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the contents of a report, with the timeline of the best policy."""
    contents = {"fit": found, **({} if curves is None else {"curves": curves})}
    best = found["verdict"].get("best_policy")
    if best:
        options = {**question.options(), "policy": best, "lookahead": 1}
        del options["policies"]
        contents["timeline"] = service().timeline(question.source, question.budget_bytes, **options)
    return contents


def _headline(text: str) -> str:
    """Return the headline as Markdown: what is missing in red, what is left in green, sizes unbroken."""
    text = _SIZE.sub("\\1\u00a0\\2", text.replace("$", r"\$"))
    return re.sub(r"(\d\S*\u00a0[kMGTP]?B) (short|left)", _coloured, text)


def _coloured(found: re.Match[str]) -> str:
    colour = "red" if found[2] == "short" else "green"
    return f":{colour}[{found[1]}\u00a0{found[2]}]"


def _emphasised(text: str) -> str:
    """Return the sentence with its ratios in bold."""
    text = text.replace("$", r"\$")
    return re.sub(r"(\d[\d.,]*× as (?:long|much)|\d+% (?:longer|more))", r"**\1**", text)


def _ways(question: Question) -> None:
    with failures_shown("ways", stop=False):
        found = ask("ways_to_fit", question.source, question.budget_bytes, **question.options())
        cards = ask("models")["cards"]
        row = st.container(horizontal=True, vertical_alignment="center", gap="small")
        with row:
            if found["ways"]:
                st.markdown("To make it fit:", width="content")
            elif not found["fits"]:
                st.markdown("No single change makes it fit.", width="content")
            for index, way in enumerate(found["ways"]):
                st.button(
                    way["label"],
                    key=f"way_{index}",
                    icon=":material/check_circle:",
                    on_click=apply,
                    args=(way["changes"], cards),
                )
            if found["room"]:
                still = " · ".join(f"**{each['label']}**" for each in found["room"])
                st.markdown(f"Room for more: {still}", width="content")


def _occupancy(occupancy: Mapping[str, Any]) -> None:
    st.header("What fills the memory, step by step", anchor=False)
    rows = occupancy_legend(occupancy, theme())
    excess = [row for row in rows if row["label"] == EXCESS]
    legend([row for row in rows if row not in excess], "at the peak:", excess, "of that:")
    draw(occupancy_chart(occupancy, theme()), "occupancy", OCCUPANCY_HEIGHT)


def _bars(comparison: Mapping[str, Any], question: Question, verdict: Mapping[str, Any]) -> Any:
    """Draw the policies and return the place of their chart; None where nothing is to be drawn."""
    budget, per = format_budget(question.budget_bytes), comparison["per"]
    st.header(f"What {budget} makes you move, per {per}", anchor=False)
    if verdict["fits"]:
        left = format_size(-verdict["short_bytes"])
        st.markdown(f"Nothing: all of it stays in memory, with **{left}** to spare.")
        return None
    if not comparison["policies"]:
        st.markdown("No schedule runs in so little memory: take more than the largest operation needs.")
        return None
    place = st.empty()
    _draw_bars(place, comparison)
    return place


def _draw_bars(place: Any, comparison: Mapping[str, Any]) -> None:
    with place:
        draw(policy_bars(comparison, theme()), None, bars_height(comparison))


def _add_least(place: Any, comparison: Mapping[str, Any], question: Question) -> None:
    with failures_shown("least", stop=False):
        least = ask("least_bytes", question.source, question.budget_bytes, **question.options())
        _draw_bars(place, {**comparison, "least_bytes": least})


def _curve(question: Question) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = None
    st.header("What more memory would buy", anchor=False)
    with failures_shown("curve", stop=False):
        # Bytes depend neither on the budget nor on the link: one kept answer serves all of them.
        options = {"policies": list(question.policies), "points": POINTS, "hierarchy": question.hierarchy}
        labels, chart = st.empty(), st.empty()
        for bound in (False, True):
            found = ask("curves", question.source, bound=bound, **options)
            with labels:
                legend(curves_legend(found, theme()))
            with chart:
                draw(curves_chart(found, question.budget_bytes, theme()), None, CURVES_HEIGHT)
    return found


def _small_print(found: Mapping[str, Any], question: Question) -> None:
    steps = found["occupancy"]["steps_in_all"]
    made = "a stored trace" if isinstance(question.source, str) else "a synthetic trace"
    note(
        f"{format_count(steps)} operations of {made}, replayed under {len(question.policies)} policies; "
        f"figures are per {found['verdict']['per']}, the first load aside. Times are modelled for "
        f"{question.link_bytes_per_s / GB:g} GB/s. 1 GB is 10⁹ bytes."
    )
