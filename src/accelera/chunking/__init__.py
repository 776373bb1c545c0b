"""Chunking: how an array is cut into pieces."""

from __future__ import annotations

from accelera.chunking.adaptive import AdaptiveChunking, ChunkDecision
from accelera.chunking.contract import Chunk, ChunkingStrategy, Region
from accelera.chunking.cover import as_box, covering
from accelera.chunking.gauge import MemoryGauge, available_fraction
from accelera.chunking.iterator import ChunkIterator
from accelera.chunking.names import STRATEGIES, create_chunking_strategy
from accelera.chunking.row import RowChunking
from accelera.chunking.tile import TileChunking

Box = Region
"""The older name of ``Region``."""

__all__ = [
    "STRATEGIES",
    "AdaptiveChunking",
    "Box",
    "Chunk",
    "ChunkDecision",
    "ChunkIterator",
    "ChunkingStrategy",
    "MemoryGauge",
    "Region",
    "RowChunking",
    "TileChunking",
    "as_box",
    "available_fraction",
    "covering",
    "create_chunking_strategy",
]
