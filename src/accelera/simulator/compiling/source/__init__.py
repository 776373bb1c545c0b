"""What can be said of a program from its text alone: nothing is run, nothing imported."""

from accelera.simulator.compiling.source.levels import LevelPrediction
from accelera.simulator.compiling.source.reading import FunctionFacts
from accelera.simulator.compiling.source.source import SourcePrediction, predict_source

__all__ = ["FunctionFacts", "LevelPrediction", "SourcePrediction", "predict_source"]
