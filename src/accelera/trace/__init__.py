"""What was accessed: the record that a run leaves and a simulator replays."""

from accelera.trace.access import ROLES, Access, Kind, Recorder, RunRecorder
from accelera.trace.content_hash import content_hash
from accelera.trace.formats import read_trace, write_trace
from accelera.trace.log import TraceLog
from accelera.trace.next_use import NEVER, next_uses
from accelera.trace.trace import Trace

__all__ = [
    "NEVER",
    "ROLES",
    "Access",
    "Kind",
    "Recorder",
    "RunRecorder",
    "Trace",
    "TraceLog",
    "content_hash",
    "next_uses",
    "read_trace",
    "write_trace",
]
