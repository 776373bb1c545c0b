"""What will be done, on paper: operands, schedules, forecasts and the least bytes possible."""

from accelera.plan.bounds import matmul_lower_bound_words
from accelera.plan.cost import CostModel
from accelera.plan.figures import Alternative, Forecast, Step
from accelera.plan.forecast import forecast
from accelera.plan.matmul import Objective, plan_matmul
from accelera.plan.matmul_steps import MatmulProblem
from accelera.plan.operand import Block, BlockTable, Operand
from accelera.plan.partition import Partition, split
from accelera.plan.plan import Plan
from accelera.plan.walk import Books, access_sequence, walk

__all__ = [
    "Alternative",
    "Block",
    "BlockTable",
    "Books",
    "CostModel",
    "Forecast",
    "MatmulProblem",
    "Objective",
    "Operand",
    "Partition",
    "Plan",
    "Step",
    "access_sequence",
    "forecast",
    "matmul_lower_bound_words",
    "plan_matmul",
    "split",
    "walk",
]
