"""Memory: what there is, what may be used, and the pool that holds it.

Everything is loaded when it is first named: who asks what there is does not load NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelera._lazily import opened

if TYPE_CHECKING:
    from accelera.memory.hierarchy import UNBOUNDED_BYTES as UNBOUNDED_BYTES
    from accelera.memory.hierarchy import Compute as Compute
    from accelera.memory.hierarchy import Hierarchy as Hierarchy
    from accelera.memory.hierarchy import Tier as Tier
    from accelera.memory.manager import ALWAYS_FITS_BYTES as ALWAYS_FITS_BYTES
    from accelera.memory.manager import Budget as Budget
    from accelera.memory.manager import MeasuredDevice as MeasuredDevice
    from accelera.memory.manager import MemoryManager as MemoryManager
    from accelera.memory.manager import UsableMemory as UsableMemory
    from accelera.memory.manager import itemsize_of as itemsize_of
    from accelera.memory.pool import Allocator as Allocator
    from accelera.memory.pool import AsyncBuffers as AsyncBuffers
    from accelera.memory.pool import BackingStore as BackingStore
    from accelera.memory.pool import BackingStores as BackingStores
    from accelera.memory.pool import Buffer as Buffer
    from accelera.memory.pool import BufferPool as BufferPool
    from accelera.memory.pool import BufferTable as BufferTable
    from accelera.memory.pool import Bytes as Bytes
    from accelera.memory.pool import DeviceMemory as DeviceMemory
    from accelera.memory.pool import Ledger as Ledger
    from accelera.memory.pool import Pins as Pins
    from accelera.memory.pool import PoolBlock as PoolBlock
    from accelera.memory.pool import PoolMemory as PoolMemory
    from accelera.memory.pool import PoolStats as PoolStats
    from accelera.memory.pool import Prefetcher as Prefetcher
    from accelera.memory.pool import Slab as Slab
    from accelera.memory.pool import Use as Use
    from accelera.memory.pool import window_of as window_of
    from accelera.memory.probe import HostMemory as HostMemory
    from accelera.memory.probe import ProcessMemory as ProcessMemory
    from accelera.memory.probe import cgroup_processors as cgroup_processors
    from accelera.memory.probe import host_memory as host_memory
    from accelera.memory.probe import process_memory as process_memory
    from accelera.memory.probe import reset_peak as reset_peak

_NAMES_BY_FILE = {
    "hierarchy": "UNBOUNDED_BYTES Compute Hierarchy Tier",
    "manager": "ALWAYS_FITS_BYTES Budget MeasuredDevice MemoryManager UsableMemory itemsize_of",
    "pool": "Allocator AsyncBuffers BackingStore BackingStores Buffer BufferPool BufferTable Bytes"
    " DeviceMemory Ledger Pins PoolBlock PoolMemory PoolStats Prefetcher Slab Use window_of",
    "probe": "HostMemory ProcessMemory cgroup_processors host_memory process_memory reset_peak",
}
_FILE_OF = {name: file for file, names in _NAMES_BY_FILE.items() for name in names.split()}

__all__ = [*_FILE_OF]

__getattr__, __dir__ = opened("accelera.memory", _FILE_OF)
