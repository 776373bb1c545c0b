"""Simulator: replay of a trace under any policy in any hierarchy, sweeps, lower bounds and advice."""

from accelera.simulator.advice import Advice
from accelera.simulator.advice_search import advise
from accelera.simulator.lower_bounds import lower_bound, plan_residency
from accelera.simulator.max_batch import largest_batch, largest_context
from accelera.simulator.presets import HIERARCHIES
from accelera.simulator.replay import simulate, simulate_cache
from accelera.simulator.report import Report
from accelera.simulator.scorer_gate import gated, predict_eviction_scores
from accelera.simulator.scorers import score, train_scorer
from accelera.simulator.sweeps import Sweep, sweep
from accelera.simulator.validation import (
    calculate_reuse_entropy,
    calculate_temporal_locality,
    validate_tensor_size_distribution,
    validate_trace,
)
from accelera.simulator.workloads import generate_synthetic_trace

__all__ = [
    "HIERARCHIES",
    "Advice",
    "Report",
    "Sweep",
    "advise",
    "calculate_reuse_entropy",
    "calculate_temporal_locality",
    "gated",
    "generate_synthetic_trace",
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
