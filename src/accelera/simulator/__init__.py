"""The paper half's other wing: replay a trace under any policy, in any hierarchy, and advise."""

from accelera.simulator.advice import Advice
from accelera.simulator.advice_parts import Depth, Offload, Ranked, Resident
from accelera.simulator.advice_search import advise
from accelera.simulator.bound_curve import bound_curve
from accelera.simulator.bounds import ResidencyPlan, lower_bound, plan_residency
from accelera.simulator.cache import CacheResult, simulate_cache
from accelera.simulator.gain import Gain, gain
from accelera.simulator.limits import Limit, largest_batch, largest_context
from accelera.simulator.presets import HIERARCHIES, hierarchy_of
from accelera.simulator.replay import simulate
from accelera.simulator.report import LinkReport, Report, TierReport
from accelera.simulator.scorers import (
    PLAIN,
    SCORERS,
    Gated,
    gated,
    predict_eviction_scores,
    score,
    train_scorer,
)
from accelera.simulator.sweeps import Sweep, sweep
from accelera.simulator.timeline import Timeline
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
