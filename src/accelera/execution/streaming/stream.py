"""The outputs of a stream, one after the other, while its tasks are being done in the background."""

from __future__ import annotations

import sys
import threading
from typing import Any, Generic, TypeVar, final

from accelera.errors import UnfinishedError
from accelera.execution.closing import Closing
from accelera.execution.failures import TaskFailure
from accelera.execution.options import OnError
from accelera.execution.report import Ending, StreamReport
from accelera.execution.result import noted
from accelera.execution.streaming.account import Account
from accelera.execution.streaming.arrivals import Failed
from accelera.execution.streaming.background import Background
from accelera.execution.streaming.feed import Feed

Output = TypeVar("Output")


@final
class Stream(Closing, Generic[Output]):
    """Yields index and output of every task; what is not asked for is not done beyond the window.

    It begins when the first output is asked for. With the last one, an exception, ``close()``, the end of a
    ``with`` block or when nobody holds it any more, it is over: no further task is begun, and those under way
    are waited for, in worker processes a quarter of a second. A source that blocks is left behind, and once
    the token was set a task that hangs as well.

    Parameters
    ----------
    feed
        Its tasks.
    background
        Who does them.
    account
        Keeps what is known of it.
    on_error
        What becomes of a task that fails.
    """

    def __init__(self, feed: Feed, background: Background, account: Account, on_error: OnError) -> None:
        self._feed = feed
        self._background = background
        self._account = account
        self._on_error = on_error
        self._asker: int | None = None
        self._begun = self._over = False
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        report = self.report()
        state = report.ended_by or ("under way" if self._begun else "not begun")
        return f"<Stream: {report.task_count} tasks done, {report.failed_count} of them failed, {state}>"

    def __iter__(self) -> Stream[Output]:
        """Return itself."""
        return self

    def __next__(self) -> tuple[int, Output]:
        """Return the next index and its output, waiting for it."""
        self._asker = threading.get_ident()
        try:
            if not self._begun:
                self._begin()
            found = None if self._over else self._next()
        except BaseException as error:
            self._end("error", error)
            raise
        if found is None:
            self._end("cancelled" if self._feed.cancelled else "exhausted")
            raise StopIteration
        return found

    def report(self) -> StreamReport:
        """Return what has been done so far, and how the stream ended, once it has."""
        return self._account.report()

    def close(self) -> None:
        """Begin no further task; wait for those under way."""
        self._end("closed")

    def __del__(self) -> None:
        if getattr(self, "_over", True) or sys.is_finalizing():
            return
        if self._asker == threading.get_ident():
            self.close()
        elif self._asker is not None:
            # Whichever thread collects garbage may be one that this stream waits for, or hold what it needs.
            threading.Thread(target=self.close, name="accelera-close", daemon=True).start()

    def _begin(self) -> None:
        with self._lock:
            begins = not (self._begun or self._over)
            self._begun = True
        if begins:
            self._account.begin()
            self._background.start()

    def _next(self) -> tuple[int, Any] | None:
        while (arrived := self._arrived()) is not None:
            self._account.look()
            if not isinstance(arrived[1], Failed):
                return arrived
            if self._on_error == "collect":
                return arrived[0], arrived[1].failure
            if self._on_error == "raise":
                raise _raisable(arrived[1].failure)
        return None

    def _arrived(self) -> tuple[int, Any] | None:
        try:
            return self._feed.next_output()
        except TimeoutError as late:
            if not self._feed.late:
                raise
            report = self.report()
            raise UnfinishedError(
                f"[stream] the next output was not there after {report.execution_time:.3g} s, when the time"
                f" was over; {report.task_count} tasks were done; give a longer timeout",
                result=report,
            ) from late

    def _end(self, ended_by: Ending, error: BaseException | None = None) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
        self._feed.stop()
        if not self._begun:
            self._account.never_began()
        try:
            if self._begun and (error is None or isinstance(error, Exception)):
                self._background.wait()
        finally:
            if self._begun:
                self._account.end(ended_by, error)
            self._feed.close()


def _raisable(failure: TaskFailure) -> Any:
    """Return what an iterator may raise: StopIteration would end it as if all tasks were done."""
    error = noted(failure)
    if not isinstance(error, StopIteration):
        return error
    told = RuntimeError(f"[stream] {failure.note} raised StopIteration, which ends iterators: raise another")
    told.__cause__ = error
    return told
