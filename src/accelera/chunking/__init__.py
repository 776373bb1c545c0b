"""Chunking: arrays cut into pieces."""

from __future__ import annotations

from accelera.chunking.contract import Chunk, ChunkingStrategy, Region, as_box, covering
from accelera.chunking.iterator import ChunkIterator
from accelera.chunking.strategies import (
    STRATEGIES,
    AdaptiveChunking,
    ChunkDecision,
    MemoryGauge,
    RowChunking,
    TileChunking,
    available_fraction,
    create_chunking_strategy,
)

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
