"""Errors on a page: what went wrong and what to do, instead of a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import streamlit as st

from accelera.errors import AcceleraError, JobError, ServiceError, ServiceUnreachableError
from accelera.ui.connection import answers, service
from accelera.ui.pictures import escaped, page_of

_ENDPOINT_HINT = re.compile(r"; (?:GET|POST|PUT|DELETE) /\S+ .*$", re.DOTALL)
"""End of an error's text that names an endpoint: advice for programs, not for readers of a page."""
_START_COMMAND = "accelera serve --ui"


@contextmanager
def failures_shown(key: str, *, stop: bool = True) -> Iterator[None]:
    """Show an error of the service where the page would show its answer.

    Parameters
    ----------
    key
        Of the button that asks again; once on a page.
    stop
        Whether the page ends there; else only this part of it does.
    """
    try:
        yield
    except AcceleraError as error:
        _show(error, key, "page" if stop else "part")
        if stop:
            st.stop()


def _show(error: AcceleraError, key: str, extent: Literal["page", "part"]) -> None:
    if extent == "page":
        st.title("There is no answer.", anchor=False)
    if isinstance(error, ServiceUnreachableError):
        st.error(f"**The service does not answer** at {service().url}.")
        st.markdown("Start it in a terminal, then try again:")
        st.code(_START_COMMAND, language="bash")
    elif isinstance(error, JobError):
        st.error(f"**The job {error.state}.** {message_of(error)}")
        if st.button("Run it again", key=f"{key}_rerun"):
            service().rerun(error.id)
            st.rerun()
    elif isinstance(error, ServiceError):
        st.error(f"**{_title(error.status)}** {message_of(error)}")
        remedy = _REMEDIES.get(error.status)
        if remedy:
            st.markdown(remedy)
    else:
        st.error(message_of(error))
    if _is_gone(error, key):
        st.page_link(page_of("traces"), label="See the traces that are stored", icon=":material/list:")
    else:
        st.button("Try again", key=f"{key}_again", on_click=answers().forget)


def _is_gone(error: AcceleraError, key: str) -> bool:
    """Return whether the trace that the address names is not there, so that asking again cannot help."""
    if not isinstance(error, ServiceError) or "trace" not in st.query_params:
        return False
    return error.status == 404 or (key == "trace" and error.status == 422)


def message_of(error: AcceleraError) -> str:
    """Return an error's reason as Markdown of a sentence for people: without the operation's name."""
    text = str(error.problem.get("detail") or error) if isinstance(error, ServiceError) else str(error)
    return escaped(sentence_of(text))


def sentence_of(text: str) -> str:
    """Return an error's text as a sentence, without what only programs can use."""
    text = text.split("] ", 1)[1] if text.startswith("[") and "] " in text else text
    text = _ENDPOINT_HINT.sub("", text).strip()
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _title(status: int) -> str:
    return _TITLES.get(status, "The service failed." if status >= 500 else "That cannot be answered.")


_TITLES = {
    401: "The token is wrong or missing.",
    404: "It is not there any more.",
    413: "That is more than the service takes.",
    422: "That cannot be answered.",
    429: "Too many questions at once.",
    503: "The service is busy.",
}
_REMEDIES = {
    401: "Set `ACCELERA_COPILOT_TOKEN` to the token of the service, and start the UI again.",
    413: "Take fewer layers, a shorter context or a smaller file; the service's limits can be raised.",
    429: "Wait a few seconds.",
    503: "Wait a moment; jobs that are under way are listed on the page Traces.",
}
