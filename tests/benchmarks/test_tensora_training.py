"""Contenders of `tensora-training` train tiny networks as PyTorch does, as far as they are installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.bench_tensora_training import OPTIONAL, Worker, WorkerError, in_turns, main
from benchmarks.training_contenders import CONTENDERS, FIRST_STEPS
from benchmarks.training_models import MODELS

COMPILING = {"torch.compile"}
"""Contenders that take minutes to compile even tiny networks."""


@pytest.fixture(params=MODELS)
def expected(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[float]]]:
    """One of the networks, and the losses of its first steps in PyTorch."""
    worker = Worker(sys.executable, "torch", request.param, small=True)
    yield request.param, worker.ready["losses"]
    worker.end()


@pytest.mark.parametrize("name", sorted(CONTENDERS.keys() - COMPILING - {"torch"}))
def test_losses_are_those_of_torch(name: str, expected: tuple[str, list[float]]) -> None:
    model, losses = expected
    try:
        worker = Worker(sys.executable, name, model, small=True)
    except WorkerError as error:
        if name not in OPTIONAL:
            raise
        pytest.skip(f"{name} cannot train here: {error}")
    try:
        assert len(losses) == FIRST_STEPS
        assert losses[-1] < losses[0]
        np.testing.assert_allclose(worker.ready["losses"], losses, rtol=1e-4)
        (turn,) = in_turns({name: worker}, rounds=1)[name]
    finally:
        worker.end()
    assert len(turn.seconds) >= 3
    assert min(turn.seconds) > 0
    assert 0 <= turn.others <= 1


def test_a_contender_that_is_not_installed_is_absent(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "raise ImportError(\'no JAX\')"\n')
    bare.chmod(0o755)
    figures = main(["--small", "--models", "mlp", "--contenders", "torch", "jax", "--peers", str(bare)])
    assert list(figures["mlp"]["contenders"]) == ["torch"]
    assert figures["mlp"]["absent"] == {"jax": "ImportError: no JAX"}
