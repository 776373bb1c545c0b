"""Page Policies: the seed's simulation, and policies side by side with what more memory would buy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from accelera._plotting import format_size
from accelera.charts._internal import (
    CURVES_HEIGHT,
    bars_height,
    curves_chart,
    curves_legend,
    policy_bars,
    policy_label,
)
from accelera.policy import POLICIES
from accelera.ui.connection import ask
from accelera.ui.controls import BOUND, show_stored, stored_trace
from accelera.ui.exports import ChartExport, keep_and_export, pictures_of
from accelera.ui.failures import failures_shown
from accelera.ui.pictures import draw, escaped, legend, note, theme
from accelera.ui.questions import USUAL
from accelera.ui.simulation import (
    headline_of,
    run_simulation,
    show_simulation,
    simulation_form,
    workload_of,
)

SHARES = (5, 10, 15, 20, 25, 30, 40, 50, 60, 70, 80, 90, 100)
"""Of the peak, in percent."""
UNSCORED = tuple(name for name in POLICIES if name not in ("scored", "learned"))
MEASURES = {"Misses": "miss_ratio", "Bytes moved": "moved"}


def show() -> None:
    """Draw the page."""
    stored = stored_trace()
    with st.sidebar:
        form = None if stored else simulation_form()
        if stored:
            show_stored(stored)
    if form is None:
        assert stored is not None
        compared = _compare(stored.digest, stored.name)
    else:
        with failures_shown("simulation"):
            found = run_simulation(form)
        st.title(headline_of(form, found), anchor=False)
        show_simulation(found)
        compared = _compare(workload_of(form))
    source = stored.digest if stored else workload_of(form or {})
    share = {"budget": f"{st.session_state['share']}%"}  # of the peak, as the page asks and opens again
    saved_request = {"source": source, **(share if form is None else {"simulation": form})}
    headline = headline_of(form, found) if form else compared["verdict"]["sentence"]
    pictures = ([ChartExport("heatmap", found["trace"])] if form else []) + pictures_of(compared)
    figures = found["figures"] if form else compared["verdict"]
    keep_and_export(
        "simulate" if form else "fit", saved_request, headline, figures, pictures, lambda: {"fit": compared}
    )


def headline_on(name: str, verdict: Mapping[str, Any]) -> str:
    """Return which policy is best on a trace, and how much less than LRU it moves."""
    budget = format_size(verdict["budget_bytes"])
    if verdict["fits"]:
        return f"{name} fits in {budget}: no policy has to move anything."
    if not verdict["best_policy"]:
        floor = format_size(verdict["floor_bytes"])
        return f"No policy runs {name} in {budget}: it takes {floor} at least."
    best, plain = verdict["moved_bytes"], verdict["plain_moved_bytes"]
    label, per = policy_label(verdict["best_policy"]), verdict["per"]
    moves = f"{format_size(best)} per {per} on {name} in {budget}"
    if plain is None or verdict["best_policy"] == verdict["plain_policy"]:
        return f"{label} moves least: {moves}."
    if plain <= best:
        return f"No policy moves less than LRU: {moves}."
    return f"{label} moves {moves}, {1 - best / plain:.0%} less than LRU."


def _compare(source: Mapping[str, Any] | str, name: str | None = None) -> dict[str, Any]:
    """Draw policies at one size of memory, and over all of them; return the answer.

    ``name`` is that of a stored trace: the page begins with the answer about it.
    """
    title = st.container()
    if name is None:
        title.header("Policies side by side", anchor=False)
    note("On a card that frees tensors after their last use. Policies marked so must know the schedule.")
    share = st.select_slider("Memory (% of the peak)", SHARES, value=50, key="share", bind=BOUND)
    chosen = st.pills(
        "Policies compared",
        UNSCORED,
        selection_mode="multi",
        default=list(USUAL),
        format_func=policy_label,
        key="compared",
        bind=BOUND,
    )
    names = list(chosen or USUAL)
    with failures_shown("compare"):
        found: dict[str, Any] = ask("fit", source, f"{share}%", policies=names)
    if name is not None:
        title.title(escaped(headline_on(name, found["verdict"])), anchor=False)
    left, right = st.columns(2, gap="large")
    with left:
        _bars(source, share, names, found)
    with right:
        _curves(source, names, found)
    return found


def _bars(source: Any, share: int, names: list[str], found: Mapping[str, Any]) -> None:
    comparison, verdict = found["comparison"], found["verdict"]
    st.header(f"Moved per {comparison['per']} in {format_size(verdict['budget_bytes'])}", anchor=False)
    if not comparison["policies"] or verdict["fits"]:
        st.markdown(verdict["sentence"].replace("$", r"\$"))
        return
    place = st.empty()
    height = bars_height(comparison)
    with place:
        draw(policy_bars(comparison, theme()), None, height)
    with failures_shown("least", stop=False):
        least = ask("least_bytes", source, f"{share}%", policies=names)
        with place:
            draw(policy_bars({**comparison, "least_bytes": least}, theme()), None, height)


def _curves(source: Any, names: list[str], found: Mapping[str, Any]) -> None:
    st.header("Over all sizes of memory", anchor=False)
    word = st.segmented_control(
        "Measure", list(MEASURES), default="Misses", required=True, key="measure", bind=BOUND
    )
    measure: Any = MEASURES[word or "Misses"]
    with failures_shown("curves", stop=False):
        curves = ask("curves", source, policies=names)
        legend(curves_legend(curves, theme(), measure=measure, chosen=names))
        budget = found["verdict"]["budget_bytes"]
        draw(curves_chart(curves, budget, theme(), measure=measure, chosen=names), None, CURVES_HEIGHT)
