"""Names of this package for the other packages of Accelera; not part of the public interface."""

from accelera.trace.access import ROLES, Access, Recorder, RunRecorder
from accelera.trace.dataframe import MIB, tensor_ids
from accelera.trace.formats import FORMATS
from accelera.trace.occupancy import largest_op, working_sets
from accelera.trace.reuse import (
    FIRST,
    NEVER,
    StackDistances,
    next_uses,
    reuse_entropy,
    stack_distances,
    temporal_locality,
)
from accelera.trace.trace import content_hash

__all__ = [
    "FIRST",
    "FORMATS",
    "MIB",
    "NEVER",
    "ROLES",
    "Access",
    "Recorder",
    "RunRecorder",
    "StackDistances",
    "content_hash",
    "largest_op",
    "next_uses",
    "reuse_entropy",
    "stack_distances",
    "temporal_locality",
    "tensor_ids",
    "working_sets",
]
