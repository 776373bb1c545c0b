"""Run as a program: how much memory each operation of a device takes on top of its operands."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from accelera.devices import Device, SimulatedDevice, get_device
from accelera.memory import process_memory, reset_peak

LONG, SHORT = 100_000, 104
"""A long operand has 40 MiB."""


def make(kind: str) -> Device:
    if kind == "torch":
        from accelera.devices.torch_device import TorchDevice

        return TorchDevice("cpu")
    return SimulatedDevice("1GiB") if kind == "simulated" else get_device("cpu")


def tile(device: Device, shape: tuple[int, int], order: tuple[int, ...], dtype: str = "float32") -> Any:
    """Return a tile whose every page is in memory."""
    kind = np.dtype(dtype)
    view = device.view(device.allocate(shape[0] * shape[1] * kind.itemsize), shape, kind, order)
    device.upload(np.broadcast_to(np.ones(1, kind), shape), view)
    return view


def operations(device: Device, order: tuple[int, ...]) -> dict[str, Callable[[], None]]:
    a, c = tile(device, (LONG, SHORT), order), tile(device, (LONG, SHORT), order)
    b, g = tile(device, (SHORT, SHORT), order), tile(device, (SHORT, SHORT), order)
    z = tile(device, (LONG, SHORT // 2), order, "complex64")
    h = tile(device, (SHORT // 2, SHORT // 2), order, "complex64")
    half = np.ones((LONG, SHORT), np.float16)
    return {
        "gemm": lambda: device.gemm(a, b, c, accumulate=True),
        "gemm of a transposed view": lambda: device.gemm(c.swapaxes(0, 1), a, b, accumulate=False),
        "gemm of slices": lambda: device.gemm(a[:, 8:100], b[8:100, 3:], c[:, 3:], accumulate=False),
        "gemm of every second": lambda: device.gemm(a[::2, ::2], b[::2], c[::2], accumulate=True),
        "gemm conjugated": lambda: device.gemm(z.swapaxes(0, 1), z, h, accumulate=True, conjugate_a=True),
        "gram": lambda: device.gram(a, g, accumulate=True),
        "complex gram": lambda: device.gram(z, h, accumulate=True),
        "symmetrize": lambda: device.symmetrize(g),
        "upload": lambda: device.upload(half, a),
        "download": lambda: device.download(c, half),
    }


def added_bytes(operation: Callable[[], None]) -> int:
    reset_peak()
    before = process_memory()
    operation()
    after = process_memory()
    return after.peak_bytes - before.rss_bytes - max(0, after.file_bytes - before.file_bytes)


def main() -> None:
    device = make(sys.argv[1])
    found = {}
    for order in ((0, 1), (1, 0)):
        for name, operation in operations(device, order).items():
            found[f"{name} {order}"] = added_bytes(operation)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
