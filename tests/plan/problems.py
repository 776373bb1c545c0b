"""Products on paper for the planner's tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from accelera.plan import Plan
from accelera.plan._internal import CostModel, MatmulProblem, Objective, Operand, PlanLimits, plan_matmul

COST = CostModel()


def product(
    m: int, k: int, n: int, dtype: str = "float32", batch: tuple[int, ...] = (), tier: str = "disk"
) -> MatmulProblem:
    """Return ``A @ B`` of the given sizes, row-major, on ``tier``."""
    element = np.dtype(dtype)
    a = Operand("A", (*batch, m, k), element, element, tier)
    b = Operand("B", (*batch, k, n), element, element, tier)
    c = Operand("C", (*batch, m, n), element, element, tier)
    return MatmulProblem(a, b, c)


def plan(
    problem: MatmulProblem,
    capacity_bytes: int,
    *,
    tiles: Any = None,
    spec: Any = None,
    objective: Objective = "time",
    **limits: Any,
) -> Plan:
    """Plan ``problem`` with the default rates."""
    room = PlanLimits(capacity_bytes, **limits)
    return plan_matmul(problem, room, COST, tiles=tiles, spec=spec, objective=objective)
