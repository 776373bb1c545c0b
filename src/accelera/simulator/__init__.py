"""Simulator: replay of a trace under any policy in any hierarchy, sweeps, lower bounds and advice."""

from accelera.simulator.advice import Advice, Depth, Offload, Ranked, Resident
from accelera.simulator.advice_search import Gain, advise, gain
from accelera.simulator.lower_bounds import ResidencyPlan, bound_curve, lower_bound, plan_residency
from accelera.simulator.max_batch import Limit, largest_batch, largest_context
from accelera.simulator.presets import HIERARCHIES, hierarchy_of
from accelera.simulator.replay import CacheResult, simulate, simulate_cache
from accelera.simulator.report import LinkReport, Report, TierReport, Timeline
from accelera.simulator.scorer_gate import PLAIN, Gated, gated, predict_eviction_scores
from accelera.simulator.scorers import SCORERS, score, train_scorer
from accelera.simulator.sweeps import Sweep, sweep
from accelera.simulator.validation import (
    SizeComparison,
    Validation,
    calculate_reuse_entropy,
    calculate_temporal_locality,
    validate_tensor_size_distribution,
    validate_trace,
)
from accelera.simulator.workloads import WORKLOADS, expected_accesses, generate_synthetic_trace

__all__ = [
    "HIERARCHIES",
    "PLAIN",
    "SCORERS",
    "WORKLOADS",
    "Advice",
    "CacheResult",
    "Depth",
    "Gain",
    "Gated",
    "Limit",
    "LinkReport",
    "Offload",
    "Ranked",
    "Report",
    "ResidencyPlan",
    "Resident",
    "SizeComparison",
    "Sweep",
    "TierReport",
    "Timeline",
    "Validation",
    "advise",
    "bound_curve",
    "calculate_reuse_entropy",
    "calculate_temporal_locality",
    "expected_accesses",
    "gain",
    "gated",
    "generate_synthetic_trace",
    "hierarchy_of",
    "largest_batch",
    "largest_context",
    "lower_bound",
    "plan_residency",
    "predict_eviction_scores",
    "score",
    "simulate",
    "simulate_cache",
    "sweep",
    "train_scorer",
    "validate_tensor_size_distribution",
    "validate_trace",
]
