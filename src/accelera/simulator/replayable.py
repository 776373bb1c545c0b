"""What replays of one trace have in common, found once and kept as long as the trace lives."""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from accelera._native import PreparedTrace
from accelera.memory import Compute
from accelera.simulator.roofline import step_seconds
from accelera.trace import Trace


class Replayable:
    """A trace as the compiled loop takes it."""

    def __init__(self, trace: Trace) -> None:
        self.native = PreparedTrace(
            trace.buffer, None if _only_reads(trace) else trace.kind, trace.step, trace.size_bytes
        )
        self._seconds: dict[Compute | None, NDArray[np.float64]] = {}

    def seconds(self, trace: Trace, compute: Compute | None) -> NDArray[np.float64] | None:
        """Return the seconds of each step, None when they all are nothing."""
        if compute not in self._seconds:
            self._seconds[compute] = step_seconds(trace, compute)
        seconds = self._seconds[compute]
        return seconds if seconds.any() else None


_KEPT: WeakKeyDictionary[Trace, Replayable] = WeakKeyDictionary()
_SEQUENTIAL: WeakKeyDictionary[Trace, Trace] = WeakKeyDictionary()


def replayable(trace: Trace) -> Replayable:
    """Return what the compiled loop takes for ``trace``."""
    if trace not in _KEPT:
        _KEPT[trace] = Replayable(trace)
    return _KEPT[trace]


def one_by_one(trace: Trace) -> Trace:
    """Return the accesses of ``trace``, all reads, each a step of its own."""
    if trace not in _SEQUENTIAL:
        count = trace.access_count
        _SEQUENTIAL[trace] = replace(
            trace,
            buffer=trace.accessed,
            kind=np.zeros(count, np.uint8),
            step=np.arange(count, dtype=np.int32),
            stride=trace.stride[trace.is_access],
            ops=("",) * count,
            flops=np.zeros(count),
            seconds=np.zeros(count),
        )
    return _SEQUENTIAL[trace]


def _only_reads(trace: Trace) -> bool:
    return not trace.kind.any()
