"""The pool: buffers inside a hard capacity, in a run and in a forecast.

``Ledger`` keeps the counts. ``BufferTable`` decides which buffers are admitted and evicted, and records
every event; it works with memory behind it or without. Two classes are that memory: ``Buffers``, used by
``BufferPool``, saves in the calling thread; ``AsyncBuffers`` saves in the background. ``Prefetcher`` learns
the order of uses and drives a ``BufferTable``.
"""

from __future__ import annotations

from accelera.memory.pool.async_buffers import AsyncBuffers, Slab
from accelera.memory.pool.backing_store import (
    BackingStore,
    BackingStores,
    Bytes,
    DeviceMemory,
    PoolBlock,
    Use,
)
from accelera.memory.pool.buffer_pool import Allocator, Buffer, BufferPool
from accelera.memory.pool.buffer_table import BufferTable, PoolMemory
from accelera.memory.pool.ledger import Ledger, PoolStats
from accelera.memory.pool.prefetcher import Pins, Prefetcher, window_of

__all__ = [
    "Allocator",
    "AsyncBuffers",
    "BackingStore",
    "BackingStores",
    "Buffer",
    "BufferPool",
    "BufferTable",
    "Bytes",
    "DeviceMemory",
    "Ledger",
    "Pins",
    "PoolBlock",
    "PoolMemory",
    "PoolStats",
    "Prefetcher",
    "Slab",
    "Use",
    "window_of",
]
