"""Memory: what there is, what may be used, and who holds it."""

from __future__ import annotations

from accelera.memory.probe import HostMemory, ProcessMemory, host_memory, process_memory, reset_peak

__all__ = ["HostMemory", "ProcessMemory", "host_memory", "process_memory", "reset_peak"]
