"""One pool: buffers inside a hard capacity, in a run and on paper.

``Ledger`` counts, and ``BufferTable`` decide and record, upon a memory or on paper. There are two memories:
``Buffers``, on which a ``BufferPool`` stands, save at once; a ``AsyncBuffers`` saves in the background. A
``Prefetcher`` drives books by an order that it learns.
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
