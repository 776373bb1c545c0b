"""Jobs of the service on a page: subject, progress, cancel, run again, result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import streamlit as st

from accelera.service._internal import JobStatus
from accelera.ui.connection import ask, service
from accelera.ui.failures import failures_shown, sentence_of
from accelera.ui.pictures import escaped
from accelera.ui.results import show_result

MOST_TRACES = 200
_MODES = {"inference": "inference", "training": "training", "decode": "generation"}
KINDS = {
    "sweep": "Sweep",
    "advise": "Advice",
    "bounds": "Least bytes",
    "capture": "Capture",
    "estimate": "Estimate",
    "plan": "Plan",
    "curves": "Curves",
}
"""Kinds of jobs in words."""


def subject_of(request: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Return what a request is about; ``names`` are those of stored traces by digest."""
    source, config = request.get("source"), request.get("config")
    if isinstance(source, str):
        return names.get(source, f"a trace that is deleted ({source[:8]})")
    if isinstance(source, Mapping):
        return _model(source)
    if isinstance(config, Mapping):
        made = config.get("_name_or_path") or config.get("model_type") or "a model"
        return ", ".join([str(made)[:60], *_sizes(request, "batch", "context")])
    return f"product of {request['a']} and {request['b']}" if "a" in request and "b" in request else ""


def _model(source: Mapping[str, Any]) -> str:
    known = {(each["num_layers"], each["hidden_size"]): each["name"] for each in ask("models")["models"]}
    layers = source.get("num_layers", 12)
    name = known.get((layers, source.get("hidden_size")))
    kind = str(source.get("model_type", "Transformer"))
    made = f"{name} model" if name and kind == "Transformer" else f"{kind} of {layers} layers"
    mode = _MODES.get(str(source.get("mode", "inference")), "")
    return ", ".join([made, mode, *_sizes(source, "batch_size", "seq_length")])


def _sizes(request: Mapping[str, Any], batch: str, context: str) -> list[str]:
    given = (("batch", request.get(batch)), ("context", request.get(context)))
    return [f"{word} {count}" for word, count in given if count]


def trace_names() -> dict[str, str]:
    """Return the names of stored traces by digest."""
    return {each.digest: each.name for each in service().traces(MOST_TRACES)}


SHOWN = 12
EVERY_S = 1.0
_STATES = {
    "queued": ":gray-badge[waits]",
    "running": ":blue-badge[runs]",
    "done": ":green-badge[done]",
    "failed": ":red-badge[failed]",
    "cancelled": ":gray-badge[cancelled]",
    "interrupted": ":orange-badge[interrupted]",
}


def job_list(*, kinds: tuple[str, ...] = (), only: tuple[str, ...] = ()) -> None:
    """Draw the newest jobs, of some kinds or in some states; those under way are looked at every second."""
    with failures_shown("jobs", stop=False):
        jobs = [
            job
            for job in service().jobs(100)
            if (not kinds or job.kind in kinds) and (not only or job.state in only)
        ][:SHOWN]
        names = trace_names() if jobs else {}
        if any(not job.has_ended for job in jobs):
            st.fragment(_rows, run_every=EVERY_S)([job.id for job in jobs], names)
        elif jobs:
            for job in jobs:
                _row(job, names)
        else:
            st.markdown(":gray[No jobs: a sweep or advice is started above.]" if not only else ":gray[None.]")


def linked_job() -> None:
    """Draw the result of the job that the address names, if it names one."""
    id = st.query_params.get("job")
    if not id:
        return
    with failures_shown("linked", stop=False):
        job = service().job(id)
        about = subject_of(job.request or {}, trace_names())
        kind = KINDS.get(job.kind, job.kind)
        st.header(f"{kind}: {escaped(about)}" if about else kind, anchor=False)
        if job.state == "done":
            show_result(job.kind, service().result(job.id), f"linked_{job.id}")
        else:
            st.markdown(f"It is {job.state}: there is no result.")


def _rows(ids: list[str], names: Mapping[str, str]) -> None:
    """Draw jobs that are under way; the whole page is drawn once more when all have ended."""
    known = {job.id: job for job in service().jobs(100)}
    jobs = [known[id] for id in ids if id in known]
    for job in jobs:
        _row(job, names)
    if all(job.has_ended for job in jobs):
        st.rerun()


def _row(job: JobStatus, names: Mapping[str, str]) -> None:
    with st.container(border=True, key=f"job_{job.id}"):
        with st.container(horizontal=True, vertical_alignment="center"):
            began = moment(job.created_s)
            kind = KINDS.get(job.kind, job.kind)
            about = subject_of(job.request or {}, names)
            name = f"**{kind}**" + (f" {escaped(about)}" if about else "")
            st.markdown(f"{name} {_STATES.get(job.state, job.state)} :gray[{began}]", width="stretch")
            _actions(job)
        if not job.has_ended:
            st.progress(min(max(job.progress, 0.01), 1.0), job.doing or "waits for a worker")
        if job.error:
            st.markdown(escaped(sentence_of(job.error)))
        if st.session_state.get("_result") == job.id and job.state == "done":
            show_result(job.kind, service().result(job.id), job.id)


def _actions(job: JobStatus) -> None:
    if not job.has_ended:
        st.button("Cancel", key=f"cancel_{job.id}", on_click=_do, args=("cancel", job.id))
        return
    if job.state == "done":
        st.button("Show", key=f"show_{job.id}", on_click=_toggle, args=(job.id,))
        st.download_button(
            "JSON",
            lambda: json.dumps(service().result(job.id), indent=1),
            f"{job.kind}-{job.id[:8]}.json",
            "application/json",
            key=f"json_{job.id}",
            on_click="ignore",
        )
    else:
        st.button("Run again", key=f"rerun_{job.id}", on_click=_do, args=("rerun", job.id))
    st.button("Delete", key=f"forget_{job.id}", on_click=_do, args=("delete_job", job.id))


def _toggle(id: str) -> None:
    st.session_state["_result"] = None if st.session_state.get("_result") == id else id


def _do(method: str, id: str) -> None:
    with failures_shown("job_change", stop=False):
        getattr(service(), method)(id)


def moment(seconds: float) -> str:
    """Return a time as people of the reader's zone write it: minutes are enough."""
    zone = st.context.timezone
    when = datetime.fromtimestamp(seconds, timezone.utc)
    if zone:
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

        try:
            when = when.astimezone(ZoneInfo(zone))
        except (ZoneInfoNotFoundError, ValueError):
            zone = None
    return f"{when:%-d %b %Y, %H:%M}" + ("" if zone else " UTC")
