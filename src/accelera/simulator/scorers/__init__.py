"""Scorers: who is likely not to be needed soon, and a gate that lets them in only where they help."""

from accelera.simulator.scorers.gate import PLAIN, Gated, gated
from accelera.simulator.scorers.scoring import SCORERS, score
from accelera.simulator.scorers.table import predict_eviction_scores
from accelera.simulator.scorers.training import train_scorer

__all__ = ["PLAIN", "SCORERS", "Gated", "gated", "predict_eviction_scores", "score", "train_scorer"]
