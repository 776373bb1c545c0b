"""Transfers between host arrays and an accelerator through a fixed number of buffers on either side.

Elements with the same type and layout on both sides are copied once, between a pinned buffer and the target.
The others go through a buffer on the device, where they are converted and reordered.
"""

from __future__ import annotations

import contextlib
import functools
import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from accelera.devices.pages import Pages, address
from accelera.devices.torch_streams import Lanes
from accelera.devices.torch_types import numpy_view, signed, torch_dtype, wire_dtype

PIECE_BYTES = 4 << 20
"""Size of one buffer."""
SLOTS = 4
"""Pairs of buffers, so that one is filled while others are in flight."""
_DOWNLOADS = 2
"""Pieces of one download in flight at once: one is copied while the other is taken out of its buffer."""

Array = np.ndarray[Any, Any]
Part = tuple[slice, ...]


@dataclass
class _StagingSlot:
    """A host buffer (pinned on asynchronous devices), a device buffer, the event of their last use."""

    host: torch.Tensor
    device: torch.Tensor
    event: Any = None


class _PieceInFlight(NamedTuple):
    """A part of an array in flight to the host buffer of a slot, axes in ``order``."""

    slot: _StagingSlot
    part: Part
    order: tuple[int, ...]


class Staging:
    """Moves arrays piece by piece; converts and reorders on the device where it can."""

    def __init__(self, device: torch.device, lanes: Lanes) -> None:
        self._device = device
        self._lanes = lanes
        self._pages = Pages("staging")
        self._free_slots: queue.SimpleQueue[_StagingSlot] = queue.SimpleQueue()
        self._lent: dict[int, _StagingSlot] = {}
        self._slot_count = 0
        self._lock = threading.Lock()
        self.host_bytes = self.device_bytes = SLOTS * PIECE_BYTES

    def lend(self, *, wait: bool) -> Array | None:
        """Return a host buffer until ``take_back``; None when all are in use and ``wait`` is false."""
        slot = self._acquire(wait=wait)
        if slot is None:
            return None
        buffer = slot.host.numpy()
        self._lent[address(buffer)] = slot
        return buffer

    def take_back(self, buffer: Array) -> None:
        """Take back a buffer of ``lend``; an upload from it may still be in flight."""
        self._free_slots.put(self._lent.pop(address(buffer)))

    def upload(self, host: Array, target: torch.Tensor) -> None:
        """Copy ``host`` to ``target``; on return ``host`` may change, though a piece may still be in flight.

        A lent buffer is uploaded as a whole: it is lent again once the upload is done.
        """
        lent = self._lent_for(host)
        if lent is not None:
            self._send(lent, _order_of(host.strides), host.dtype, target)
            return
        wire = wire_dtype(host.dtype, target.dtype, self._device)
        for part, order in _pieces(target, wire.itemsize):
            with self._slot() as slot:
                _copy_converted(_as_array(slot.host, host[part].shape, wire, order), host[part])
                self._send(slot, order, wire, target[part])

    def download(self, source: torch.Tensor, host: Array) -> None:
        """Copy ``source`` to ``host`` and wait for it."""
        lent = self._lent_for(host)
        if lent is not None:
            self._fetch(lent, _order_of(host.strides), host.dtype, source)
            _wait(lent)
            return
        wire = wire_dtype(host.dtype, source.dtype, self._device)
        in_flight: deque[_PieceInFlight] = deque()
        try:
            for part, order in _pieces(source, wire.itemsize):
                slot = self._acquire(wait=not in_flight)
                if slot is None:
                    self._finish_first(in_flight, host, wire)
                    slot = self._acquire(wait=True)
                assert slot is not None
                in_flight.append(_PieceInFlight(slot, part, order))
                self._fetch(slot, order, wire, source[part])
                if len(in_flight) == _DOWNLOADS:
                    self._finish_first(in_flight, host, wire)
            while in_flight:
                self._finish_first(in_flight, host, wire)
        finally:
            for each in in_flight:
                self._free_slots.put(each.slot)

    def _finish_first(self, in_flight: deque[_PieceInFlight], host: Array, wire: np.dtype[Any]) -> None:
        """Wait for the oldest piece in flight, and copy it out of its buffer."""
        slot, part, order = in_flight[0]
        _wait(slot)
        _copy_converted(host[part], _as_array(slot.host, host[part].shape, wire, order))
        in_flight.popleft()
        self._free_slots.put(slot)

    def begin_download(self, source: torch.Tensor, host: Array) -> Callable[[], None]:
        """Begin to copy ``source`` into a lent buffer; return a function that waits for it."""
        lent = self._lent_for(host)
        if lent is None:
            self.download(source, host)
            return _no_wait
        self._fetch(lent, _order_of(host.strides), host.dtype, source)
        return functools.partial(_wait, lent)

    def _send(
        self, slot: _StagingSlot, order: tuple[int, ...], wire: np.dtype[Any], target: torch.Tensor
    ) -> None:
        """Copy the slot's host buffer, axes in ``order``, to ``target``."""
        shape, asynchronous = tuple(target.shape), self._lanes.asynchronous
        outgoing, nbytes = self._as_tensor(slot.host, shape, wire, order), target.numel() * wire.itemsize
        with self._lanes.working(self._lanes.up, reads=(), writes=(target,)) as slot.event:
            if _same_layout(outgoing, target):
                signed(target).copy_(signed(outgoing), non_blocking=asynchronous)
            else:
                slot.device[:nbytes].copy_(slot.host[:nbytes], non_blocking=asynchronous)
                signed(target).copy_(signed(self._as_tensor(slot.device, shape, wire, order)))

    def _fetch(
        self, slot: _StagingSlot, order: tuple[int, ...], wire: np.dtype[Any], source: torch.Tensor
    ) -> None:
        """Copy ``source`` into the slot's host buffer, axes in ``order``."""
        shape, asynchronous = tuple(source.shape), self._lanes.asynchronous
        incoming, nbytes = self._as_tensor(slot.host, shape, wire, order), source.numel() * wire.itemsize
        with self._lanes.working(self._lanes.down, reads=(source,), writes=()) as slot.event:
            if _same_layout(source, incoming):
                signed(incoming).copy_(signed(source), non_blocking=asynchronous)
            else:
                signed(self._as_tensor(slot.device, shape, wire, order)).copy_(signed(source))
                slot.host[:nbytes].copy_(slot.device[:nbytes], non_blocking=asynchronous)

    def _as_tensor(
        self, memory: torch.Tensor, shape: tuple[int, ...], dtype: np.dtype[Any], order: tuple[int, ...]
    ) -> torch.Tensor:
        ordered_shape = [shape[axis] for axis in order]
        typed = memory[: math.prod(shape) * dtype.itemsize].view(torch_dtype(dtype, self._device))
        return typed.view(ordered_shape).permute(*np.argsort(order).tolist())

    def _lent_for(self, host: Array) -> _StagingSlot | None:
        return self._lent.get(address(host)) if self._lent and host.size else None

    @contextlib.contextmanager
    def _slot(self) -> Iterator[_StagingSlot]:
        slot = self._acquire(wait=True)
        assert slot is not None
        try:
            yield slot
        finally:
            self._free_slots.put(slot)

    def _acquire(self, *, wait: bool) -> _StagingSlot | None:
        """Return a free slot, its last work done; a new one while there are fewer than ``SLOTS``."""
        try:
            slot = self._new_slot() or self._free_slots.get(block=wait)
        except queue.Empty:
            return None
        _wait(slot)
        return slot

    def _new_slot(self) -> _StagingSlot | None:
        if not self._free_slots.empty():
            return None
        with self._lock:
            if self._slot_count == SLOTS:
                return None
            slot = _StagingSlot(
                self._host_memory(), torch.empty(PIECE_BYTES, dtype=torch.uint8, device=self._device)
            )
            self._lanes.synchronize()
            self._slot_count += 1
        return slot

    def _host_memory(self) -> torch.Tensor:
        if self._lanes.asynchronous:
            return torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
        return torch.from_numpy(self._pages.allocate(PIECE_BYTES))


def _wait(slot: _StagingSlot) -> None:
    if slot.event is not None:
        slot.event.synchronize()
        slot.event = None


def _no_wait() -> None:
    """Return at once: the transfer is done."""


def _same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether both have one type and the same dense layout, so that copying the bytes copies them."""
    if one.dtype != other.dtype:
        return False
    axes = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all(size == 1 or step == their for size, step, their in axes) and _is_dense(other)


def _is_dense(tensor: torch.Tensor) -> bool:
    step = 1
    for size, stride in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda axis: axis[1]):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _copy_converted(target: Array, source: Array) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(target, source, casting="unsafe")


def _as_array(
    memory: torch.Tensor, shape: tuple[int, ...], dtype: np.dtype[Any], order: tuple[int, ...]
) -> Array:
    flat = numpy_view(memory, dtype)[: math.prod(shape)]
    ordered_shape = flat.reshape([shape[axis] for axis in order])
    turned: Array = ordered_shape.transpose(np.argsort(order))
    return turned


def _order_of(strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return axes from slowest to fastest."""
    return tuple(sorted(range(len(strides)), key=lambda axis: -strides[axis]))


def _pieces(array: torch.Tensor, itemsize: int) -> Iterator[tuple[Part, tuple[int, ...]]]:
    """Yield the parts of ``array`` that fit a buffer, and its axes from slowest to fastest."""
    order = _order_of(array.stride())
    whole = tuple(slice(0, length) for length in array.shape)
    for part in _cut(whole, order, PIECE_BYTES // itemsize):
        yield part, order


def _cut(part: Part, order: tuple[int, ...], limit: int) -> Iterator[Part]:
    """Cut a box along its slowest axes into parts of at most ``limit`` elements."""
    lengths = [each.stop - each.start for each in part]
    count = math.prod(lengths)
    if count <= limit:
        if count:
            yield part
        return
    axis = next(axis for axis in order if lengths[axis] > 1)
    step = max(1, limit // (count // lengths[axis]))
    for start in range(part[axis].start, part[axis].stop, step):
        span = slice(start, min(start + step, part[axis].stop))
        yield from _cut((*part[:axis], span, *part[axis + 1 :]), order, limit)
