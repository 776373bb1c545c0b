"""The paper half's other wing: replay a trace under any policy, in any hierarchy, and advise."""

from accelera.simulator.bounds import ResidencyPlan, lower_bound, plan_residency
from accelera.simulator.cache import CacheResult, simulate_cache
from accelera.simulator.presets import HIERARCHIES, hierarchy_of
from accelera.simulator.report import LinkReport, Report, TierReport
from accelera.simulator.simulate import simulate
from accelera.simulator.workloads import WORKLOADS, generate_synthetic_trace

__all__ = [
    "HIERARCHIES",
    "WORKLOADS",
    "CacheResult",
    "LinkReport",
    "Report",
    "ResidencyPlan",
    "TierReport",
    "generate_synthetic_trace",
    "hierarchy_of",
    "lower_bound",
    "plan_residency",
    "simulate",
    "simulate_cache",
]
