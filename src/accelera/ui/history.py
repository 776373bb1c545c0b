"""Page History: runs that were kept, two of them side by side, and links that open them again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from accelera._plotting import format_ratio
from accelera.errors import ServiceError
from accelera.service._internal import PastRun
from accelera.ui.connection import ask, service
from accelera.ui.failures import failures_shown, message_of
from accelera.ui.jobs import KINDS, job_list, moment, subject_of, trace_names
from accelera.ui.pictures import escaped, note, page_of
from accelera.ui.policies import SHARES
from accelera.ui.questions import parameters_of
from accelera.ui.results import NAMES, figure_text

SHOWN = 30
_POLICY_KINDS = ("sweep", "advise", "bounds", "curves", "simulate")
"""Kinds of runs whose stored trace the page Policies shows."""


def show() -> None:
    """Draw the page."""
    with failures_shown("runs"):
        runs = service().runs(SHOWN)
    count = len(runs)
    st.title("One run is kept." if count == 1 else f"{count or 'No'} runs are kept.", anchor=False)
    if not runs:
        st.info("Nothing is kept yet. On the page Fit, choose a model and press **Save to history**.")
        st.page_link(page_of("fit"), label="Go to Fit")
    else:
        with failures_shown("traces"):
            names = trace_names()
        titles = {run.id: title_of(run, names) for run in runs}
        _compare(runs, titles)
        st.header("Runs", anchor=False)
        for run in runs:
            _row(run, titles[run.id])
    st.header("Interrupted and failed jobs", anchor=False)
    note("A service that was ended in the middle of a job says so here; one press runs it again.")
    job_list(only=("interrupted", "failed", "cancelled"))


def title_of(run: PastRun, names: Mapping[str, str]) -> str:
    """Return a run in a few words; those of jobs are called by the subject, ``names`` by digest."""
    subject = subject_of(run.request or {}, names) if run.job else ""
    return f"{KINDS.get(run.kind, run.kind)}: {subject}" if subject else run.title


def _row(run: PastRun, title: str) -> None:
    with st.container(border=True, key=f"run_{run.id[:12]}"):
        st.markdown(f"**{escaped(title)}** :gray-badge[{run.kind}] :gray[{moment(run.created_s)}]")
        if run.headline and run.headline != run.title:
            st.markdown(escaped(run.headline))
        with st.container(horizontal=True, vertical_alignment="center"):
            link = page_link_of(run)
            if link is not None:
                st.page_link(
                    page_of(link[0]),
                    label="Open again",
                    icon=":material/open_in_new:",
                    query_params=link[1],
                )
            if run.job:
                st.page_link(page_of("traces"), label="Result of the job", query_params={"job": run.job})
            st.button("Delete", key=f"drop_{run.id[:12]}", on_click=_delete, args=(run.id,))


def page_link_of(run: PastRun) -> tuple[str, Mapping[str, Any]] | None:
    """Return the page that shows a kept run again, and its query parameters; None where none does."""
    request = run.request or {}
    simulation, source = request.get("simulation"), request.get("source")
    if isinstance(simulation, Mapping):
        parameters = {name: str(value) for name, value in simulation.items()}
        return "policies", parameters | {"capacity": parameters.get("capacity", "64MB")[:-2]}
    if run.kind == "capture":
        digest = (run.figures or {}).get("digest")
        return ("fit", {"trace": str(digest)}) if digest else None
    if isinstance(source, Mapping) and not _is_on_fit(source):
        return "policies", {name: str(value) for name, value in source.items() if value is not None}
    if isinstance(source, str) and (run.kind in _POLICY_KINDS or _share_of(request)):
        share = _share_of(request)
        return "policies", {"trace": source} | ({"share": share} if share else {})
    if not isinstance(request.get("config"), Mapping) and source is None:
        return None
    return ("timeline" if run.kind == "timeline" else "fit"), parameters_of(request, ask("models"))


def _is_on_fit(source: Mapping[str, Any]) -> bool:
    """Return whether the page Fit has the controls of a model; the page Policies has those of the seed's."""
    return bool(source.get("hidden_size")) and source.get("model_type", "Transformer") == "Transformer"


def _share_of(request: Mapping[str, Any]) -> str:
    """Return the percent of a peak that a request asks about, where the page Policies has it."""
    size = str(request.get("budget") or request.get("capacity") or "")
    return size[:-1] if size.endswith("%") and size[:-1] in map(str, SHARES) else ""


def _delete(id: str) -> None:
    try:
        service().delete_run(id)
    except ServiceError as error:
        st.error(message_of(error))


def _compare(runs: list[PastRun], titles: Mapping[str, str]) -> None:
    st.header("Compare two", anchor=False)
    names = {run.id: f"{titles[run.id]} ({moment(run.created_s)})" for run in runs}
    left, right = st.columns(2)
    default = pair_of_a_kind(runs)
    one = left.selectbox(
        "First", list(names), index=default[0], format_func=lambda id: names[id], key="first"
    )
    two = right.selectbox(
        "Second", list(names), index=default[1], format_func=lambda id: names[id], key="second"
    )
    by_id = {run.id: run for run in runs}
    table = compared(by_id[str(one)], by_id[str(two)])
    if table.empty:
        st.markdown("These two have no figures in common.")
    else:
        st.table(table.set_index("figure"))


def pair_of_a_kind(runs: list[PastRun]) -> tuple[int, int]:
    """Return the indices of the newest two runs of one kind; (0, 1) when no two are of one kind."""
    for later, two in enumerate(runs):
        for earlier, one in enumerate(runs[:later]):
            if one.kind == two.kind:
                return earlier, later
    return 0, min(1, len(runs) - 1)


def compared(one: PastRun, two: PastRun) -> pd.DataFrame:
    """Return the figures of two runs side by side, those that differ with how much."""
    left, right = dict(one.figures or {}), dict(two.figures or {})
    rows = []
    for name in [*NAMES, *(each for each in left if each not in NAMES)]:
        if name in left and name in right:
            rows.append(
                (
                    NAMES.get(name, name.replace("_", " ")),
                    figure_text(name, left[name]),
                    figure_text(name, right[name]),
                    _change(left[name], right[name]),
                )
            )
    table: pd.DataFrame = pd.DataFrame(rows, columns=["figure", "first", "second", "second over first"])
    return table


def _change(left: Any, right: Any) -> str:
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (left, right))
    if not numbers:
        return "same" if left == right else "differs"
    if left == right:
        return "same"
    return format_ratio(right / left) if left > 0 and right > 0 else ""
