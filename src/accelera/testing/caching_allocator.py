"""Model of PyTorch's CUDA caching allocator: the same rounding, pools, splitting, caching and errors.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp`` with its usual settings. Sizes are rounded up to
512 bytes. Those up to 1 MiB are cut from segments of 2 MiB, those below 10 MiB from segments of 20 MiB, and
larger ones have segments of their own in steps of 2 MiB. The smallest free block of the asking stream that is
large enough is taken and cut, unless it would leave 1 MiB or less of a large one. What is freed stays and
joins its free neighbours. A request that finds no room gives all whole free segments back and tries again
before it fails.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, final

from accelera.units import format_bytes

_STEP_BYTES = 512
_SMALL_BYTES = 1 << 20
_SMALL_SEGMENT_BYTES = 2 << 20
_LARGE_FROM_BYTES = 10 << 20
_LARGE_SEGMENT_BYTES = 20 << 20
_LARGE_STEP_BYTES = 2 << 20


@dataclass(eq=False)
class MemoryBlock:
    """A part of a segment."""

    segment: int
    """Number of the segment; numbers are not used again."""
    start: int
    """Offset in the segment, in bytes."""
    nbytes: int
    """Size, rounded up."""
    stream: Hashable
    small: bool
    """Whether it belongs to the pool of small sizes."""
    requested_bytes: int = 0
    """Requested size; 0 while the block is free."""
    used: bool = False
    others: dict[Hashable, Any] = field(default_factory=dict)
    """Other streams that use it (``record_stream``), each with the point up to which it does so."""


@dataclass
class MemoryCounts:
    """Current bytes, and their peak."""

    current: int = 0
    peak: int = 0

    def add(self, nbytes: int) -> None:
        """Add ``nbytes``, which may be negative."""
        self.current += nbytes
        self.peak = max(self.peak, self.current)


@final
class CachingAllocator:
    """The memory of one device, counted in bytes; nothing is allocated.

    Parameters
    ----------
    capacity_bytes
        Size of the device's memory.
    out_of_memory
        Makes the exception for a request that finds no room, from its message.
    recorded
        Returns a mark for all work that a stream was given until now; for ``record_stream``.
    is_done
        Returns whether the work up to such a mark is known to be done.
    """

    def __init__(
        self,
        capacity_bytes: int,
        out_of_memory: Callable[[str], BaseException] = MemoryError,
        *,
        recorded: Callable[[Hashable], Any] = lambda stream: None,
        is_done: Callable[[Any], bool] = lambda until: True,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.allocated = MemoryCounts()
        """Blocks in use, with their rounded sizes."""
        self.requested = MemoryCounts()
        """Blocks in use, with their requested sizes."""
        self.reserved = MemoryCounts()
        """Segments."""
        self.retries = 0
        """Times that cached memory was returned to the driver because a request found no room."""
        self.refusals = 0
        """Requests that failed with out of memory."""
        self.taken_by_others_bytes = 0
        """Bytes of the device that other processes use; may be changed."""
        self._out_of_memory = out_of_memory
        self._recorded, self._is_done = recorded, is_done
        self._segments: dict[int, list[MemoryBlock]] = {}
        self._numbers = itertools.count()
        self._in_use_elsewhere: list[MemoryBlock] = []
        self._lock = threading.RLock()

    @property
    def free_bytes(self) -> int:
        """Bytes that are free for the driver: neither reserved here nor used by other processes."""
        return max(0, self.capacity_bytes - self.taken_by_others_bytes - self.reserved.current)

    def allocate(self, nbytes: int, stream: Hashable = 0) -> MemoryBlock:
        """Return a block of at least ``nbytes`` for ``stream``; raises what ``out_of_memory`` makes."""
        rounded = max(_STEP_BYTES, math.ceil(nbytes / _STEP_BYTES) * _STEP_BYTES)
        with self._lock:
            self._release_finished()
            block = self._find_free_block(rounded, stream) or self._new_segment(rounded, stream)
            if block is None:
                self.retries += 1
                self.empty_cache()
                block = self._new_segment(rounded, stream)
            if block is None:
                self.refusals += 1
                raise self._out_of_memory(self._error_message(nbytes))
            self._split(block, rounded)
            block.used, block.requested_bytes = True, nbytes
            self.allocated.add(block.nbytes)
            self.requested.add(nbytes)
            return block

    def record_stream(self, block: MemoryBlock, stream: Hashable) -> None:
        """Note that ``stream`` uses the block, too: after ``free`` it is reused once that use has ended."""
        with self._lock:
            if stream != block.stream:
                block.others[stream] = None

    def free(self, block: MemoryBlock) -> None:
        """Free a block, for further requests of its stream."""
        with self._lock:
            block.used = False
            self.allocated.add(-block.nbytes)
            self.requested.add(-block.requested_bytes)
            block.requested_bytes = 0
            if block.others:
                block.others = {stream: self._recorded(stream) for stream in block.others}
                self._in_use_elsewhere.append(block)
            else:
                self._merge(block)

    def empty_cache(self) -> list[int]:
        """Give wholly free segments back to the driver; return their numbers."""
        with self._lock:
            self._release_finished()
            whole = [
                number
                for number, blocks in self._segments.items()
                if len(blocks) == 1 and not blocks[0].used and not blocks[0].others
            ]
            for number in whole:
                self.reserved.add(-self._segments.pop(number)[0].nbytes)
            return whole

    def reset_peaks(self) -> None:
        """Set every peak to its current value."""
        for counts in (self.allocated, self.requested, self.reserved):
            counts.peak = counts.current

    def _find_free_block(self, nbytes: int, stream: Hashable) -> MemoryBlock | None:
        """Return the smallest free block of the stream's pool that holds ``nbytes``, the first of equals."""
        small = nbytes <= _SMALL_BYTES
        fitting = (
            block
            for blocks in self._segments.values()
            for block in blocks
            if not (block.used or block.others)
            and (block.small, block.stream) == (small, stream)
            and block.nbytes >= nbytes
        )
        return min(fitting, key=lambda block: (block.nbytes, block.segment, block.start), default=None)

    def _new_segment(self, nbytes: int, stream: Hashable) -> MemoryBlock | None:
        """Return the block of a new segment that holds ``nbytes``; None when the device has no room."""
        small = nbytes <= _SMALL_BYTES
        size = _SMALL_SEGMENT_BYTES if small else _LARGE_SEGMENT_BYTES
        if nbytes >= _LARGE_FROM_BYTES:
            size = math.ceil(nbytes / _LARGE_STEP_BYTES) * _LARGE_STEP_BYTES
        if size > self.free_bytes:
            return None
        block = MemoryBlock(next(self._numbers), 0, size, stream, small)
        self._segments[block.segment] = [block]
        self.reserved.add(size)
        return block

    def _split(self, block: MemoryBlock, nbytes: int) -> None:
        """Split a block after ``nbytes``, unless the remainder would be too small."""
        rest = block.nbytes - nbytes
        if rest < _STEP_BYTES or (not block.small and rest <= _SMALL_BYTES):
            return
        blocks = self._segments[block.segment]
        after = MemoryBlock(block.segment, block.start + nbytes, rest, block.stream, block.small)
        blocks.insert(blocks.index(block) + 1, after)
        block.nbytes = nbytes

    def _merge(self, block: MemoryBlock) -> None:
        """Merge a free block with its free neighbours."""
        blocks = self._segments[block.segment]
        at = blocks.index(block)
        for near in (at + 1, at - 1):
            if not 0 <= near < len(blocks) or blocks[near].used or blocks[near].others:
                continue
            first, second = sorted((block, blocks[near]), key=lambda each: each.start)
            block.start, block.nbytes = first.start, first.nbytes + second.nbytes
            blocks.pop(near)

    def _release_finished(self) -> None:
        for block in list(self._in_use_elsewhere):
            if all(map(self._is_done, block.others.values())):
                self._in_use_elsewhere.remove(block)
                block.others = {}
                self._merge(block)

    def _error_message(self, nbytes: int) -> str:
        spare = self.reserved.current - self.allocated.current
        return (
            f"CUDA out of memory. Tried to allocate {format_bytes(nbytes)}. GPU 0 has a total capacity of "
            f"{format_bytes(self.capacity_bytes)} of which {format_bytes(self.free_bytes)} is free. "
            f"{format_bytes(self.allocated.current)} is allocated by PyTorch, and {format_bytes(spare)} is "
            f"reserved by PyTorch but unallocated."
        )
