"""A virtual clock: when an accelerator with one copy and one compute stream would have done the work.

A piece of work begins when its stream is free and the buffers it touches are ready: whoever reads a
buffer waits for its last writer, whoever writes it waits for its last reader too. Nothing waits in
real time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class _VirtualStream:
    """Work in order, one piece after the other."""

    free_at: float = 0.0
    busy_s: float = 0.0
    spans: list[tuple[float, float]] = field(default_factory=list)
    """When it was busy; neighbours that touch are one."""

    def run(self, begin: float, seconds: float) -> float:
        begin = max(begin, self.free_at)
        self.free_at = begin + seconds
        self.busy_s += seconds
        if self.spans and self.spans[-1][1] == begin:
            begin = self.spans.pop()[0]
        self.spans.append((begin, self.free_at))
        return self.free_at


@dataclass
class _BufferTimes:
    """When a buffer was last written and last touched."""

    written: float
    touched: float


class VirtualClock:
    """Two streams, ``copy`` and ``compute``, and what each buffer waits for; safe from several threads."""

    def __init__(self) -> None:
        self._streams = {"copy": _VirtualStream(), "compute": _VirtualStream()}
        self._marks: dict[int, _BufferTimes] = {}
        self._memory_free_at = 0.0
        self._lock = threading.Lock()

    def run(self, stream: str, seconds: float, reads: Iterable[int], writes: Iterable[int]) -> None:
        """Enter ``seconds`` of work on ``stream`` that reads and writes the buffers of these keys."""
        with self._lock:
            sources = [self._mark(key) for key in reads]
            targets = [self._mark(key) for key in writes]
            ready = max([mark.written for mark in sources] + [mark.touched for mark in targets], default=0.0)
            end = self._streams[stream].run(ready, seconds)
            for mark in sources:
                mark.touched = max(mark.touched, end)
            for mark in targets:
                mark.written = mark.touched = end

    def forget(self, key: int) -> None:
        """Take note that a buffer was released: new buffers are ready when its last work is done."""
        with self._lock:
            mark = self._marks.pop(key, None)
            if mark is not None:
                self._memory_free_at = max(self._memory_free_at, mark.touched)

    def busy_s(self, stream: str) -> float:
        """Return the seconds that ``stream`` worked."""
        with self._lock:
            return self._streams[stream].busy_s

    def makespan_s(self) -> float:
        """Return when the last work was done."""
        with self._lock:
            return max(stream.free_at for stream in self._streams.values())

    def overlap_s(self) -> float:
        """Return the seconds in which both streams worked."""
        with self._lock:
            return _common_s(self._streams["copy"].spans, self._streams["compute"].spans)

    def _mark(self, key: int) -> _BufferTimes:
        return self._marks.setdefault(key, _BufferTimes(self._memory_free_at, self._memory_free_at))


def _common_s(first: list[tuple[float, float]], second: list[tuple[float, float]]) -> float:
    """Return the length of the intersection of two ordered lists of spans."""
    total, i, j = 0.0, 0, 0
    while i < len(first) and j < len(second):
        begin = max(first[i][0], second[j][0])
        end = min(first[i][1], second[j][1])
        total += max(0.0, end - begin)
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return total
