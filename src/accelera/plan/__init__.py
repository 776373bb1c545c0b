"""What will be done, on paper: operands, schedules, forecasts and the least bytes possible."""

from accelera.plan.bounds import matmul_lower_bound_words
from accelera.plan.cost import CostModel
from accelera.plan.figures import Alternative, Forecast, Step
from accelera.plan.forecast import forecast
from accelera.plan.gram import GramProblem, plan_gram
from accelera.plan.matmul import Objective, plan_matmul
from accelera.plan.matmul_steps import MatmulProblem
from accelera.plan.operand import Block, BlockTable, Operand
from accelera.plan.partition import Partition, split
from accelera.plan.plan import Plan
from accelera.plan.sweep import plan_sweep
from accelera.plan.sweep_steps import SweepProblem
from accelera.plan.walk import Books, access_sequence, walk

__all__ = [
    "Alternative",
    "Block",
    "BlockTable",
    "Books",
    "CostModel",
    "Forecast",
    "GramProblem",
    "MatmulProblem",
    "Objective",
    "Operand",
    "Partition",
    "Plan",
    "Step",
    "SweepProblem",
    "access_sequence",
    "forecast",
    "matmul_lower_bound_words",
    "plan_gram",
    "plan_matmul",
    "plan_sweep",
    "split",
    "walk",
]
