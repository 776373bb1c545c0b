"""No operation takes a copy of its operands, and released memory is the system's again."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from accelera.devices import get_device
from accelera.memory import process_memory
from tests.children import answer_of
from tests.devices import peaks

MIB = 1 << 20
LEAST_OPERAND_BYTES = 40_000_000


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the process's peak from /proc")
@pytest.mark.parametrize("kind", ["cpu", "simulated", "torch"])
def test_operations_take_no_copy_of_a_long_operand(kind: str) -> None:
    added = answer_of(peaks.__file__, kind)
    assert len(added) == 20
    allowed = get_device("cpu").workspace_bytes() + get_device("cpu").packing_bytes() + 4 * MIB
    assert allowed < LEAST_OPERAND_BYTES
    assert {name: size for name, size in added.items() if size > allowed} == {}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts resident pages in /proc")
def test_released_buffers_leave_memory_even_while_views_live() -> None:
    device = get_device("cpu")
    buffer = device.allocate(64 * MIB)
    view = device.view(buffer, (64 * MIB,), np.dtype(np.uint8), (0,))
    view.fill(1)
    held = process_memory().anon_bytes
    device.release(buffer)
    assert held - process_memory().anon_bytes > 60 * MIB
    assert view.size == 64 * MIB
