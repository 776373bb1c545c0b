"""Plans of operations: operands, schedules, forecasts and the least bytes possible."""

from accelera.plan.plan import Plan

__all__ = [
    "Plan",
]
