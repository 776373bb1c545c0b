"""What was accessed: the record that a run leaves and a simulator replays."""

from accelera.trace.access import Access, Recorder
from accelera.trace.log import TraceLog

__all__ = ["Access", "Recorder", "TraceLog"]
