"""Compile prediction: what a fusing compiler would do to a trace of a program, or to its source text."""

from accelera.simulator.compiling.figure import Figure
from accelera.simulator.compiling.predict import predict_trace
from accelera.simulator.compiling.prediction import CompilePrediction
from accelera.simulator.compiling.source import SourcePrediction, predict_source

__all__ = ["CompilePrediction", "Figure", "SourcePrediction", "predict_source", "predict_trace"]
