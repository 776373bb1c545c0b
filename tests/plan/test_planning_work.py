"""Work that planning takes: a forecast generates each step of a kind of pass once."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from accelera.plan import matmul_steps
from accelera.plan._internal import CostModel, PlanLimits, plan_matmul, trace_of
from accelera.plan.types import PlanStep
from tests.plan.problems import plan, product

MIB = 1 << 20
SIZES = [(500_000, 500_000, 500_000), (180_000, 180_000, 180_000), (16_384, 16_384, 16_384)]
SIZES += [(1_000_000, 20_000, 300), (64, 2_000_000, 64)]


@pytest.mark.parametrize("capacity", [72 * MIB, 1024 * MIB, 1500 * MIB])
@pytest.mark.parametrize("size", SIZES)
def test_planning_generates_few_steps(
    size: tuple[int, int, int], capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generated = 0

    def counted(*arguments: Any) -> PlanStep:
        nonlocal generated
        generated += 1
        return PlanStep(*arguments)

    monkeypatch.setattr(matmul_steps, "PlanStep", counted)
    measured = replace(CostModel(), flops_per_s=9e10, cores=4)
    plan_matmul(product(*size), PlanLimits(capacity), measured)
    assert generated < 90_000, generated


@pytest.mark.parametrize("size", [(900, 700, 800), (5000, 300, 4000), (300, 60_000, 300)])
@pytest.mark.parametrize("capacity", [2 * MIB, 9 * MIB])
def test_order_of_accesses_is_that_of_the_walk(size: tuple[int, int, int], capacity: int) -> None:
    chosen = plan(product(*size), capacity)
    for part in islice(chosen.pattern.passes(), 12):
        whole = trace_of(part.steps(), chosen.operands, chosen.window)
        order = trace_of(part.steps(), chosen.operands, chosen.window, accesses_only=True)
        accesses = whole.kind <= 1
        np.testing.assert_array_equal(order.buffer, whole.buffer[accesses])
        np.testing.assert_array_equal(order.size_bytes, whole.size_bytes)
