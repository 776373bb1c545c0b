"""The paper half's other wing: replay a trace under any policy, in any hierarchy, and advise."""

from accelera.simulator.cache import CacheResult, simulate_cache

__all__ = ["CacheResult", "simulate_cache"]
