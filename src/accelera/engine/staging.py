"""Moving a block between a store and a device, straight or through a bounded host buffer.

A block whose element type is the same in the store and on a device that computes in host memory
is read where it belongs. Otherwise it passes, piece by piece, through one of a fixed number of
host buffers, and the device converts on the way.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from accelera.devices import Device
from accelera.plan import Block, Operand
from accelera.stores import Region, Store

PIECE_BYTES = 1 << 20
"""Size of one host buffer."""
_Move = Callable[[Region, Region, np.ndarray[Any, Any]], int]
"""Moves the piece at a region of the store and of the block; returns its bytes in the store."""


class Mover:
    """Reads blocks into device memory and writes them back."""

    def __init__(self, device: Device, buffers: int) -> None:
        self._device = device
        self._spare: queue.SimpleQueue[np.ndarray[Any, Any]] = queue.SimpleQueue()
        self._buffers = [device_host_buffer() for _ in range(buffers)]
        for each in self._buffers:
            self._spare.put(each)

    def view(self, memory: Any, block: Block, operand: Operand) -> Any:
        """Return the device array of ``block`` lying in ``memory``."""
        return self._device.view(memory, block.shape, operand.held_dtype, operand.block_order())

    def read(self, store: Store, block: Block, operand: Operand, memory: Any) -> int:
        """Fill ``memory`` with ``block`` of ``store``; return the bytes read."""
        target = self.view(memory, block, operand)
        if direct(self._device, operand):
            return store.read(block.region, target)

        def fill(part: Region, inner: Region, piece: np.ndarray[Any, Any]) -> int:
            moved = store.read(part, piece)
            self._device.upload(piece, target[inner])
            return moved

        return self._through_host(block, operand, fill)

    def write(self, store: Store, block: Block, operand: Operand, memory: Any) -> int:
        """Write ``block`` from ``memory`` to ``store``; return the bytes written."""
        source = self.view(memory, block, operand)
        if direct(self._device, operand):
            return store.write(block.region, source)

        def empty(part: Region, inner: Region, piece: np.ndarray[Any, Any]) -> int:
            self._device.download(source[inner], piece)
            return store.write(part, piece)

        return self._through_host(block, operand, empty)

    def _through_host(self, block: Block, operand: Operand, move: _Move) -> int:
        """Call ``move`` for each piece with a host buffer of its shape; return the bytes moved."""
        moved = 0
        for part, inner in _pieces(block, operand):
            host = self._spare.get()
            try:
                moved += move(part, inner, _shaped(host, part, operand))
            finally:
                self._spare.put(host)
        return moved


def direct(device: Device, operand: Operand) -> bool:
    """Return whether blocks of ``operand`` move without a host buffer between."""
    return device.host_memory and operand.dtype == operand.held_dtype


def device_host_buffer() -> np.ndarray[Any, Any]:
    """Return one host buffer."""
    return np.empty(PIECE_BYTES, dtype=np.uint8)


def _shaped(host: np.ndarray[Any, Any], region: tuple[slice, ...], operand: Operand) -> np.ndarray[Any, Any]:
    """Return the start of ``host`` as an array of the region's shape, axes as they lie in the store."""
    shape = tuple(part.stop - part.start for part in region)
    count = int(np.prod(shape, dtype=np.int64))
    order = operand.block_order()
    flat = host[: count * operand.dtype.itemsize].view(operand.dtype)
    shaped: np.ndarray[Any, Any] = flat.reshape([shape[axis] for axis in order]).transpose(np.argsort(order))
    return shaped


def _pieces(block: Block, operand: Operand) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Yield (region of the store, region within the block) of pieces that fit a host buffer."""
    spans = [(part.start, part.stop) for part in block.region]
    for piece in boxes_within(spans, operand.block_order(), PIECE_BYTES // operand.dtype.itemsize):
        store = tuple(slice(start, stop) for start, stop in piece)
        inner = tuple(
            slice(start - origin, stop - origin)
            for (start, stop), (origin, _) in zip(piece, spans, strict=True)
        )
        yield store, inner


def boxes_within(
    spans: list[tuple[int, int]], order: Sequence[int], limit: int
) -> Iterator[list[tuple[int, int]]]:
    """Cut a box, slowest axis first, until each piece has at most ``limit`` elements."""
    count = int(np.prod([stop - start for start, stop in spans], dtype=np.int64))
    if count <= limit:
        if count:
            yield spans
        return
    axis = next(axis for axis in order if spans[axis][1] - spans[axis][0] > 1)
    start, stop = spans[axis]
    rest = count // (stop - start)
    length = max(1, limit // rest)
    for low in range(start, stop, length):
        piece = list(spans)
        piece[axis] = (low, min(low + length, stop))
        yield from boxes_within(piece, order, limit)
