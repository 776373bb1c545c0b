"""Trace: the record of accesses that a run leaves and a simulator replays."""

from accelera.trace.access import ROLES, Access, Kind, Recorder, RunRecorder
from accelera.trace.formats import read_trace, write_trace
from accelera.trace.miss_ratio import MissRatioCurve, miss_ratio_curve, sampled_miss_ratio_curve
from accelera.trace.occupancy import Occupancy, largest_op, working_sets
from accelera.trace.reuse import (
    NEVER,
    StackDistances,
    next_uses,
    reuse_entropy,
    stack_distances,
    temporal_locality,
)
from accelera.trace.summary import TraceStatistics, statistics
from accelera.trace.trace import Trace, TraceLog, content_hash

__all__ = [
    "NEVER",
    "ROLES",
    "Access",
    "Kind",
    "MissRatioCurve",
    "Occupancy",
    "Recorder",
    "RunRecorder",
    "StackDistances",
    "Trace",
    "TraceLog",
    "TraceStatistics",
    "content_hash",
    "largest_op",
    "miss_ratio_curve",
    "next_uses",
    "read_trace",
    "reuse_entropy",
    "sampled_miss_ratio_curve",
    "stack_distances",
    "statistics",
    "temporal_locality",
    "working_sets",
    "write_trace",
]
