"""Plans of training steps beside what no plan can pass: an integer program, and all plans of small steps."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelera.tensora.step_plans import LEAST_BYTES, SPILL_SECONDS_PER_BYTE, PlanFrontier
from benchmarks.bench_tensora_plans import not_monotone, recorded
from benchmarks.integer_bound import IntegerBound, Step
from benchmarks.step_networks import NETWORKS
from tests.tensora import step_graphs
from tests.tensora.step_graphs import PACK_SECONDS, random_step

SPILL = 1e-4


@pytest.fixture(autouse=True, params=["once"])
def fusion() -> None:
    """Steps are recorded with results computed at once: their tests run once."""


def bound_of(step: step_graphs.Step) -> IntegerBound:
    columns = {name: value for name, value in vars(step).items() if name != "packed"}
    return IntegerBound(
        Step(
            **columns,
            fixed=[0] * len(step.nbytes),
            packed_bytes=step.packed,
            pack_seconds=[PACK_SECONDS * each for each in step.packed],
        ),
        SPILL,
        1,
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 14))
def test_no_plan_of_a_random_step_costs_less_than_the_bound(seed: int, depth: int) -> None:
    step = random_step(np.random.default_rng(seed), depth)
    bound = bound_of(step)
    steps = PlanFrontier(step.graph, SPILL, 1).staircase
    for plan in steps[:: len(steps) // 6 + 1]:
        assert bound.seconds(plan.live_bytes) <= plan.seconds * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize("name", NETWORKS)
def test_no_plan_of_a_network_costs_less_than_the_bound_and_all_are_monotone(name: str) -> None:
    plans, _ = recorded(NETWORKS[name](small=True), inside=False)
    bound = IntegerBound(Step.logged(plans.columns), SPILL_SECONDS_PER_BYTE, LEAST_BYTES)
    for plan in plans.staircase[:: len(plans.staircase) // 6 + 1]:
        assert bound.seconds(plan.live_bytes) <= plan.seconds * (1 + 1e-6) + 1e-12
    assert not_monotone(plans, plans[0].top_bytes) == 0


def test_the_bound_is_free_above_the_peak_and_infinite_below_the_least() -> None:
    step = random_step(np.random.default_rng(1), 6)
    live = PlanFrontier(step.graph, SPILL, 1)[0].live_bytes
    assert bound_of(step).seconds(live) == 0
    assert bound_of(step).seconds(64) == math.inf


def test_a_value_is_paid_for_once_for_all_who_need_it_at_a_time() -> None:
    """Both results of an operation are away at the peak, and one run brings them back."""
    step = Step(
        seconds=[3.0, 1.0, 1.0, 1.0],
        workspace=[0, 0, 6400, 0],
        pure=[1, 1, 1, 1],
        reads=[[], [0, 1], [2], [0, 1]],
        writes=[[], [], [], []],
        births=[[0, 1], [2], [], []],
        nbytes=[640, 640, 64],
        born=[0, 0, 1],
        freed=[3, 3, 2],
        fixed=[0, 0, 0],
        packed_bytes=[0, 0, 0],
        pack_seconds=[0.0, 0.0, 0.0],
    )
    bound = IntegerBound(step, 1.0, 1)
    assert bound.seconds(6400 + 64 + 640) == pytest.approx(3.0)
    assert bound.seconds(6400 + 64) == pytest.approx(3.0)


def all_outcomes(step: step_graphs.Step, graph: Any) -> list[tuple[int, float]]:
    """Arena's top and added seconds of all fates that can be carried out."""
    found = []
    fates = [range(4 + (step.packed[value] > 0)) for value, _, _ in graph.gaps(1)]
    for some in itertools.product(*fates):
        if math.isfinite(graph.added_seconds(SPILL, 1, bytes(some))):
            _, _, top, _, seconds = graph.schedule(SPILL, 1, bytes(some))
            found.append((top, seconds))
    return sorted(found)


def small_steps() -> Any:
    """Random steps of at most 12 operations, of which all plans can be tried."""
    for seed in range(200):
        random = np.random.default_rng(seed)
        step = random_step(random, int(random.integers(2, 6)))
        if len(step.seconds) <= 12 and 1 <= len(step.graph().gaps(1)) <= 6:
            yield step


def test_plans_of_small_steps_take_at_most_1_3_times_the_least_time() -> None:
    budgets = 0
    for step in small_steps():
        graph = step.graph()
        plans = PlanFrontier(step.graph, SPILL, 1)
        least = math.inf
        for top, seconds in all_outcomes(step, graph):
            if seconds >= least:
                continue
            least, budgets = seconds, budgets + 1
            ours = plans.select(top)
            assert ours is not None
            assert ours.seconds <= 1.3 * seconds
    assert budgets > 200


DIGEST = (
    "from benchmarks.bench_tensora_plans import recorded; from benchmarks.step_networks import NETWORKS;"
    "plans, _ = recorded(NETWORKS['gpt2'](small=True), inside=False); print(plans.staircase)"
)


def test_plans_are_the_same_in_processes_of_other_hash_seeds() -> None:
    root = Path(__file__).parents[2]
    printed = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            capture_output=True,
            text=True,
            check=True,
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1
    assert len(printed.pop()) > 100
