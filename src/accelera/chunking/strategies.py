"""Chunking strategies: whole rows, tiles, and rows whose height follows the memory that is free.

``AdaptiveChunking`` looks at the free share of the device's memory before each chunk. Below 20 % the
height is halved; at or above it, it doubles again up to where it began. Running out of memory is proof
rather than warning: it halves the height *and* what it may grow back to. Nothing is remembered from one
operation to the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, Protocol, final

from accelera.chunking.contract import Chunk, ChunkingStrategy, check_cut
from accelera.errors import ShapeError, UnknownNameError


class MemoryGauge(Protocol):
    """Anything that reports the free and total bytes of a memory, as ``memory.MemoryManager`` does."""

    def get_available_memory(self) -> int:
        """Return the bytes free now."""

    def get_total_memory(self) -> int:
        """Return the bytes there are."""


class MemoryMover(MemoryGauge, Protocol):
    """A gauge that also brings arrays to the memory it measures."""

    def move_to_gpu(self, tensor: Any) -> Any:
        """Return ``tensor`` on the device, unchanged when it is there already."""


def available_fraction(gauge: MemoryGauge) -> float:
    """Return the free share of the memory, 0 to 1."""
    return gauge.get_available_memory() / max(1, gauge.get_total_memory())


@final
class RowChunking(ChunkingStrategy):
    """Take ``chunk_size`` entries of the first axis at a time, the other axes whole.

    >>> [chunk[0] for chunk in RowChunking().get_chunks((10, 4), 4)]
    [slice(0, 4, None), slice(4, 8, None), slice(8, 10, None)]
    """

    def get_chunks(self, shape: tuple[int, ...], chunk_size: int) -> Iterator[Chunk]:
        """Yield ``(rows, all, …)``; raises ShapeError for a shape without axes."""
        check_cut(self, shape, chunk_size, axes=1)
        rest = (slice(None),) * (len(shape) - 1)
        starts = range(0, shape[0], chunk_size)
        return ((slice(start, min(start + chunk_size, shape[0])), *rest) for start in starts)


@final
class TileChunking(ChunkingStrategy):
    """Take tiles of ``tile_size`` (rows, columns), row of tiles by row of tiles.

    Without a ``tile_size`` the tiles are ``chunk_size`` square.

    >>> strategy = TileChunking(tile_size=(2, 3))
    >>> [(r.start, r.stop, c.start, c.stop) for r, c in strategy.get_chunks((2, 4), 1)]
    [(0, 2, 0, 3), (0, 2, 3, 4)]
    """

    def __init__(self, tile_size: tuple[int, int] | None = None) -> None:
        if tile_size is not None and [size >= 1 for size in tile_size] != [True, True]:
            raise ShapeError(f"[chunking] tile_size={tile_size!r} must be (rows, columns), both at least 1")
        self.tile_size = tile_size

    def get_chunks(self, shape: tuple[int, ...], chunk_size: int) -> Iterator[Chunk]:
        """Yield ``(rows, columns, all, …)``; raises ShapeError for fewer than two axes."""
        check_cut(self, shape, chunk_size, axes=2)
        sizes = self.tile_size or (chunk_size, chunk_size)
        rest = (slice(None),) * (len(shape) - 2)
        return (
            (
                slice(row, min(row + sizes[0], shape[0])),
                slice(column, min(column + sizes[1], shape[1])),
                *rest,
            )
            for row, column in product(range(0, shape[0], sizes[0]), range(0, shape[1], sizes[1]))
        )


Reason = Literal["kept", "memory pressure", "recovered", "out of memory"]


@dataclass(frozen=True)
class ChunkDecision:
    """Height of a chunk, and the reason for it."""

    first_row: int
    rows: int
    available_fraction: float
    """Free share of the memory when the chunk was cut."""
    reason: Reason


@final
class AdaptiveChunking(ChunkingStrategy):
    """Cut rows in chunks that shrink under memory pressure and after running out, and grow back.

    Parameters
    ----------
    memory_manager
        Where to look. Without one an engine lends its own; used alone, memory counts as free.
    min_chunk_size
        Height below which no chunk is cut, rows.
    pressure_fraction
        Free share of the memory below which the next chunks shrink.
    """

    def __init__(
        self,
        memory_manager: MemoryGauge | None = None,
        min_chunk_size: int = 1,
        pressure_fraction: float = 0.2,
    ) -> None:
        if min_chunk_size < 1:
            raise ShapeError(f"[chunking] min_chunk_size={min_chunk_size} must be at least 1")
        self.memory_manager = memory_manager
        self.min_chunk_size = min_chunk_size
        self.pressure_fraction = pressure_fraction
        self.history: deque[ChunkDecision] = deque(maxlen=10_000)
        """Decisions of the latest operation, oldest first."""
        self._times_out_of_memory = 0

    def get_chunks(self, shape: tuple[int, ...], chunk_size: int) -> Iterator[Chunk]:
        """Yield ``(rows, all, …)``, each height decided when the chunk is drawn."""
        check_cut(self, shape, chunk_size, axes=1)
        return self._draw(shape, max(chunk_size, self.min_chunk_size))

    def on_out_of_memory(self) -> bool:
        """Halve the chunks to come, unless they are at the minimum."""
        self._times_out_of_memory += 1
        return not self.history or self.history[-1].rows > self.min_chunk_size

    def _draw(self, shape: tuple[int, ...], size: int) -> Iterator[Chunk]:
        self.history.clear()
        rest = (slice(None),) * (len(shape) - 1)
        ceiling, failures, first = size, self._times_out_of_memory, 0
        while first < shape[0]:
            free = 1.0 if self.memory_manager is None else available_fraction(self.memory_manager)
            failed = self._times_out_of_memory > failures
            if failed:
                failures, ceiling = self._times_out_of_memory, self._halve(size)
            size, reason = self._next_size(size, ceiling, free, failed)
            last = min(first + size, shape[0])
            self.history.append(ChunkDecision(first, last - first, free, reason))
            yield (slice(first, last), *rest)
            first = last

    def _next_size(self, size: int, ceiling: int, free: float, failed: bool) -> tuple[int, Reason]:
        if failed:
            return ceiling, "out of memory"
        if free < self.pressure_fraction and size > self.min_chunk_size:
            return self._halve(size), "memory pressure"
        if free >= self.pressure_fraction and size < ceiling:
            return min(ceiling, size * 2), "recovered"
        return size, "kept"

    def _halve(self, size: int) -> int:
        return max(self.min_chunk_size, size // 2)


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
