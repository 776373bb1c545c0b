"""Bit-equal misses and miss bytes with libCacheSim, which others wrote and use."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accelera.simulator import simulate_cache
from accelera.trace import Trace
from accelera.trace._internal import NEVER
from tests.oracles import libcachesim_oracle
from tests.oracles.traces import TRACES, capacities

EQUAL = ("arc", "belady", "clock", "fifo", "lfu", "lirs", "lru", "sieve")
ALIKE = ("gdsf", "s3fifo")
"""Theirs differ in rounding and ties, and from one version to the next."""

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libcachesim") is None,
    reason="libcachesim (GPL, a test-only dependency) has no wheel here; the golden numbers stand in",
)


def asked(trace: Trace, policies: tuple[str, ...], folder: Path) -> list[tuple[str, int, dict[str, int]]]:
    """Return policy, capacity and libCacheSim's figures for all policies and capacities."""
    next_use = np.where(trace.next_use == NEVER, -1, trace.next_use)
    runs = [(policy, capacity) for policy in policies for capacity in capacities(trace)]
    questions, answers = folder / "questions.json", folder / "answers.json"
    columns: dict[str, Any] = {
        "ids": trace.accessed.tolist(),
        "nbytes": trace.size_bytes[trace.accessed].tolist(),
        "next_use": next_use.tolist(),
        "runs": runs,
    }
    questions.write_text(json.dumps(columns))
    command = [sys.executable, libcachesim_oracle.__file__, str(questions), str(answers)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return [(*run, figures) for run, figures in zip(runs, json.loads(answers.read_text()), strict=True)]


@pytest.mark.parametrize("name", TRACES)
def test_misses_and_bytes_are_equal_at_eight_sizes(name: str, tmp_path: Path) -> None:
    trace = TRACES[name]()
    for policy, capacity, expected in asked(trace, EQUAL, tmp_path):
        ours = simulate_cache(trace, capacity_bytes=capacity, policy=policy)
        assert {"misses": ours.misses, "miss_bytes": ours.miss_bytes} == expected, (policy, capacity)


@pytest.mark.parametrize("name", TRACES)
def test_misses_are_alike_where_the_versions_differ(name: str, tmp_path: Path) -> None:
    trace = TRACES[name]()
    for policy, capacity, expected in asked(trace, ALIKE, tmp_path):
        ours = simulate_cache(trace, capacity_bytes=capacity, policy=policy)
        assert ours.misses == pytest.approx(expected["misses"], rel=0.03), (policy, capacity)


def test_the_traces_tell_the_policies_apart(tmp_path: Path) -> None:
    """Equality on a trace on which all agree would prove nothing."""
    found = {
        policy: tuple(
            simulate_cache(trace, capacity_bytes=capacity, policy=policy).misses
            for trace in (make() for make in TRACES.values())
            for capacity in capacities(trace)
        )
        for policy in EQUAL
    }
    assert len(set(found.values())) == len(EQUAL)
