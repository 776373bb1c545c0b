"""Memory: what there is, what may be used, and who holds it."""

from __future__ import annotations

from accelera.memory.budget import Budget, UsableMemory
from accelera.memory.compute import Compute
from accelera.memory.hierarchy import UNBOUNDED_BYTES, Hierarchy
from accelera.memory.manager import ALWAYS_FITS_BYTES, MeasuredDevice, MemoryManager, itemsize_of
from accelera.memory.pool import (
    Allocator,
    Block,
    Books,
    Buffer,
    BufferPool,
    Bytes,
    Home,
    Homes,
    Ledger,
    Memory,
    Pins,
    Place,
    PoolStats,
    Residence,
    Slab,
    Stream,
    Use,
    window_of,
)
from accelera.memory.probe import HostMemory, ProcessMemory, host_memory, process_memory, reset_peak
from accelera.memory.tier import Tier

__all__ = [
    "ALWAYS_FITS_BYTES",
    "UNBOUNDED_BYTES",
    "Allocator",
    "Block",
    "Books",
    "Budget",
    "Buffer",
    "BufferPool",
    "Bytes",
    "Compute",
    "Hierarchy",
    "Home",
    "Homes",
    "HostMemory",
    "Ledger",
    "MeasuredDevice",
    "Memory",
    "MemoryManager",
    "Pins",
    "Place",
    "PoolStats",
    "ProcessMemory",
    "Residence",
    "Slab",
    "Stream",
    "Tier",
    "UsableMemory",
    "Use",
    "host_memory",
    "itemsize_of",
    "process_memory",
    "reset_peak",
    "window_of",
]
