"""Staging: blocks moved between a store and a device, straight or through bounded host buffers.

A block whose element type is the same in the store and on a device that computes in host memory
is read where it belongs. Otherwise it passes, piece by piece, through one of a fixed number of
host buffers, and the device converts on the way. An accelerator lends its own buffers, which are
pinned: the store reads into them, and they are sent from there.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from accelera.devices import Device
from accelera.plan._internal import Operand, OperandBlock
from accelera.stores import Store
from accelera.stores._internal import Region

PIECE_BYTES = 1 << 20
"""Size of one host buffer."""

Array = np.ndarray[Any, Any]


class _Download(NamedTuple):
    """A piece in flight from the device to a host buffer."""

    wait: Callable[[], None]
    part: Region
    piece: Array
    host: Array


class Mover:
    """Reads blocks into device memory and writes them back."""

    def __init__(self, device: Device, buffers: int) -> None:
        self._device = device
        self._buffers = HostBuffers(buffers)

    def view(self, memory: Any, block: OperandBlock, operand: Operand) -> Any:
        """Return the device array of ``block`` lying in ``memory``."""
        return self._device.view(memory, block.shape, operand.held_dtype, operand.block_order())

    def read(self, store: Store, block: OperandBlock, operand: Operand, memory: Any) -> int:
        """Fill ``memory`` with ``block`` of ``store``; return the bytes read."""
        target = self.view(memory, block, operand)
        if direct(self._device, operand):
            return store.read(block.region, target)
        held = self._device_tensor(store)
        if held is not None:
            source = held[block.region]
            self._device.copy(source, target)
            return int(source.nbytes)
        lender, moved = self._lender(operand), 0
        for part, inner in _pieces(block, operand, lender.lent_bytes):
            host = lender.lend_host()
            try:
                piece = _as_block(host, part, operand)
                moved += store.read(part, piece)
                self._device.upload(piece, target[inner])
            finally:
                lender.take_back(host)
        return moved

    def write(self, store: Store, block: OperandBlock, operand: Operand, memory: Any) -> int:
        """Write ``block`` from ``memory`` to ``store``; return the bytes written.

        From an accelerator, one piece is downloaded while the previous one is written.
        """
        source = self.view(memory, block, operand)
        if direct(self._device, operand):
            return store.write(block.region, source)
        held = self._device_tensor(store)
        if held is not None:
            target = held[block.region]
            self._device.copy(source, target)
            return int(target.nbytes)
        lender, moved, in_flight = self._lender(operand), 0, deque[_Download]()
        try:
            for part, inner in _pieces(block, operand, lender.lent_bytes):
                host = lender.lend_host(wait=not in_flight)
                if host is None:
                    moved += self._write_first(store, in_flight, lender)
                    host = lender.lend_host()
                piece = _as_block(host, part, operand)
                in_flight.append(_Download(_no_wait, part, piece, host))
                in_flight[-1] = in_flight[-1]._replace(wait=self._device.begin_download(source[inner], piece))
                if len(in_flight) > 1 or lender is self._buffers:
                    moved += self._write_first(store, in_flight, lender)
            while in_flight:
                moved += self._write_first(store, in_flight, lender)
        finally:
            for each in in_flight:
                lender.take_back(each.host)
        return moved

    def _write_first(self, store: Store, in_flight: deque[_Download], lender: Any) -> int:
        """Wait for the oldest piece in flight and write it; return its bytes."""
        first = in_flight[0]
        first.wait()
        moved = store.write(first.part, first.piece)
        in_flight.popleft()
        lender.take_back(first.host)
        return moved

    def _device_tensor(self, store: Store) -> Any | None:
        """Return the store as a tensor of the device; None when its elements lie elsewhere."""
        return store.held() if store.tier == self._device.name else None

    def _lender(self, operand: Operand) -> Any:
        """Return the owner of host buffers for pieces of ``operand``: the device, or ``HostBuffers``."""
        lends = self._device.lends(operand.dtype, operand.held_dtype)
        return self._device if lends else self._buffers


class HostBuffers:
    """A fixed number of buffers of ordinary memory, made when they are first needed."""

    lent_bytes = PIECE_BYTES

    def __init__(self, count: int) -> None:
        self._free_buffers: queue.SimpleQueue[Array | None] = queue.SimpleQueue()
        for _ in range(count):
            self._free_buffers.put(None)

    def lend_host(self, *, wait: bool = True) -> Array | None:
        """Return a free buffer; None when there is none and ``wait`` is false."""
        try:
            host = self._free_buffers.get(block=wait)
        except queue.Empty:
            return None
        return np.empty(PIECE_BYTES, dtype=np.uint8) if host is None else host

    def take_back(self, host: Array) -> None:
        """Take a buffer back."""
        self._free_buffers.put(host)


def direct(device: Device, operand: Operand) -> bool:
    """Return whether blocks of ``operand`` move without a host buffer in between."""
    return device.host_memory and operand.dtype == operand.held_dtype


def buffer_bytes(device: Device, operand: Operand) -> int:
    """Return the host memory that each thread takes to move blocks of ``operand``."""
    return 0 if direct(device, operand) or device.lends(operand.dtype, operand.held_dtype) else PIECE_BYTES


def _no_wait() -> None:
    """Return at once: no transfer was begun."""


def _as_block(host: Array, region: tuple[slice, ...], operand: Operand) -> Array:
    """Return the start of ``host`` as an array of the region's shape, axes as they lie in the store."""
    shape = tuple(part.stop - part.start for part in region)
    count = int(np.prod(shape, dtype=np.int64))
    order = operand.block_order()
    flat = host[: count * operand.dtype.itemsize].view(operand.dtype)
    shaped: Array = flat.reshape([shape[axis] for axis in order]).transpose(np.argsort(order))
    return shaped


def _pieces(
    block: OperandBlock, operand: Operand, lent_bytes: int
) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Yield (region of the store, region within the block) of pieces that fit a host buffer."""
    spans = [(part.start, part.stop) for part in block.region]
    for piece in boxes_within(spans, operand.block_order(), lent_bytes // operand.dtype.itemsize):
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
