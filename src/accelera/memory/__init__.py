"""Memory: what there is, what may be used, and who holds it."""

from __future__ import annotations

from accelera.memory.budget import Budget, UsableMemory
from accelera.memory.compute import Compute
from accelera.memory.hierarchy import UNBOUNDED_BYTES, Hierarchy
from accelera.memory.ledger import Ledger, PoolStats
from accelera.memory.manager import ALWAYS_FITS_BYTES, MeasuredDevice, MemoryManager, itemsize_of
from accelera.memory.pool import Allocator, Buffer, BufferPool
from accelera.memory.probe import HostMemory, ProcessMemory, host_memory, process_memory, reset_peak
from accelera.memory.tier import Tier

__all__ = [
    "ALWAYS_FITS_BYTES",
    "UNBOUNDED_BYTES",
    "Allocator",
    "Budget",
    "Buffer",
    "BufferPool",
    "Compute",
    "Hierarchy",
    "HostMemory",
    "Ledger",
    "MeasuredDevice",
    "MemoryManager",
    "PoolStats",
    "ProcessMemory",
    "Tier",
    "UsableMemory",
    "host_memory",
    "itemsize_of",
    "process_memory",
    "reset_peak",
]
