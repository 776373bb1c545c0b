"""Jobs of the service on a page: progress, cancel, run again, result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone

import streamlit as st

from accelera.service.client import JobStatus
from accelera.ui.connection import service
from accelera.ui.failures import failures_shown, sentence_of
from accelera.ui.pictures import escaped
from accelera.ui.results import show_result
from accelera.ui.subjects import KINDS, subject_of, trace_names

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
