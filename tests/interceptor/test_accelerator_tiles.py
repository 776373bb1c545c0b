"""Calls of an accelerator in pieces: few launches, and the same values."""

from __future__ import annotations

import torch

from accelera.interceptor.config import config_of
from accelera.interceptor.elementwise import ElementwiseCall, schema_of
from accelera.interceptor.tiling import MemoryTarget
from accelera.testing import FakeCuda


def test_tiles_are_large_enough_for_an_accelerator() -> None:
    """80 MB in two tiles; at the CPU's 4 MiB it would be 20 launches and a tail of small ones."""
    with FakeCuda("1GiB") as cuda:
        limits = config_of(budget="300MB")
        a, b, out = (torch.full((20_000_000,), value, device="cuda") for value in (1.5, 2.0, 0.0))
        call = ElementwiseCall("add.Tensor", schema_of("add.Tensor"), (a, b), {})
        before = cuda.launches
        assert call.fill(MemoryTarget(out), limits, 300_000_000) == []
        assert cuda.launches - before == 4
        assert float(out.min()) == float(out.max()) == 3.5
