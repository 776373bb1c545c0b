"""What will be done, on paper: operands, schedules, forecasts and the least bytes possible."""

from accelera.plan.bounds import matmul_lower_bound_words
from accelera.plan.combined import combine_plans
from accelera.plan.cost import CostModel
from accelera.plan.eviction import Eviction, PolicyMaker, Scorer
from accelera.plan.figures import Alternative, Forecast, Step
from accelera.plan.forecast import forecast
from accelera.plan.gram import plan_gram
from accelera.plan.gram_steps import GramProblem
from accelera.plan.limits import PlanLimits
from accelera.plan.matmul import Objective, plan_matmul
from accelera.plan.matmul_steps import MatmulProblem
from accelera.plan.operand import Block, BlockTable, Operand
from accelera.plan.paper import Numbers, policy_of, trace_of
from accelera.plan.partition import Partition, Span, Spans, split
from accelera.plan.passes import Pass, Pattern, Repeat
from accelera.plan.placement import DevicePlan, Placement
from accelera.plan.plan import Plan, as_saved
from accelera.plan.saved import SavedPlan
from accelera.plan.sweep import plan_sweep
from accelera.plan.sweep_steps import SweepProblem
from accelera.plan.walk import Books, walk

__all__ = [
    "Alternative",
    "Block",
    "BlockTable",
    "Books",
    "CostModel",
    "DevicePlan",
    "Eviction",
    "Forecast",
    "GramProblem",
    "MatmulProblem",
    "Numbers",
    "Objective",
    "Operand",
    "Partition",
    "Pass",
    "Pattern",
    "Placement",
    "Plan",
    "PlanLimits",
    "PolicyMaker",
    "Repeat",
    "SavedPlan",
    "Scorer",
    "Span",
    "Spans",
    "Step",
    "SweepProblem",
    "as_saved",
    "combine_plans",
    "forecast",
    "matmul_lower_bound_words",
    "plan_gram",
    "plan_matmul",
    "plan_sweep",
    "policy_of",
    "split",
    "trace_of",
    "walk",
]
