"""Names of this package for the other packages of Accelera; not part of the public interface."""

from accelera.plan.cost import CostModel
from accelera.plan.dry_run import BufferNumbers, forecast, policy_of, trace_of
from accelera.plan.elementwise import ElementwiseProblem, plan_elementwise
from accelera.plan.gram import plan_gram
from accelera.plan.gram_steps import GramProblem
from accelera.plan.limits import Eviction, PlanLimits, PolicyMaker
from accelera.plan.matmul import Objective, matmul_lower_bound_words, plan_matmul
from accelera.plan.matmul_steps import MatmulProblem
from accelera.plan.partition import Partition, Span, Spans, split
from accelera.plan.plan import DevicePlacement, DevicePlan, SavedPlan, as_saved, combine_plans
from accelera.plan.saved_choices import require_exact_cover
from accelera.plan.types import BlockTable, Forecast, Operand, OperandBlock, PlanStep
from accelera.plan.walk import Pass, Pattern, Repeat, walk

__all__ = [
    "BlockTable",
    "BufferNumbers",
    "CostModel",
    "DevicePlacement",
    "DevicePlan",
    "ElementwiseProblem",
    "Eviction",
    "Forecast",
    "GramProblem",
    "MatmulProblem",
    "Objective",
    "Operand",
    "OperandBlock",
    "Partition",
    "Pass",
    "Pattern",
    "PlanLimits",
    "PlanStep",
    "PolicyMaker",
    "Repeat",
    "SavedPlan",
    "Span",
    "Spans",
    "as_saved",
    "combine_plans",
    "forecast",
    "matmul_lower_bound_words",
    "plan_elementwise",
    "plan_gram",
    "plan_matmul",
    "policy_of",
    "require_exact_cover",
    "split",
    "trace_of",
    "walk",
]
