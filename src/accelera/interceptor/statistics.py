"""Statistics of intercepted calls: the route each one took, counted by operation."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from accelera.units import format_bytes


@dataclass
class OpStats:
    """The calls of one operation, as aten names it."""

    direct: int = 0
    """Calls that torch's own kernel computed in one piece, because they fitted."""
    chunked: int = 0
    """Calls computed in pieces, with the result in memory."""
    spilled: int = 0
    """Calls computed in pieces, with the result in a file that is mapped."""
    refused: int = 0
    """Calls for which the budget was too small: BudgetExceededError."""
    passed: Counter[str] = field(default_factory=Counter)
    """Calls that were looked at and left to torch whatever they took, by the reason."""
    fallbacks: Counter[str] = field(default_factory=Counter)
    """What went on differently after memory had run out, by what was done."""
    looked_bytes: int = 0
    """Operands and results of all calls together."""
    spilled_bytes: int = 0
    """Results written to files."""
    largest_bytes: int = 0
    """The most that one call was allowed to add."""
    largest_without_bytes: int = 0
    """The most that one call would have added by torch's own kernel in one piece."""
    seconds: float = 0.0
    """Time in calls that went in pieces."""

    @property
    def calls(self) -> int:
        """All calls that were looked at."""
        return self.direct + self.chunked + self.spilled + self.refused + self.passed.total()

    def __str__(self) -> str:
        parts = {
            "direct": self.direct,
            "chunked": self.chunked,
            "spilled": self.spilled,
            "refused": self.refused,
            **{f"passed ({why})": count for why, count in self.passed.items()},
            **{f"fallbacks ({what})": count for what, count in self.fallbacks.items()},
        }
        return f"{self.calls} calls: " + ", ".join(f"{n} {what}" for what, n in parts.items() if n)


@dataclass(frozen=True)
class Stats:
    """Counters of interception in this process; a snapshot."""

    by_op: Mapping[str, OpStats]
    """Counts by operation as aten names it, such as ``"mm"`` or ``"add.Tensor"``."""
    spilled_now_bytes: int
    """Results in files that are alive."""
    spilled_peak_bytes: int
    """The most that results in files were at one time: what RAM would have had to hold besides."""

    @property
    def total(self) -> OpStats:
        """All operations together."""
        total = OpStats()
        for each in self.by_op.values():
            _add(total, each)
        return total

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and dicts, for JSON."""
        return {
            "spilled_now_bytes": self.spilled_now_bytes,
            "spilled_peak_bytes": self.spilled_peak_bytes,
            "total": _plain(self.total),
            "by_op": {op: _plain(each) for op, each in self.by_op.items()},
        }

    def __str__(self) -> str:
        if not self.by_op:
            return "no call was looked at"
        lines = [f"{op}: {each}" for op, each in sorted(self.by_op.items())]
        if self.spilled_peak_bytes:
            now, peak = format_bytes(self.spilled_now_bytes), format_bytes(self.spilled_peak_bytes)
            lines.append(f"in files: {now} now, {peak} at most")
        return "\n".join(lines)


class Follower(Protocol):
    """Observer of each call in pieces, called in the thread that makes it."""

    def begin(self, added_bytes: int) -> None:
        """Take note that a call begins, for which torch's own kernel would add ``added_bytes``."""

    def end(self) -> None:
        """Take note that it has ended."""


class Statistics:
    """Counters of intercepted calls; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a file may end, by garbage collection, while it is held
        self._followers: tuple[Follower, ...] = ()
        self._by_op: dict[str, OpStats] = {}
        self._spilled_now = self._spilled_peak = 0

    def direct(self, op: str, looked_bytes: int, added_bytes: int) -> None:
        """Count a call that torch computed in one piece."""
        with self._lock:
            each = self._counters(op)
            each.direct += 1
            each.looked_bytes += looked_bytes
            if added_bytes > each.largest_without_bytes:
                each.largest_without_bytes = added_bytes
            if added_bytes > each.largest_bytes:
                each.largest_bytes = added_bytes

    def in_pieces(self, op: str, route: str, looked_bytes: int, without_bytes: int, with_bytes: int) -> None:
        """Count a call by the ``"chunked"``, ``"spilled"`` or ``"refused"`` route."""
        with self._lock:
            each = self._counters(op)
            setattr(each, route, getattr(each, route) + 1)
            each.looked_bytes += looked_bytes
            each.largest_without_bytes = max(each.largest_without_bytes, without_bytes)
            each.largest_bytes = max(each.largest_bytes, with_bytes)

    @contextmanager
    def in_progress(self, added_bytes: int) -> Iterator[None]:
        """Tell followers of a call in pieces that torch's own kernel would add ``added_bytes`` for."""
        followers = self._followers
        for each in followers:
            each.begin(added_bytes)
        try:
            yield
        finally:
            for each in followers:
                each.end()

    @contextmanager
    def followed(self, follower: Follower) -> Iterator[None]:
        """Tell ``follower`` of the calls in pieces until the end of the block."""
        with self._lock:
            self._followers = (*self._followers, follower)
        try:
            yield
        finally:
            with self._lock:
                self._followers = tuple(each for each in self._followers if each is not follower)

    def took(self, op: str, seconds: float) -> None:
        """Add the time of a call that went in pieces."""
        with self._lock:
            self._counters(op).seconds += seconds

    def passed(self, op: str, why: str) -> None:
        """Count a call that was left to torch."""
        with self._lock:
            self._counters(op).passed[why] += 1

    def fell_back(self, op: str, what: str) -> None:
        """Count what was done when memory ran out."""
        with self._lock:
            self._counters(op).fallbacks[what] += 1

    def file_begun(self, op: str, nbytes: int) -> None:
        """Count a result that goes to a file."""
        with self._lock:
            self._counters(op).spilled_bytes += nbytes
            self._spilled_now += nbytes
            self._spilled_peak = max(self._spilled_peak, self._spilled_now)

    def file_ended(self, nbytes: int) -> None:
        """Take note that nobody holds such a result any more."""
        with self._lock:
            self._spilled_now -= nbytes

    def snapshot(self, *, reset: bool = False) -> Stats:
        """Return what was counted; ``reset`` starts again from zero."""
        with self._lock:
            by_op = {op: _copy_of(each) for op, each in self._by_op.items()}
            stats = Stats(by_op, self._spilled_now, self._spilled_peak)
            if reset:
                self._by_op.clear()
                self._spilled_peak = self._spilled_now
        return stats

    def _counters(self, op: str) -> OpStats:
        each = self._by_op.get(op)
        if each is None:
            each = self._by_op[op] = OpStats()
        return each


statistics = Statistics()
"""The process's own."""


def followed(follower: Follower) -> AbstractContextManager[None]:
    """Tell ``follower`` of each call in pieces, of any thread, until the end of the block.

    Parameters
    ----------
    follower
        An object that is told of each call.
    """
    return statistics.followed(follower)


def stats(*, reset: bool = False) -> Stats:
    """Return what interception has done in this process since it began or was last reset.

    Only calls over the thresholds are looked at and counted. ``reset`` starts again from zero after this.

    Parameters
    ----------
    reset
        Whether to count from nought afterwards.

    Returns
    -------
    Stats
        A snapshot; ``str`` of it says it in words.
    """
    return statistics.snapshot(reset=reset)


def _copy_of(stats: OpStats) -> OpStats:
    copy = OpStats()
    _add(copy, stats)
    return copy


def _add(total: OpStats, each: OpStats) -> None:
    for name in ("direct", "chunked", "spilled", "refused", "looked_bytes", "spilled_bytes", "seconds"):
        setattr(total, name, getattr(total, name) + getattr(each, name))
    for name in ("largest_bytes", "largest_without_bytes"):
        setattr(total, name, max(getattr(total, name), getattr(each, name)))
    total.passed.update(each.passed)
    total.fallbacks.update(each.fallbacks)


def _plain(stats: OpStats) -> dict[str, Any]:
    return {**asdict(stats), "passed": dict(stats.passed), "fallbacks": dict(stats.fallbacks)}
