"""The allocator: what is held, reuse, and a limit that refuses before anything is allocated."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from accelera.tensora.core import native

MIB = 2**20


def test_what_tensors_hold_is_counted() -> None:
    before = native.memory_stats().live_bytes
    x = native.full((MIB,), 1.0, native.dtype.float32)
    held = native.memory_stats().live_bytes - before
    assert x.nbytes <= held <= 1.25 * x.nbytes
    view = x[1:]
    del x
    assert native.memory_stats().live_bytes - before == held
    del view
    assert native.memory_stats().live_bytes == before


def test_a_block_is_used_again() -> None:
    x = native.full((MIB,), 1.0, native.dtype.float32)
    del x
    before = native.memory_stats().reused
    native.full((MIB - 100,), 1.0, native.dtype.float32)
    assert native.memory_stats().reused > before


def test_the_peak() -> None:
    native.reset_peak()
    before = native.memory_stats().live_bytes
    x = native.full((MIB,), 1.0, native.dtype.float32)
    y = x + x
    assert y[0].item() == 2
    del x, y
    assert native.memory_stats().peak_bytes - before >= 8 * MIB


def test_a_request_that_the_system_refuses_is_no_peak() -> None:
    native.reset_peak()
    live = native.memory_stats().live_bytes
    with pytest.raises(MemoryError, match=r"the system has no \d+ bytes; \d+ are held") as refused:
        native.empty((2**44,), native.dtype.float32)
    assert f"; {live} are held" in str(refused.value)
    with pytest.raises(MemoryError, match="more than a process can address"):
        native.empty((2**50,), native.dtype.float32)
    assert native.memory_stats().peak_bytes == native.memory_stats().live_bytes == live


def test_a_limit_refuses_and_names_the_smallest_that_would_do() -> None:
    live = native.memory_stats().live_bytes
    native.set_memory_limit(live + 8 * MIB)
    try:
        x = native.full((MIB,), 1.0, native.dtype.float32)
        with pytest.raises(
            MemoryError, match=r"the smallest limit that would do here is \d+ bytes"
        ) as refused:
            native.full((2 * MIB,), 1.0, native.dtype.float32)
        needed = int(str(refused.value).split("here is ")[1].split()[0])
        assert native.memory_stats().live_bytes - live <= 5 * MIB
        native.set_memory_limit(needed)
        y = native.full((2 * MIB,), 1.0, native.dtype.float32)
        assert y[0].item() == x[0].item() == 1.0
    finally:
        native.set_memory_limit(0)


def test_a_limit_below_what_is_held_is_refused() -> None:
    x = native.full((MIB,), 1.0, native.dtype.float32)
    with pytest.raises(ValueError, match="but tensors hold"):
        native.set_memory_limit(1)
    assert x[0].item() == 1.0


def test_lent_memory_is_not_counted_and_lives_as_long_as_the_tensor() -> None:
    gc.collect()  # tensors of failed calls live as long as the tracebacks of their errors
    before = native.memory_stats().live_bytes
    array = np.arange(MIB, dtype=np.float32)
    x = native.from_dlpack(array)
    del array
    assert native.memory_stats().live_bytes == before
    assert x[MIB - 1].item() == MIB - 1
