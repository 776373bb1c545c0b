"""Gram matrices on an accelerator that is not there; everything else beside it, on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from accelera.devices import SimulatedDevice
from accelera.engine import lazy
from accelera.errors import BudgetExceededError
from accelera.stores import open_store
from tests.matmul.products import values
from tests.operations.test_gram import assert_gram
from tests.planned import evaluate, gram

MIB = 1 << 20


@pytest.mark.parametrize("dtype", ["f2", "f4", "c16", "i4"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_gram_in_a_small_memory(dtype: str, side: Any) -> None:
    device = SimulatedDevice(2 * MIB)
    a = values((700, 600), dtype)
    store, report = gram(open_store(a), side=side, device=device, budget_bytes=2 * MIB)
    assert_gram(store.to_numpy(), a, side)
    assert report.device == device.name
    assert report.moved_bytes == report.plan.moved_bytes
    assert report.plan.peak_bytes[device.name] <= 2 * MIB
    assert device.report().peak_bytes <= 2 * MIB
    assert not report.fallbacks


def test_gram_goes_on_in_half_the_room_and_then_on_the_cpu() -> None:
    device = SimulatedDevice(3 * MIB)
    a = values((900, 800), "f4")
    store, report = gram(open_store(a), device=device, budget_bytes=64 * MIB)
    assert_gram(store.to_numpy(), a, "left")
    assert report.fallbacks


def test_no_tile_fits() -> None:
    device = SimulatedDevice(1 << 10)
    with pytest.raises(BudgetExceededError, match=r"\[gram\]"):
        gram(open_store(values((900, 800), "f4")), device=device, budget_bytes=1 << 10)


def test_expressions_are_computed_beside_the_accelerator() -> None:
    device = SimulatedDevice(1 << 10)
    a = values((300, 200), "f4")
    store, report = evaluate(lazy(a) * 2, device=device, budget_bytes=64 * MIB)
    np.testing.assert_array_equal(store.to_numpy(), a * 2)
    assert report.device == "cpu"
    assert report.plan.tier == "ram"
