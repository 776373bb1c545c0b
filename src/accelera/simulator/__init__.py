"""The paper half's other wing: replay a trace under any policy, in any hierarchy, and advise."""

from accelera.simulator.cache import CacheResult, simulate_cache
from accelera.simulator.presets import HIERARCHIES, hierarchy_of
from accelera.simulator.report import LinkReport, Report, TierReport
from accelera.simulator.simulate import simulate

__all__ = [
    "HIERARCHIES",
    "CacheResult",
    "LinkReport",
    "Report",
    "TierReport",
    "hierarchy_of",
    "simulate",
    "simulate_cache",
]
