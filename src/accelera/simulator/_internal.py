"""Names of this package for the other packages of Accelera; not part of the public interface."""

from accelera.simulator.advice_search import Gain, gain
from accelera.simulator.compiling.predict import predict_trace
from accelera.simulator.compiling.prediction import CompilePrediction
from accelera.simulator.compiling.source import SourcePrediction, predict_source
from accelera.simulator.lower_bounds import bound_curve
from accelera.simulator.presets import capacity_of, hierarchy_of
from accelera.simulator.replay import CacheResult, step_seconds
from accelera.simulator.report import Timeline
from accelera.simulator.scorer_gate import PLAIN
from accelera.simulator.scorers import SCORERS, unit_scores
from accelera.simulator.sweeps import depths_below_chord
from accelera.simulator.time_steps import TimeSteps
from accelera.simulator.workloads import WORKLOADS, expected_accesses
from accelera.simulator.workloads.request import ITEM_BYTES

__all__ = [
    "ITEM_BYTES",
    "PLAIN",
    "SCORERS",
    "WORKLOADS",
    "CacheResult",
    "CompilePrediction",
    "Gain",
    "SourcePrediction",
    "TimeSteps",
    "Timeline",
    "bound_curve",
    "capacity_of",
    "depths_below_chord",
    "expected_accesses",
    "gain",
    "hierarchy_of",
    "predict_source",
    "predict_trace",
    "step_seconds",
    "unit_scores",
]
