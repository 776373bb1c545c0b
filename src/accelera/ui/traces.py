"""Page Traces: upload, capture, list, download and delete; jobs that sweep or advise."""

from __future__ import annotations

import streamlit as st

from accelera._plotting import format_size
from accelera.errors import ServiceError
from accelera.service._internal import TraceRecord
from accelera.ui.connection import answers, service
from accelera.ui.failures import failures_shown, message_of
from accelera.ui.jobs import job_list, linked_job, moment
from accelera.ui.pictures import escaped, main_button, note, page_of
from accelera.ui.questions import DTYPES, config_of

_BY_NAME = "By the end of its name"
FORMATS = {
    _BY_NAME: None,
    "Parquet": "parquet",
    "CSV": "csv",
    "JSON": "json",
    "PyTorch memory snapshot": "torch_snapshot",
    "libCacheSim, oracleGeneral": "oracle_general",
    "libCacheSim, CSV": "libcachesim_csv",
}
SHOWN = 50
SWEEP_CAPACITIES = 20
"""Capacities of a sweep."""
CAPACITIES = (10, 25, 50, 75, 90)
KINDS = ("sweep", "advise", "bounds", "capture")


def show() -> None:
    """Draw the page."""
    title = st.container()
    linked_job()
    left, right = st.columns(2, gap="large")
    with left:
        _upload()
    with right:
        _capture()
    with failures_shown("traces"):
        stored = service().traces(SHOWN)
    with title:
        st.title(_headline(len(stored)), anchor=False)
    st.header("Stored traces", anchor=False)
    if not stored:
        st.info("Nothing is stored yet. Upload a trace, or capture a model: both appear here.")
    for trace in stored:
        _row(trace)
    if stored:
        _job_form(stored)
    st.header("Jobs", anchor=False)
    job_list(kinds=KINDS)


def _headline(count: int) -> str:
    if not count:
        return "No traces yet: upload one, or capture a model."
    return "One trace is stored." if count == 1 else f"{count} traces are stored."


def _upload() -> None:
    st.header("Upload a trace", anchor=False)
    with st.form("upload", border=True, clear_on_submit=True):
        file = st.file_uploader("Parquet, CSV, JSON, a PyTorch memory snapshot, or libCacheSim", key="file")
        format_label = st.selectbox("Format", list(FORMATS), key="format")
        is_submitted = st.form_submit_button("Store the trace", type=main_button())
    if not is_submitted:
        return
    if file is None:
        st.warning("Choose a file first.")
        return
    with failures_shown("upload", stop=False), st.spinner("The service reads the file …"):
        before = {each.digest for each in service().traces(SHOWN)}
        found = service().upload_trace(file.getvalue(), file.name, FORMATS[str(format_label)])
        again = " It was stored already." if found.digest in before else ""
        st.success(f"{escaped(found.name)}: {found.accesses:,} accesses of {found.buffers:,} tensors.{again}")


def _capture() -> None:
    st.header("Capture a model", anchor=False)
    with st.form("capture", border=True):
        file = st.file_uploader("Hugging Face config.json", type=["json"], key="config")
        one, two, three = st.columns(3)
        batch = one.number_input("Batch", value=1, key="capture_batch")
        context = two.number_input("Context", value=512, key="capture_context")
        dtype = three.selectbox("Element type", DTYPES, key="capture_dtype")
        training = st.checkbox("A training step", key="capture_training")
        is_submitted = st.form_submit_button("Capture the model", type=main_button())
    if not is_submitted:
        return
    if file is None:
        st.warning("Choose a config.json first; every model on Hugging Face has one.")
        return
    config = config_of(file)
    if config is None:
        return
    with failures_shown("capture", stop=False):
        body = {
            "config": config,
            "batch": int(batch),
            "context": int(context),
            "training": training,
            "dtype": dtype,
        }
        service().submit("captures", body)
        st.success("The model is being traced by a job below; its trace appears here when that is done.")


def _row(trace: TraceRecord) -> None:
    with st.container(border=True, key=f"trace_{trace.digest[:12]}"):
        st.markdown(f"**{escaped(trace.name)}** :gray[{moment(trace.created_s)}]")
        st.markdown(
            f"{trace.accesses:,} accesses of {trace.buffers:,} tensors in {trace.steps:,} steps; "
            f"all tensors together {format_size(trace.footprint_bytes)}"
        )
        with st.container(horizontal=True, vertical_alignment="center"):
            for page in ("fit", "policies", "timeline"):
                st.page_link(page_of(page), label=page.capitalize(), query_params={"trace": trace.digest})
            st.download_button(
                "Download",
                lambda: service().download_trace(trace.digest),
                f"{trace.digest[:12]}.parquet",
                "application/vnd.apache.parquet",
                key=f"download_{trace.digest[:12]}",
                on_click="ignore",
            )
            with st.popover("Delete", key=f"delete_{trace.digest[:12]}"):
                st.markdown("What was found out about it stays in the history.")
                st.button(
                    "Delete the trace",
                    key=f"sure_{trace.digest[:12]}",
                    on_click=_delete,
                    args=(trace.digest,),
                )


def _delete(digest: str) -> None:
    try:
        service().delete_trace(digest)
        answers().forget()
    except ServiceError as error:
        st.error(message_of(error))


def _job_form(stored: list[TraceRecord]) -> None:
    st.header("Sweep or ask for advice", anchor=False)
    note("Both replay the whole trace many times, as a job that goes on when you leave.")
    names = {each.digest: f"{each.name} ({each.accesses:,} accesses)" for each in stored}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        digest = st.selectbox(
            "Trace", list(names), format_func=lambda one: names[one], key="asked", width=320
        )
        share = st.select_slider(
            "Memory for advice (% of the peak)", CAPACITIES, value=50, key="at", width=240
        )
        sweep = st.button("Sweep policies", key="sweep")
        advise = st.button("Advise", key="advise")
    with failures_shown("submit", stop=False):
        if sweep:
            service().submit("sweeps", {"source": digest, "capacities": SWEEP_CAPACITIES})
        if advise:
            service().submit("advise", {"source": digest, "capacity": f"{share}%"})
