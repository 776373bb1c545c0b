"""Trace: the record of accesses that a run leaves and a simulator replays."""

from accelera.trace.access import Kind
from accelera.trace.formats import read_trace, write_trace
from accelera.trace.miss_ratio import miss_ratio_curve, sampled_miss_ratio_curve
from accelera.trace.occupancy import Occupancy
from accelera.trace.summary import statistics
from accelera.trace.trace import Trace, TraceLog

__all__ = [
    "Kind",
    "Occupancy",
    "Trace",
    "TraceLog",
    "miss_ratio_curve",
    "read_trace",
    "sampled_miss_ratio_curve",
    "statistics",
    "write_trace",
]
