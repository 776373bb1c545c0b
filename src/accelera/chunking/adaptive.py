"""Row chunks whose height follows the memory that is free while the work goes on.

Before each chunk the free share of the device's memory is looked at. Below 20 % the height is
halved; at or above it, it doubles again up to where it began. Running out of memory is proof rather than
warning: it halves the height *and* what it may grow back to. Nothing is remembered from one
operation to the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, final

from accelera.chunking.contract import Chunk, ChunkingStrategy, check_cut
from accelera.chunking.gauge import MemoryGauge, available_fraction
from accelera.errors import ShapeError

Reason = Literal["kept", "memory pressure", "recovered", "out of memory"]


@dataclass(frozen=True)
class ChunkDecision:
    """Why a chunk has the height it has."""

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
