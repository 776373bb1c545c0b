"""Trace files: one format per module, and the table that knows them by name and by suffix."""

from accelera.trace.formats.table import FORMATS, Format, read_trace, register_format, write_trace

__all__ = ["FORMATS", "Format", "read_trace", "register_format", "write_trace"]
