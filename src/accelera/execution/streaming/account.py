"""A stream as it is seen: learned from as it goes, logged, told to observers, counted."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, final

from accelera.execution.decision import Decision
from accelera.execution.report import Ending, StreamReport
from accelera.execution.streaming.feed import Feed
from accelera.execution.watching.logs import log_stream, log_stream_end

LESSON: Final = 64
"""So many pieces are learned from at once: none is kept longer, however long the stream."""
_NUMBERS: Final = itertools.count(1)

Learn = Callable[[Sequence[Any], float], None]
"""Keeps what samples tell of the devices' speed, and the seconds that they took."""


@final
class Account:
    """What is known of one stream.

    Parameters
    ----------
    feed
        The stream.
    decision
        Where it runs, and why.
    learn
        Learns how long tasks take.
    count
        Called at the end with what was seen, and whether the stream failed.
    """

    def __init__(self, feed: Feed, decision: Decision, learn: Learn, count: Callable[..., None]) -> None:
        self._feed, self._watch = feed, feed.watch
        self._decision = decision
        self._learn, self._count = learn, count
        self._number = next(_NUMBERS)
        self._began_s = self._learned_s = 0.0
        self._clean = (0, 0)
        self._last: StreamReport | None = None

    def begin(self) -> None:
        """The first output was asked for."""
        self._began_s = self._learned_s = time.perf_counter()
        self._watch.streams(self._number, self._decision)
        log_stream(self._decision)

    def look(self) -> None:
        """Learn from what was done, when that is enough for a lesson."""
        if len(self._watch.samples) >= LESSON:
            self._take_lesson()

    def report(self) -> StreamReport:
        """Return what was done so far, and how it ended, if it did: then nothing changes any more."""
        return self._last or self._now(None, None)

    def never_began(self) -> None:
        """Note that nothing was asked for before the caller closed it."""
        self._last = self._now("closed", None)

    def end(self, ended_by: Ending, error: BaseException | None) -> StreamReport:
        """Learn, log, tell and count the end; return what was done."""
        self._take_lesson()
        self._last = report = self._now(ended_by, error)
        log_stream_end(report)
        self._count(self._watch, failed=error is not None)
        self._watch.streamed(self._number, report)
        return report

    def _now(self, ended_by: Ending | None, error: BaseException | None) -> StreamReport:
        feed, watch = self._feed, self._watch
        return StreamReport(
            self._decision,
            time.perf_counter() - self._began_s if self._began_s else 0.0,
            feed.settled,
            feed.failed,
            watch.fallen_back > 0,
            tuple(watch.device_errors),
            watch.shares(),
            watch.retries,
            watch.oom_splits,
            ended_by,
            error,
        )

    def _take_lesson(self) -> None:
        """Learn from the pieces since the last lesson, unless a task failed or was tried again meanwhile."""
        samples, now_s = self._watch.take_samples(), time.perf_counter()
        clean, self._clean = self._clean, (self._feed.failed, self._watch.retries)
        passed_s, self._learned_s = now_s - self._learned_s, now_s
        if samples and clean == self._clean:
            self._learn(samples, min(passed_s, sum(seconds for _, _, seconds in samples)))
