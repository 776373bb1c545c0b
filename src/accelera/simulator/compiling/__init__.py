"""What a fusing compiler would do to a program, on paper: to a trace of it, or to its source text."""

from accelera.simulator.compiling.figure import Figure
from accelera.simulator.compiling.prediction import CompilePrediction, predict_trace

__all__ = ["CompilePrediction", "Figure", "predict_trace"]
