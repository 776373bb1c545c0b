"""Chunking: arrays cut into pieces."""

from accelera.chunking.contract import Chunk, ChunkingStrategy
from accelera.chunking.iterator import ChunkIterator
from accelera.chunking.strategies import AdaptiveChunking, RowChunking, TileChunking

__all__ = [
    "AdaptiveChunking",
    "Chunk",
    "ChunkIterator",
    "ChunkingStrategy",
    "RowChunking",
    "TileChunking",
]
