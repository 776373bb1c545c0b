"""Transfers between host arrays and an accelerator through a fixed number of buffers on either side."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from accelera.devices.torch_lanes import Lanes
from accelera.devices.torch_types import numpy_view, signed, torch_dtype, wire_dtype

PIECE_BYTES = 4 << 20
"""Size of one buffer."""
SLOTS = 4
"""Pairs of buffers, so that one is filled while others travel."""

Part = tuple[slice, ...]


@dataclass
class _Slot:
    """A host buffer (pinned where the device is asynchronous), its twin on the device, their last work."""

    host: torch.Tensor
    device: torch.Tensor
    event: Any = None


class Staging:
    """Moves arrays piece by piece; converts and reorders on the device where it can."""

    def __init__(self, device: torch.device, lanes: Lanes) -> None:
        self._device = device
        self._lanes = lanes
        self._spare: queue.SimpleQueue[_Slot] = queue.SimpleQueue()
        self._made = 0
        self._lock = threading.Lock()
        self.host_bytes = self.device_bytes = SLOTS * PIECE_BYTES

    def upload(self, host: np.ndarray[Any, Any], target: torch.Tensor) -> None:
        """Copy ``host`` out of the caller's hands; the last piece may still be on its way on return."""
        wire = wire_dtype(host.dtype, target.dtype, self._device)
        for part, order in _pieces(target, wire.itemsize):
            slot = self._take()
            try:
                self._up(slot, host[part], target[part], wire, order)
            finally:
                self._spare.put(slot)

    def download(self, source: torch.Tensor, host: np.ndarray[Any, Any]) -> None:
        """Copy ``source`` to ``host`` and wait for it."""
        wire = wire_dtype(host.dtype, source.dtype, self._device)
        for part, order in _pieces(source, wire.itemsize):
            slot = self._take()
            try:
                self._down(slot, source[part], host[part], wire, order)
            finally:
                self._spare.put(slot)

    def _up(
        self,
        slot: _Slot,
        host: np.ndarray[Any, Any],
        target: torch.Tensor,
        wire: np.dtype[Any],
        order: tuple[int, ...],
    ) -> None:
        nbytes = host.size * wire.itemsize
        _assign(_on_host(slot.host, host.shape, wire, order), host)
        with self._lanes.working(self._lanes.up, reads=(), writes=(target,)) as slot.event:
            slot.device[:nbytes].copy_(slot.host[:nbytes], non_blocking=self._lanes.asynchronous)
            arrived = self._on_device(slot.device, host.shape, wire, order)
            signed(target).copy_(signed(arrived))

    def _down(
        self,
        slot: _Slot,
        source: torch.Tensor,
        host: np.ndarray[Any, Any],
        wire: np.dtype[Any],
        order: tuple[int, ...],
    ) -> None:
        nbytes = host.size * wire.itemsize
        with self._lanes.working(self._lanes.down, reads=(source,), writes=()) as slot.event:
            leaving = self._on_device(slot.device, host.shape, wire, order)
            signed(leaving).copy_(signed(source))
            slot.host[:nbytes].copy_(slot.device[:nbytes], non_blocking=self._lanes.asynchronous)
        _wait(slot)
        _assign(host, _on_host(slot.host, host.shape, wire, order))

    def _on_device(
        self, memory: torch.Tensor, shape: tuple[int, ...], dtype: np.dtype[Any], order: tuple[int, ...]
    ) -> torch.Tensor:
        lying = [shape[axis] for axis in order]
        typed = memory[: math.prod(shape) * dtype.itemsize].view(torch_dtype(dtype, self._device))
        return typed.view(lying).permute(*np.argsort(order).tolist())

    def _take(self) -> _Slot:
        """Return a slot whose last work is done; make a new one while there are few."""
        slot = self._new_slot() or self._spare.get()
        _wait(slot)
        return slot

    def _new_slot(self) -> _Slot | None:
        if not self._spare.empty():
            return None
        with self._lock:
            if self._made == SLOTS:
                return None
            host = torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=self._lanes.asynchronous)
            slot = _Slot(host, torch.empty(PIECE_BYTES, dtype=torch.uint8, device=self._device))
            self._lanes.synchronize()
            self._made += 1
        return slot


def _wait(slot: _Slot) -> None:
    if slot.event is not None:
        slot.event.synchronize()
        slot.event = None


def _assign(target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(target, source, casting="unsafe")


def _on_host(
    memory: torch.Tensor, shape: tuple[int, ...], dtype: np.dtype[Any], order: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    flat = numpy_view(memory, dtype)[: math.prod(shape)]
    lying = flat.reshape([shape[axis] for axis in order])
    turned: np.ndarray[Any, Any] = lying.transpose(np.argsort(order))
    return turned


def _pieces(array: torch.Tensor, itemsize: int) -> Iterator[tuple[Part, tuple[int, ...]]]:
    """Yield the parts of ``array`` that fit a buffer, and its axes from slowest to fastest."""
    order = tuple(sorted(range(array.ndim), key=array.stride, reverse=True))
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
