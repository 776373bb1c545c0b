"""How fast this machine is: measured once per process, in about a tenth of a second."""

from __future__ import annotations

import time
from functools import lru_cache

import numpy as np

from accelera.devices import Device, usable_processors
from accelera.plan import CostModel

_EDGE = 1024
_TRIES = 12
"""Products timed; the best counts, since others may be using the machine."""


def cost_model(device: Device) -> CostModel:
    """Return the rates of ``device``: stated by the device itself, or measured."""
    stated = getattr(device, "flops_per_s", None)
    flops = float(stated) if stated else _measured_flops(device)
    return CostModel(flops_per_s=flops, cores=usable_processors())


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
