"""How fast this machine is: measured once per process, each figure in about a tenth of a second."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from accelera.devices import Device, usable_processors
from accelera.errors import StoreError
from accelera.plan import CostModel
from accelera.stores import FlatFile, Placement

_ACCELERATOR_FLOPS_PER_S = 1e13
"""What plans for accelerators are chosen by, in f32 flop/s."""
_EDGE = 1024
_TRIES = 12
"""Products timed; the best counts, since others may be using the machine."""
_PIECE_BYTES = 8 << 20
_PIECES = 4
"""Pieces written and read to time a disk."""
_ROWS, _COLUMNS = 3072, 4096
"""A matrix of 48 MiB, more than caches hold."""


class DiskRates(NamedTuple):
    """How fast a folder's disk moves long pieces, past the page cache."""

    read_bytes_per_s: float
    write_bytes_per_s: float


def cost_model(device: Device) -> CostModel:
    """Return the rates of ``device``: stated by the device itself, or measured.

    Predictions go by what was measured, choices by the stated rate or by one that is the same for all
    processors, or all accelerators.
    """
    stated = getattr(device, "flops_per_s", None)
    if stated:
        flops = nominal = float(stated)
    else:
        flops = _measured_flops(device)
        nominal = CostModel().flops_per_s if device.host_memory else _ACCELERATOR_FLOPS_PER_S
    return CostModel(flops_per_s=flops, cores=usable_processors(), nominal_flops_per_s=nominal)


@lru_cache(maxsize=8)
def _measured_flops(device: Device) -> float:
    """Return the f32 rate of a product of two matrices that fit the caches, flop/s."""
    shape, dtype = (_EDGE, _EDGE), np.dtype(np.float32)
    buffers = [device.allocate(4 * _EDGE * _EDGE) for _ in range(3)]
    a, b, c = (device.view(each, shape, dtype, (0, 1)) for each in buffers)
    for each in (a, b):
        device.upload(np.ones(shape, dtype), each)
    seconds = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        device.gemm(a, b, c, accumulate=False)
        device.synchronize()
        seconds.append(time.perf_counter() - began)
    del a, b, c
    for each in buffers:
        device.release(each)
    return 2.0 * _EDGE**3 / min(seconds[1:])


def disk_rates(folder: str | Path | None = None) -> DiskRates:
    """Return the measured rates of the disk under ``folder`` (None: where temporary files go).

    A file without a name is written and read. Raises StoreError where that is not possible.
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
"""By the number of the disk, whatever folder of it was named."""


def _measured_disk(folder: Path) -> DiskRates:
    descriptor, name = tempfile.mkstemp(prefix=".accelera-rate-", dir=folder)
    os.unlink(name)
    size = _PIECES * _PIECE_BYTES
    os.ftruncate(descriptor, size)
    placement = Placement.dense((size,), np.dtype(np.uint8))
    file = FlatFile(folder / "rate", descriptor, placement, writable=True, direct=True)
    piece = np.ones(_PIECE_BYTES, np.uint8)
    try:
        writing = _fastest(lambda at: file.write((slice(at, at + _PIECE_BYTES),), piece))
        reading = _fastest(lambda at: file.read((slice(at, at + _PIECE_BYTES),), piece))
    finally:
        file.close()
    return DiskRates(_PIECE_BYTES / reading, _PIECE_BYTES / writing)


def _fastest(move: Callable[[int], int]) -> float:
    """Return the least seconds that one of the pieces took."""
    seconds = []
    for index in range(_PIECES):
        began = time.perf_counter()
        move(index * _PIECE_BYTES)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


@lru_cache(maxsize=1)
def memory_bytes_per_s() -> float:
    """Return the measured rate at which a product of matrix and vector passes over RAM."""
    matrix = np.ones((_ROWS, _COLUMNS), np.float32)
    vector, out = np.ones(_COLUMNS, np.float32), np.empty(_ROWS, np.float32)

    def multiply(_: int) -> int:
        np.dot(matrix, vector, out=out)
        return matrix.nbytes

    return matrix.nbytes / _fastest(multiply)
