"""Readers of programs and of models' answers: source text, trained scorers, rankings of language models."""

from __future__ import annotations

import functools

from accelera.simulator.compiling import predict_source
from accelera.simulator.scorers.learned import learned_scores
from accelera.simulator.scorers.llm import parsed_ranking
from accelera.trace import Trace
from tests.fuzz.harness import fuzz_target, text_of


@fuzz_target(examples=150)
def program_python(data: bytes) -> None:
    predict_source(text_of(data)).explain()


@fuzz_target(examples=100)
def program_other_language(data: bytes) -> None:
    predict_source(text_of(data), language="cpp").explain()


@fuzz_target(examples=100)
def language_model_ranking(data: bytes) -> None:
    assert sorted(parsed_ranking(text_of(data), 4)) == [0, 1, 2, 3]


@functools.cache
def _trace() -> Trace:
    return Trace.from_arrays([0, 1, 0, 2, 1, 0], 100)


@fuzz_target(examples=40)
def scorer_model(data: bytes) -> None:
    scores = learned_scores(_trace(), text_of(data))
    assert scores.shape == (6,)
