"""Iterator over the chunks of an array, the next one loading while the present one is worked on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, final

import numpy as np

from accelera.chunking.contract import Chunk, ChunkingStrategy, Region, as_box
from accelera.chunking.strategies import MemoryMover, available_fraction
from accelera.errors import BackendMissingError
from accelera.settings import current

PREFETCH_FRACTION = 0.3
"""Free share of the memory below which nothing is loaded ahead."""


@final
class ChunkIterator:
    """The chunks of an array, in order; may be iterated any number of times.

    A thread loads one chunk ahead, never more, and ends with the loop, also when the loop is left
    early. What it raises is raised in the loop. Chunks of an array in RAM are views, not copies.

    Parameters
    ----------
    tensor
        A NumPy array, memory map, torch tensor, Matrix, or anything with ``shape``, ``dtype`` and
        ``read(region, out)``.
    strategy
        How to cut it.
    chunk_size
        Handed to the strategy.
    memory_manager
        Brings each chunk to its device; without one chunks stay where they are, files go to RAM.
    prefetch
        Whether to load ahead; ``ACCELERA_ENABLE_PREFETCH=false`` forbids it altogether.
    """

    def __init__(
        self,
        tensor: Any,
        strategy: ChunkingStrategy,
        chunk_size: int,
        memory_manager: MemoryMover | None = None,
        prefetch: bool = True,
    ) -> None:
        self.tensor = _unwrapped(tensor)
        self.strategy = strategy
        self.chunk_size = chunk_size
        self.memory_manager = memory_manager
        self.prefetch = prefetch

    def __iter__(self) -> Iterator[Any]:
        chunks = iter(self.strategy.get_chunks(tuple(self.tensor.shape), self.chunk_size))
        if self.prefetch and current().enable_prefetch:
            return self._prefetched(chunks)
        return map(self._load, chunks)

    def _prefetched(self, chunks: Iterator[Chunk]) -> Iterator[Any]:
        with ThreadPoolExecutor(1, thread_name_prefix="accelera-prefetch") as reader:
            next_chunk = self._start_load(chunks, reader)
            while next_chunk is not None:
                chunk = next_chunk()
                next_chunk = self._start_load(chunks, reader)
                yield chunk
                del chunk

    def _start_load(self, chunks: Iterator[Chunk], reader: ThreadPoolExecutor) -> Callable[[], Any] | None:
        """Return a function that returns the next chunk, loading it now if memory allows; None at the end."""
        chunk = next(chunks, None)
        if chunk is None:
            return None
        if self.memory_manager is not None and available_fraction(self.memory_manager) < PREFETCH_FRACTION:
            return partial(self._load, chunk)
        return partial(self._await_load, chunk, reader.submit(self._load, chunk))

    def _await_load(self, chunk: Chunk, loading: Future[Any]) -> Any:
        """Wait for a chunk loaded ahead; if its load ran out of memory, load it again now."""
        try:
            return loading.result()
        except MemoryError:
            self.strategy.on_out_of_memory()
            return self._load(chunk)

    def _load(self, chunk: Chunk) -> Any:
        piece = _piece(self.tensor, as_box(chunk, tuple(self.tensor.shape)))
        return piece if self.memory_manager is None else self.memory_manager.move_to_gpu(piece)


def _unwrapped(tensor: Any) -> Any:
    """Return what a Matrix holds: a tensor, or without torch an array; anything else as it is."""
    if not callable(getattr(tensor, "tensor", None)):
        return tensor
    try:
        return tensor.tensor()
    except BackendMissingError:
        return tensor.numpy()


def _piece(tensor: Any, box: Region) -> Any:
    """Return ``tensor[box]``: read from a store or a file into new memory, else a view."""
    if callable(getattr(tensor, "read", None)):
        out = np.empty([part.stop - part.start for part in box], tensor.dtype)
        tensor.read(box, out)
        return out
    piece = tensor[box]
    return np.array(piece) if isinstance(tensor, np.memmap) else piece
