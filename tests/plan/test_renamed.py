"""Names and keywords of the version before: they warn, and do the same."""

from __future__ import annotations

import numpy as np
import pytest

from accelera import plan
from accelera.plan import CostModel, MatmulProblem, Operand, PlanLimits, plan_matmul

F4 = np.dtype("f4")


def test_a_planner_takes_the_fields_of_its_limits() -> None:
    problem = MatmulProblem(*(Operand(name, (300, 300), F4, F4) for name in "ABC"))
    limits = PlanLimits(2**20, reserved={"BLAS": 10}, window=2)
    with pytest.warns(DeprecationWarning, match="PlanLimits"):
        older = plan_matmul(problem, capacity_bytes=2**20, reserved={"BLAS": 10}, window=2, cost=CostModel())  # type: ignore[call-arg]
    assert older.forecast == plan_matmul(problem, limits, CostModel()).forecast


@pytest.mark.parametrize(("old", "new"), [("Step", "PlanStep"), ("plan_sweep", "plan_elementwise")])
def test_an_older_name_warns_and_works(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"accelera.plan.{old} is called accelera.plan.{new} now"):
        assert getattr(plan, old) is getattr(plan, new)
