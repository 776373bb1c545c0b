"""The service that the pages speak to: one client for all sessions, and answers that are kept."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import streamlit as st

from accelera.service.client import CopilotClient, JobStatus

ANSWERS = 256
"""Answers that are kept: a slider that is moved back shows its picture at once."""
TIMEOUT_S = 60.0


@st.cache_resource(show_spinner=False)
def service() -> CopilotClient:
    """Return the client of the service that was named in the arguments after ``--``, else in the settings."""
    parser = argparse.ArgumentParser(prog="streamlit run main.py --", allow_abbrev=False)
    parser.add_argument("--service", metavar="URL", default=None)
    given, _ = parser.parse_known_args(sys.argv[1:])
    return CopilotClient(given.service, timeout_s=TIMEOUT_S)


class Answers:
    """The latest answers of the service by what was asked; for all sessions, since all send one token."""

    def __init__(self, most: int = ANSWERS) -> None:
        self._most = most
        self._kept: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str, find: Callable[[], Any]) -> Any:
        """Return the answer to ``key``, asked for with ``find`` when it is not kept."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        found = find()
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return found

    def all(self) -> dict[str, Any]:
        """Return all that is kept."""
        with self._lock:
            return dict(self._kept)

    def forget(self) -> None:
        """Forget all: something was deleted, or the service is another."""
        with self._lock:
            self._kept.clear()


@st.cache_resource(show_spinner=False)
def answers() -> Answers:
    """Return the answers of this process."""
    return Answers()


def ask(method: str, *args: Any, **options: Any) -> Any:
    """Return what a method of the client answers, kept from an earlier time where it was asked before.

    A question that becomes a job shows its progress meanwhile. Callers do not change what they get.
    """
    key = json.dumps([method, args, options], sort_keys=True)
    place = st.empty()  # also where the answer is known: what follows keeps its place on the page

    def find() -> Any:
        try:
            return getattr(service(), method)(*args, **options, **_progress(method, place))
        finally:
            place.empty()

    return answers().get(key, find)


_LONG = ("fit", "ways_to_fit", "least_bytes", "curves", "timeline", "estimate", "plan")


def _progress(method: str, place: Any) -> dict[str, Any]:
    return {"on_progress": shown_in(place)} if method in _LONG else {}


def shown_in(place: Any) -> Callable[[JobStatus], None]:
    """Return what draws a job's progress in a place of the page."""

    def tell(job: JobStatus) -> None:
        if not job.has_ended:
            place.progress(min(max(job.progress, 0.02), 1.0), job.doing or f"{job.kind}: {job.state}")

    return tell
