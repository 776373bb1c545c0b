"""Strategies by the name a user writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelera.chunking.adaptive import AdaptiveChunking
from accelera.chunking.contract import ChunkingStrategy
from accelera.chunking.row import RowChunking
from accelera.chunking.tile import TileChunking
from accelera.errors import UnknownNameError

STRATEGIES: dict[str, Callable[..., ChunkingStrategy]] = {
    "row": RowChunking,
    "tile": TileChunking,
    "adaptive": AdaptiveChunking,
}


def create_chunking_strategy(name: str, **options: Any) -> ChunkingStrategy:
    """Return a new strategy; ``options`` go to its constructor.

    Raises UnknownNameError listing near names.

    >>> create_chunking_strategy("tile", tile_size=(64, 32)).tile_size
    (64, 32)
    """
    if name not in STRATEGIES:
        raise UnknownNameError.among("chunking strategy", name, STRATEGIES)
    return STRATEGIES[name](**options)
