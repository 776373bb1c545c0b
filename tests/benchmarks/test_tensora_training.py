"""Contenders of `tensora-training` train tiny networks as PyTorch does, as far as they are installed."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.bench_tensora_training import OPTIONAL, Worker, WorkerError, in_turns, main
from benchmarks.training_contenders import CONTENDERS, FIRST_STEPS
from benchmarks.training_models import MODELS

COMPILING = {"torch.compile"}
"""Contenders that take minutes to compile even tiny networks."""


@functools.cache
def losses_of_torch(model: str) -> list[float]:
    """Losses of the first steps in PyTorch, in a process that is begun once for each network."""
    worker = Worker(sys.executable, "torch", model, small=True)
    worker.end()
    return list(worker.ready["losses"])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", sorted(CONTENDERS.keys() - COMPILING - {"torch"}))
def test_losses_are_those_of_torch(name: str, model: str) -> None:
    losses = losses_of_torch(model)
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
