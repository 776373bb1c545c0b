"""Every fuzz target keeps its rules on its corpus and on a fixed set of mutated inputs.

``make fuzz`` runs the same targets for any length of time, with different inputs in each run.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.harness import CORPUS, RESOURCES, all_targets, check, load, memory_limit
from tests.fuzz.mutations import mutated

TARGETS = all_targets()
FACTOR = float(os.environ.get("FUZZ_FACTOR", "1"))
"""Multiplies the number of mutated inputs."""


@pytest.fixture(scope="module", autouse=True)
def resources() -> Iterator[None]:
    """Close what targets have opened, and keep the service's log of failures out of the report."""
    logging.disable(logging.CRITICAL)
    yield
    RESOURCES.close()
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", TARGETS)
def test_corpus_keeps_rules(name: str) -> None:
    load(TARGETS[name])
    with memory_limit():
        for data in TARGETS[name].corpus:
            check(TARGETS[name], data)


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs_keep_rules(name: str) -> None:
    target = TARGETS[name]

    @settings(
        max_examples=max(1, int(target.examples * FACTOR)),
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(mutated(target.corpus))
    def keep_rules(data: bytes) -> None:
        check(target, data)

    load(target)
    with memory_limit():
        keep_rules()


def test_corpus_has_targets() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)


def test_corpus_is_small() -> None:
    sizes = [path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()]
    assert max(sizes) <= 8 << 10
    assert sum(sizes) <= 300 << 10


def test_memory_limit_is_restored() -> None:
    limits = Path("/proc/self/limits").read_text(encoding="ascii")
    with memory_limit(1 << 20), pytest.raises(MemoryError):
        bytearray(1 << 30)
    assert Path("/proc/self/limits").read_text(encoding="ascii") == limits
