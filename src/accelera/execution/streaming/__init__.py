"""Streams: tasks without end, of which a window is in memory."""
