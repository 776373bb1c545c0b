"""Calibration: rates of this machine, measured once per process, each in about a tenth of a second."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from accelera.devices import Device
from accelera.devices._internal import usable_processors
from accelera.errors import DeviceMemoryError, StoreError
from accelera.plan._internal import CostModel
from accelera.stores._internal import FlatFile, Placement

_ACCELERATOR_FLOPS_PER_S = 1e13
"""Nominal rate by which plans for accelerators are chosen, in f32 flop/s."""
_EDGE = 1024
_LONGEST_EDGE = 8192
_LONG_S = 2e-3
"""Shortest product on an accelerator that is timed well: a launch takes some 5e-6 s."""
_LINK_BYTES = 32 << 20
"""Bytes copied to and from a device to time the link."""
_TRIES = 12
"""Products timed; the fastest counts, since other processes may be using the machine."""
_PIECE_BYTES = 8 << 20
_PIECES = 4
"""Pieces written and read to time a disk."""
_ROWS, _COLUMNS = 3072, 4096
"""A matrix of 48 MiB, more than caches hold."""

_BYTE = np.dtype(np.uint8)
_DEFAULT = CostModel()
Rate = TypeVar("Rate")


class DiskRates(NamedTuple):
    """Measured rates of a folder's disk for long pieces, around the page cache."""

    read_bytes_per_s: float
    write_bytes_per_s: float


class LinkRates(NamedTuple):
    """Measured rates of copies between RAM and a device's memory."""

    upload_bytes_per_s: float
    download_bytes_per_s: float


def cost_model(device: Device) -> CostModel:
    """Return the rates of ``device``: stated by the device itself, or measured.

    Predictions use the measured rate. Choices use the stated rate, or a nominal one that is the same for all
    processors, or for all accelerators.

    Parameters
    ----------
    device
        What computes.
    """
    stated = getattr(device, "flops_per_s", None)
    link = link_rates(device)
    if stated:
        flops = nominal = float(stated)
    else:
        flops = _measured_or_default(_measured_flops, device, _DEFAULT.flops_per_s)
        nominal = _DEFAULT.flops_per_s if device.host_memory else _ACCELERATOR_FLOPS_PER_S
    return CostModel(
        flops_per_s=flops,
        upload_bytes_per_s=link.upload_bytes_per_s,
        download_bytes_per_s=link.download_bytes_per_s,
        cores=usable_processors(),
        nominal_flops_per_s=nominal,
    )


def link_rates(device: Device, *, pinned: bool = False) -> LinkRates:
    """Return the rates of copies between RAM and ``device``, stated by the device or measured once.

    ``pinned``: from and into memory that the device lends, which is pinned where that helps.

    Parameters
    ----------
    device
        The accelerator.
    pinned
        From and into memory that the device lends, which is pinned where that helps.
    """
    default = LinkRates(_DEFAULT.upload_bytes_per_s, _DEFAULT.download_bytes_per_s)
    stated = getattr(device, "link_bytes_per_s", None)
    if stated:
        return LinkRates(float(stated), float(stated))
    if device.host_memory:
        return default
    measure = _measured_pinned_link if pinned and device.lends(_BYTE, _BYTE) else _measured_link
    return _measured_or_default(measure, device, default)


def _measured_or_default(measure: Callable[[Device], Rate], device: Device, default: Rate) -> Rate:
    """Return the measured rates, or ``default`` while the device has no memory for a measurement."""
    try:
        return measure(device)
    except DeviceMemoryError:
        return default


@lru_cache(maxsize=8)
def _measured_flops(device: Device) -> float:
    """Return the f32 rate of a product, flop/s.

    On a CPU it multiplies matrices that fit the caches; on an accelerator larger ones, until the product
    takes so long that the time to launch it and to wait for it does not matter.
    """
    edge = _EDGE
    while True:
        seconds = _product_s(device, edge)
        if device.host_memory or seconds >= _LONG_S or edge == _LONGEST_EDGE:
            return 2.0 * edge**3 / seconds
        edge *= 2


def _product_s(device: Device, edge: int) -> float:
    """Return the least seconds of a product of two f32 square matrices, the first product not counted."""
    shape, dtype = (edge, edge), np.dtype(np.float32)
    with _temporary_buffers(device, *[4 * edge * edge] * 3) as buffers:
        a, b, c = (device.view(each, shape, dtype, (0, 1)) for each in buffers)
        for each in (a, b):
            device.upload(np.ones(shape, dtype), each)
        seconds = []
        for _ in range(_TRIES):
            began = time.perf_counter()
            device.gemm(a, b, c, accumulate=False)
            device.synchronize()
            seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


@contextlib.contextmanager
def _temporary_buffers(device: Device, *sizes: int) -> Iterator[list[Any]]:
    """Allocate buffers on a device for the block; raises DeviceMemoryError, with all of them released."""
    with contextlib.ExitStack() as held:
        buffers = []
        for nbytes in sizes:
            buffers.append(device.allocate(nbytes))
            held.callback(device.release, buffers[-1])
        yield buffers


@lru_cache(maxsize=8)
def _measured_link(device: Device) -> LinkRates:
    """Return the rates of copies from and into ordinary memory."""
    host = np.ones(_LINK_BYTES, np.uint8)
    with _temporary_buffers(device, _LINK_BYTES) as (buffer,):
        view = device.view(buffer, host.shape, _BYTE, (0,))

        def upload(_: int) -> int:
            device.upload(host, view)
            device.synchronize()
            return host.nbytes

        def download(_: int) -> int:
            device.download(view, host)
            return host.nbytes

        return LinkRates(_LINK_BYTES / _least_seconds(upload), _LINK_BYTES / _least_seconds(download))


@lru_cache(maxsize=8)
def _measured_pinned_link(device: Device) -> LinkRates:
    """Return the rates of copies from and into memory that the device lends."""
    step = device.lent_bytes
    with _temporary_buffers(device, _LINK_BYTES) as (buffer,):
        whole = device.view(buffer, (_LINK_BYTES,), _BYTE, (0,))
        parts = [whole[start : start + step] for start in range(0, _LINK_BYTES, step)]

        def upload(_: int) -> int:
            for part in parts:
                with _borrowed_buffer(device) as host:
                    device.upload(host[: len(part)], part)
            device.synchronize()
            return _LINK_BYTES

        def download(_: int) -> int:
            with contextlib.ExitStack() as before:
                for part in parts:
                    with contextlib.ExitStack() as under_way:
                        host = under_way.enter_context(_borrowed_buffer(device))
                        under_way.callback(device.begin_download(part, host[: len(part)]))
                        before.close()
                        before.push(under_way.pop_all())
            return _LINK_BYTES

        return LinkRates(_LINK_BYTES / _least_seconds(upload), _LINK_BYTES / _least_seconds(download))


@contextlib.contextmanager
def _borrowed_buffer(device: Device) -> Iterator[np.ndarray[Any, Any]]:
    host = device.lend_host()
    assert host is not None, "lend_host() waits for a buffer"
    try:
        yield host
    finally:
        device.take_back(host)


def disk_rates(folder: str | Path | None = None) -> DiskRates:
    """Return the measured rates of the disk under ``folder`` (None: where temporary files go).

    A file without a name is written and read. Raises StoreError where that is not possible.

    Parameters
    ----------
    folder
        A folder on the disk; None: where temporary files go.
    """
    place = Path(tempfile.gettempdir() if folder is None else folder)
    try:
        disk = os.stat(place).st_dev
        if disk not in _RATES:
            _RATES[disk] = _measured_disk(place)
        return _RATES[disk]
    except OSError as error:
        raise StoreError(f"[disk_rates] {place} takes no files: {error}; name another folder") from error


_RATES: dict[int, DiskRates] = {}
"""Rates by the device number of the disk, whichever of its folders was named."""


def _measured_disk(folder: Path) -> DiskRates:
    descriptor, name = tempfile.mkstemp(prefix=".accelera-rate-", dir=folder)
    os.unlink(name)
    size = _PIECES * _PIECE_BYTES
    os.ftruncate(descriptor, size)
    placement = Placement.dense((size,), np.dtype(np.uint8))
    file = FlatFile(folder / "rate", descriptor, placement, writable=True, direct=True)
    piece = np.ones(_PIECE_BYTES, np.uint8)
    try:
        writing = _least_seconds(lambda at: file.write((slice(at, at + _PIECE_BYTES),), piece))
        reading = _least_seconds(lambda at: file.read((slice(at, at + _PIECE_BYTES),), piece))
    finally:
        file.close()
    return DiskRates(_PIECE_BYTES / reading, _PIECE_BYTES / writing)


def _least_seconds(move: Callable[[int], int]) -> float:
    """Return the least seconds in which one of the pieces was moved."""
    seconds = []
    for index in range(_PIECES):
        began = time.perf_counter()
        move(index * _PIECE_BYTES)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


@lru_cache(maxsize=1)
def memory_bytes_per_s() -> float:
    """Return the measured rate at which a matrix-vector product reads RAM, bytes per second."""
    matrix = np.ones((_ROWS, _COLUMNS), np.float32)
    vector, out = np.ones(_COLUMNS, np.float32), np.empty(_ROWS, np.float32)

    def multiply(_: int) -> int:
        np.dot(matrix, vector, out=out)
        return matrix.nbytes

    return matrix.nbytes / _least_seconds(multiply)
