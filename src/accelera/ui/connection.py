"""Connection of the pages to the service: one client for all sessions, and a cache of answers."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import streamlit as st

from accelera.service import CopilotClient
from accelera.service._internal import JobStatus

MOST_ANSWERS = 256
"""Answers in the cache: a slider that is moved back shows its chart at once."""
TIMEOUT_S = 60.0


@st.cache_resource(show_spinner=False)
def service() -> CopilotClient:
    """Return the client of the service that was named in the arguments after ``--``, else in the settings."""
    parser = argparse.ArgumentParser(prog="streamlit run main.py --", allow_abbrev=False)
    parser.add_argument("--service", metavar="URL", default=None)
    arguments, _ = parser.parse_known_args(sys.argv[1:])
    return CopilotClient(arguments.service, timeout=TIMEOUT_S)


class AnswerCache:
    """LRU cache of the service's answers, by request; shared by all sessions, since all send one token."""

    def __init__(self, most: int = MOST_ANSWERS) -> None:
        self._most = most
        self._answers: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str, find: Callable[[], Any]) -> Any:
        """Return the answer for ``key``; on a miss, what ``find`` returns."""
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                return self._answers[key]
        answer = find()
        with self._lock:
            self._answers[key] = answer
            while len(self._answers) > self._most:
                self._answers.popitem(last=False)
        return answer

    def all(self) -> dict[str, Any]:
        """Return all cached answers by key."""
        with self._lock:
            return dict(self._answers)

    def forget(self) -> None:
        """Empty the cache: something was deleted, or another service is used."""
        with self._lock:
            self._answers.clear()


@st.cache_resource(show_spinner=False)
def answers() -> AnswerCache:
    """Return the cache of this process."""
    return AnswerCache()


def ask(method: str, *args: Any, **options: Any) -> Any:
    """Return the result of a method of the client, from the cache if an equal call was made before.

    While a job runs, its progress is shown. Callers must not change the result, which is shared.
    """
    key = json.dumps([method, args, options], sort_keys=True)
    place = st.empty()  # also on a cache hit, so that what follows keeps its place on the page

    def find() -> Any:
        try:
            return getattr(service(), method)(*args, **options, **_progress(method, place))
        finally:
            place.empty()

    return answers().get(key, find)


_LONG = ("fit", "ways_to_fit", "least_bytes", "curves", "timeline", "estimate", "plan")


def _progress(method: str, place: Any) -> dict[str, Any]:
    return {"on_progress": progress_in(place)} if method in _LONG else {}


def progress_in(place: Any) -> Callable[[JobStatus], None]:
    """Return a callback that draws a job's progress in ``place``, an ``st.empty`` of the page."""

    def draw_progress(job: JobStatus) -> None:
        if not job.has_ended:
            place.progress(min(max(job.progress, 0.02), 1.0), job.doing or f"{job.kind}: {job.state}")

    return draw_progress
