"""Fit of a model of a Hugging Face configuration, and the plan that makes it fit; part of the page Fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from accelera._plotting import format_budget, format_count, format_size
from accelera.errors import ServiceError
from accelera.ui.connection import ask, progress_in, service
from accelera.ui.exports import keep_and_export
from accelera.ui.failures import failures_shown, message_of
from accelera.ui.pictures import note, page_of
from accelera.ui.questions import ConfigQuestion

PHASES = {"Train": "training", "Infer": "inference", "Generate": "generation"}
_VERBS = {"Train": "Training", "Infer": "Running", "Generate": "Generating with"}
_KINDS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer_state": "optimizer",
    "activations": "activations",
    "kv_cache": "KV cache",
    "temporaries": "temporaries",
    "inputs": "inputs",
}


def show_config(question: ConfigQuestion) -> None:
    """Draw the verdict, what takes the memory in each phase, and the plan that makes it fit."""
    if question.config is None:
        st.title("Will your model fit?", anchor=False)
        st.info("Choose the model's **config.json** in the sidebar. Its weights are not needed.")
        return
    waiting = st.empty()
    waiting.title("Following the model's operations …", anchor=False)
    with failures_shown("estimate"):
        found = ask(
            "estimate",
            dict(question.config),
            batch=question.batch,
            context=question.context,
            dtypes=[question.dtype],
        )
    waiting.empty()
    phase = _phase(found, PHASES[question.runs])
    short = phase["peak_bytes"] - question.budget_bytes
    verdict = f":red[{format_size(short)} short]" if short > 0 else f":green[{format_size(-short)} left]"
    need = f"{_VERBS[question.runs]} {found['model']} needs {format_size(phase['peak_bytes'])}."
    st.title(f"{need} You {'are' if short > 0 else 'have'} {verdict}.", anchor=False)
    st.markdown(
        f"{format_count(found['parameters'])} parameters in {question.dtype}, batch {found['batch']}, "
        f"context {found['context']:,}; the peak is during {phase['peak_op']}."
    )
    st.header("What takes the memory, at the peak of each phase", anchor=False)
    st.table(breakdown(found, question.budget_bytes).set_index("kind"))
    _plans(found, question)
    _capture(question)
    figures = {
        "needs_bytes": phase["peak_bytes"],
        "budget_bytes": question.budget_bytes,
        "short_bytes": short,
    }
    left = f"{format_size(abs(short))} {'short' if short > 0 else 'left'}"
    keep_and_export("estimate", question.request(), f"{need} {left}.", figures, [])


def _phase(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    phases: list[Mapping[str, Any]] = found["phases"]
    return next((each for each in phases if each["name"] == name), phases[0])


def breakdown(found: Mapping[str, Any], budget_bytes: int) -> pd.DataFrame:
    """Return bytes by kind and phase in words, with what is in all and what is short or left."""
    table: dict[str, list[str]] = {"kind": [*_KINDS.values(), "in all", f"in {format_budget(budget_bytes)}"]}
    for phase in found["phases"]:
        sizes = [phase["at_peak"].get(kind, 0) for kind in _KINDS]
        short = phase["peak_bytes"] - budget_bytes
        table[phase["name"]] = [
            *(format_size(size) if size else "–" for size in sizes),
            format_size(phase["peak_bytes"]),
            f"{format_size(short)} short" if short > 0 else f"fits, {format_size(-short)} left",
        ]
    shown: pd.DataFrame = pd.DataFrame(table)
    return shown


def _plans(found: Mapping[str, Any], question: ConfigQuestion) -> None:
    too_large = [
        train
        for train, names in ((False, ("inference", "generation")), (True, ("training",)))
        if any(p["peak_bytes"] > question.budget_bytes for p in found["phases"] if p["name"] in names)
    ]
    if not too_large:
        return
    st.header("The plan that makes it fit", anchor=False)
    note("Weights and activations lie in host memory or on disk, and come block by block as they are used.")
    for train in too_large:
        with failures_shown(f"plan_{train}", stop=False):
            plan = ask(
                "plan",
                "offload",
                config=dict(question.config or {}),
                batch=question.batch,
                context=question.context,
                train=train,
                dtype=question.dtype,
                budget=str(question.budget_bytes),
            )
            st.subheader("Training" if train else "Inference", anchor=False)
            _plan(plan)


def _plan(plan: Mapping[str, Any]) -> None:
    if not plan["fits"]:
        needed = plan.get("needed_bytes")
        least = f" The smallest budget that works is **{format_size(needed)}**." if needed else ""
        st.markdown(f"No plan fits.{least}")
    else:
        inner = plan["plan"]
        later = inner["passes"][-1]
        first, *rest = [f"{name} {format_size(size)}" for name, size in inner["peak_bytes"].items()]
        st.markdown(
            f"It fits: at most **{first}**{''.join(f', {each}' for each in rest)}. Each pass reads "
            f"**{format_size(later['bytes_read'])}** and writes {format_size(later['bytes_written'])}, "
            f"under the policy {inner['policy']}."
        )
    if plan.get("explanation"):
        with st.expander("The plan in full"):
            st.code(plan["explanation"], language=None, wrap_lines=True)


def _capture(question: ConfigQuestion) -> None:
    st.header("See its memory step by step", anchor=False)
    note("A capture follows the model's operations by their shapes; nothing is downloaded or computed.")
    if not st.button("Capture its accesses", key="capture_config", icon=":material/radio_button_checked:"):
        return
    place = st.empty()
    try:
        trace = service().capture(
            dict(question.config or {}),
            batch=question.batch,
            context=question.context,
            training=question.runs == "Train",
            dtype=question.dtype,
            generate_tokens=4 if question.runs == "Generate" else None,
            on_progress=progress_in(place),
        )
    except ServiceError as error:
        place.error(message_of(error))
        return
    place.success(f"{trace.accesses:,} accesses are stored.")
    st.page_link(page_of("fit"), label="Open it", query_params={"trace": trace.digest})
