"""One pool: buffers inside a hard capacity, in a run and on paper.

``Ledger`` counts, and ``Books`` decide and record, upon a memory or on paper. There are two memories:
``Buffers``, on which a ``BufferPool`` stands, save at once; a ``Residence`` saves in the background. A
``Stream`` drives books by an order that it learns.
"""

from __future__ import annotations

from accelera.memory.pool.block import Block, Use
from accelera.memory.pool.books import Books, Memory
from accelera.memory.pool.buffer_pool import BufferPool
from accelera.memory.pool.buffers import Allocator, Buffer
from accelera.memory.pool.homes import Bytes, Home, Homes
from accelera.memory.pool.ledger import Ledger, PoolStats
from accelera.memory.pool.places import Place
from accelera.memory.pool.residence import Residence
from accelera.memory.pool.slab import Slab
from accelera.memory.pool.streaming import Pins, Stream
from accelera.memory.pool.window import window_of

__all__ = [
    "Allocator",
    "Block",
    "Books",
    "Buffer",
    "BufferPool",
    "Bytes",
    "Home",
    "Homes",
    "Ledger",
    "Memory",
    "Pins",
    "Place",
    "PoolStats",
    "Residence",
    "Slab",
    "Stream",
    "Use",
    "window_of",
]
