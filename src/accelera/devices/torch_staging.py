"""Transfers between host arrays and an accelerator through a fixed number of buffers on either side.

What lies alike on both sides goes by one copy, straight from a pinned buffer into its place or back. The rest
goes through a buffer on the device, where it is converted and reordered.
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
"""Pairs of buffers, so that one is filled while others travel."""
_DOWNLOADS = 2
"""Pieces of one download under way at once: one travels while the other is taken out of its buffer."""

Array = np.ndarray[Any, Any]
Part = tuple[slice, ...]


@dataclass
class _StagingSlot:
    """A host buffer (pinned where the device is asynchronous), its twin on the device, their last work."""

    host: torch.Tensor
    device: torch.Tensor
    event: Any = None


class _PieceInFlight(NamedTuple):
    """A part of an array on its way to the host buffer of a slot, axes in ``order``."""

    slot: _StagingSlot
    part: Part
    order: tuple[int, ...]


class Staging:
    """Moves arrays piece by piece; converts and reorders on the device where it can."""

    def __init__(self, device: torch.device, lanes: Lanes) -> None:
        self._device = device
        self._lanes = lanes
        self._pages = Pages("staging")
        self._spare: queue.SimpleQueue[_StagingSlot] = queue.SimpleQueue()
        self._lent: dict[int, _StagingSlot] = {}
        self._made = 0
        self._lock = threading.Lock()
        self.host_bytes = self.device_bytes = SLOTS * PIECE_BYTES

    def lend(self, *, wait: bool) -> Array | None:
        """Return a host buffer until ``take_back``; None when all are in use and ``wait`` is false."""
        slot = self._take(wait=wait)
        if slot is None:
            return None
        buffer = slot.host.numpy()
        self._lent[address(buffer)] = slot
        return buffer

    def take_back(self, buffer: Array) -> None:
        """Take back what ``lend`` returned; what was sent from it may still be on its way."""
        self._spare.put(self._lent.pop(address(buffer)))

    def upload(self, host: Array, target: torch.Tensor) -> None:
        """Copy ``host`` out of the caller's hands; the last piece may still be on its way on return.

        What lies in a lent buffer is on its way as a whole: the buffer is lent again when it has arrived.
        """
        lent = self._lent_for(host)
        if lent is not None:
            self._send(lent, _order_of(host.strides), host.dtype, target)
            return
        wire = wire_dtype(host.dtype, target.dtype, self._device)
        for part, order in _pieces(target, wire.itemsize):
            with self._slot() as slot:
                _assign(_on_host(slot.host, host[part].shape, wire, order), host[part])
                self._send(slot, order, wire, target[part])

    def download(self, source: torch.Tensor, host: Array) -> None:
        """Copy ``source`` to ``host`` and wait for it."""
        lent = self._lent_for(host)
        if lent is not None:
            self._fetch(lent, _order_of(host.strides), host.dtype, source)
            _wait(lent)
            return
        wire = wire_dtype(host.dtype, source.dtype, self._device)
        coming: deque[_PieceInFlight] = deque()
        try:
            for part, order in _pieces(source, wire.itemsize):
                slot = self._take(wait=not coming)
                if slot is None:
                    self._arrive(coming, host, wire)
                    slot = self._take(wait=True)
                assert slot is not None
                coming.append(_PieceInFlight(slot, part, order))
                self._fetch(slot, order, wire, source[part])
                if len(coming) == _DOWNLOADS:
                    self._arrive(coming, host, wire)
            while coming:
                self._arrive(coming, host, wire)
        finally:
            for each in coming:
                self._spare.put(each.slot)

    def _arrive(self, coming: deque[_PieceInFlight], host: Array, wire: np.dtype[Any]) -> None:
        """Wait for the piece that was begun first, and take it out of its buffer."""
        slot, part, order = coming[0]
        _wait(slot)
        _assign(host[part], _on_host(slot.host, host[part].shape, wire, order))
        coming.popleft()
        self._spare.put(slot)

    def begin_download(self, source: torch.Tensor, host: Array) -> Callable[[], None]:
        """Begin to copy ``source`` into a lent buffer; return what waits for it."""
        lent = self._lent_for(host)
        if lent is None:
            self.download(source, host)
            return _nothing
        self._fetch(lent, _order_of(host.strides), host.dtype, source)
        return functools.partial(_wait, lent)

    def _send(
        self, slot: _StagingSlot, order: tuple[int, ...], wire: np.dtype[Any], target: torch.Tensor
    ) -> None:
        """Copy what the slot's host buffer holds, axes in ``order``, to ``target``."""
        shape, goes_on = tuple(target.shape), self._lanes.asynchronous
        leaving, nbytes = self._typed(slot.host, shape, wire, order), target.numel() * wire.itemsize
        with self._lanes.working(self._lanes.up, reads=(), writes=(target,)) as slot.event:
            if _lie_alike(leaving, target):
                signed(target).copy_(signed(leaving), non_blocking=goes_on)
            else:
                slot.device[:nbytes].copy_(slot.host[:nbytes], non_blocking=goes_on)
                signed(target).copy_(signed(self._typed(slot.device, shape, wire, order)))

    def _fetch(
        self, slot: _StagingSlot, order: tuple[int, ...], wire: np.dtype[Any], source: torch.Tensor
    ) -> None:
        """Copy ``source`` into the slot's host buffer, axes in ``order``."""
        shape, goes_on = tuple(source.shape), self._lanes.asynchronous
        coming, nbytes = self._typed(slot.host, shape, wire, order), source.numel() * wire.itemsize
        with self._lanes.working(self._lanes.down, reads=(source,), writes=()) as slot.event:
            if _lie_alike(source, coming):
                signed(coming).copy_(signed(source), non_blocking=goes_on)
            else:
                signed(self._typed(slot.device, shape, wire, order)).copy_(signed(source))
                slot.host[:nbytes].copy_(slot.device[:nbytes], non_blocking=goes_on)

    def _typed(
        self, memory: torch.Tensor, shape: tuple[int, ...], dtype: np.dtype[Any], order: tuple[int, ...]
    ) -> torch.Tensor:
        lying = [shape[axis] for axis in order]
        typed = memory[: math.prod(shape) * dtype.itemsize].view(torch_dtype(dtype, self._device))
        return typed.view(lying).permute(*np.argsort(order).tolist())

    def _lent_for(self, host: Array) -> _StagingSlot | None:
        return self._lent.get(address(host)) if self._lent and host.size else None

    @contextlib.contextmanager
    def _slot(self) -> Iterator[_StagingSlot]:
        slot = self._take(wait=True)
        assert slot is not None
        try:
            yield slot
        finally:
            self._spare.put(slot)

    def _take(self, *, wait: bool) -> _StagingSlot | None:
        """Return a slot whose last work is done; make a new one while there are few."""
        try:
            slot = self._new_slot() or self._spare.get(block=wait)
        except queue.Empty:
            return None
        _wait(slot)
        return slot

    def _new_slot(self) -> _StagingSlot | None:
        if not self._spare.empty():
            return None
        with self._lock:
            if self._made == SLOTS:
                return None
            slot = _StagingSlot(
                self._host_memory(), torch.empty(PIECE_BYTES, dtype=torch.uint8, device=self._device)
            )
            self._lanes.synchronize()
            self._made += 1
        return slot

    def _host_memory(self) -> torch.Tensor:
        if self._lanes.asynchronous:
            return torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
        return torch.from_numpy(self._pages.allocate(PIECE_BYTES))


def _wait(slot: _StagingSlot) -> None:
    if slot.event is not None:
        slot.event.synchronize()
        slot.event = None


def _nothing() -> None:
    """What is to be waited for is done."""


def _lie_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether both are dense and lie in the same order: one copy of bytes makes them equal."""
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


def _assign(target: Array, source: Array) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(target, source, casting="unsafe")


def _on_host(
    memory: torch.Tensor, shape: tuple[int, ...], dtype: np.dtype[Any], order: tuple[int, ...]
) -> Array:
    flat = numpy_view(memory, dtype)[: math.prod(shape)]
    lying = flat.reshape([shape[axis] for axis in order])
    turned: Array = lying.transpose(np.argsort(order))
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
