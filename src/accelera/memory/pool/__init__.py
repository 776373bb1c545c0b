"""One pool: buffers inside a hard capacity, in a run and on paper.

``Ledger`` counts, and ``BufferTable`` decide and record, upon a memory or on paper. There are two memories:
``Buffers``, on which a ``BufferPool`` stands, save at once; a ``AsyncBuffers`` saves in the background. A
``Prefetcher`` drives books by an order that it learns.
"""

from __future__ import annotations

from accelera.memory.pool.block import PoolBlock, Use
from accelera.memory.pool.books import BufferTable, PoolMemory
from accelera.memory.pool.buffer_pool import BufferPool
from accelera.memory.pool.buffers import Allocator, Buffer
from accelera.memory.pool.homes import BackingStore, BackingStores, Bytes
from accelera.memory.pool.ledger import Ledger, PoolStats
from accelera.memory.pool.places import DeviceMemory
from accelera.memory.pool.residence import AsyncBuffers
from accelera.memory.pool.slab import Slab
from accelera.memory.pool.streaming import Pins, Prefetcher
from accelera.memory.pool.window import window_of

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

# Names of the version before, which offload still uses.
Block = PoolBlock
Books = BufferTable
Home = BackingStore
Homes = BackingStores
Memory = PoolMemory
Place = DeviceMemory
Residence = AsyncBuffers
Stream = Prefetcher
