"""The threads of a stream: one draws its tasks, one for each side sees to it that they are done."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import final

from accelera.execution.executors.contract import Lane
from accelera.execution.streaming.feed import Feed
from accelera.execution.thread_context import ThreadContext
from accelera.execution.work.batch import GRACE_S, TOKEN_S
from accelera.execution.work.guarding import guarded


@final
class Background:
    """Works on a feed until it is over. Knows nothing of who takes the outputs, who may be gone.

    Parameters
    ----------
    feed
        The tasks.
    first
        Who works on them from the beginning.
    then
        Who joins in when something is left that only the CPU can do; None: nobody.
    """

    def __init__(self, feed: Feed, first: Sequence[Lane], then: Lane | None = None) -> None:
        self._feed = feed
        self._first, self._then = first, then
        self._cpu = first[0] if then is None else then
        self._working = len(first)
        self._lanes: list[threading.Thread] = []
        draw = functools.partial(ThreadContext().run, feed.draw)
        self._source = threading.Thread(target=draw, name="accelera-source", daemon=True)
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin."""
        self._feed.call_cpu = self._join_in
        self._source.start()
        for lane in self._first:
            self._start(lane)

    def wait(self) -> None:
        """Return when no task is under way any more, or may be left behind: after the token was set.

        A source that blocks is left behind too. Whoever works on a task itself cannot wait, and does not.
        """
        if threading.get_ident() in self._feed.takers:
            return
        for thread in self._lanes:  # one of them may start the last
            _join(thread, lambda: self._feed.cancelled)
        self._source.join(GRACE_S)

    def _join_in(self) -> None:
        with self._lock:
            lane, self._then = self._then, None
            if lane is not None:
                self._working += 1
                self._start(lane)

    def _start(self, lane: Lane) -> None:
        work = guarded(self._feed, functools.partial(self._carry_out, lane))
        thread = threading.Thread(target=work, name=f"accelera-{lane.name}", daemon=True)
        thread.start()
        self._lanes.append(thread)

    def _carry_out(self, lane: Lane) -> None:
        lane.work(self._feed, caller=True)
        with self._lock:
            self._working -= 1
            deserts = lane is self._cpu or not self._working
        if deserts:
            self._feed.deserted()


def _join(thread: threading.Thread, hurried: Callable[[], bool]) -> None:
    """Wait for a thread; a little only from when it is ``hurried`` on."""
    since_s: float | None = None
    while thread.is_alive():
        if hurried():
            since_s = time.monotonic() if since_s is None else since_s
            if time.monotonic() - since_s >= GRACE_S:
                return
        thread.join(TOKEN_S)
