"""Plans of training steps: carried out by an interpreter, they do what they say."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelera._native import StepGraph
from accelera.tensora.step_plans import PlanFrontier
from tests.tensora.step_graphs import (
    DROP,
    IN,
    IN_BEGIN,
    IN_END,
    OUT,
    OUT_BEGIN,
    OUT_END,
    RUN,
    Step,
    carry_out,
    random_step,
)

SPILL = 1e-4


@pytest.fixture(autouse=True, params=["once"])
def fusion() -> None:
    """The planner knows no tensors: its tests run once."""


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 14))
def test_every_plan_can_be_carried_out_with_the_bytes_and_time_it_states(seed: int, depth: int) -> None:
    step = random_step(np.random.default_rng(seed), depth)
    graph = step.graph()
    plans = PlanFrontier(lambda: graph, SPILL, 1).staircase
    assert plans[0].seconds == 0
    for _, seconds, live, top, fates in plans:
        for overlap in (False, True):
            actions, places, *stated = graph.schedule(SPILL, 1, fates, overlap)
            found = carry_out(step, actions, places, SPILL)
            assert found.top == stated[0] == top
            assert found.live == stated[1] == live <= top
            assert found.seconds == pytest.approx(stated[2], rel=1e-9, abs=1e-12)
            assert seconds == pytest.approx(stated[2])
    for better, worse in itertools.pairwise(plans):
        assert worse.top_bytes < better.top_bytes
        assert worse.seconds >= better.seconds


def test_a_plan_is_the_same_each_time() -> None:
    frontiers = [PlanFrontier(random_step(np.random.default_rng(3), 12).graph, SPILL, 1) for _ in range(2)]
    assert frontiers[0].staircase == frontiers[1].staircase


def test_masks_are_packed_where_that_is_cheapest() -> None:
    assert any(
        4 in plan.fates
        for seed in range(20)
        for plan in PlanFrontier(random_step(np.random.default_rng(seed), 12).graph, SPILL, 1).staircase
    )


def moments(actions: list[tuple[int, int, int, int]], kind: int) -> dict[int, int]:
    """Operations at which values have an action of this kind."""
    return {subject: operation for operation, _, of, subject in actions if of == kind}


def test_transfers_go_on_while_operations_run_where_there_is_room() -> None:
    """Only the operation in the middle needs all the bytes: values leave long before it, and return after."""
    step = Step()
    x = step.value(64)
    saved = []
    for _ in range(3):
        x = step.operation([x], [64_000], seconds=10.0, pure=False)[0]
        saved.append(x)
    for _ in range(30):
        x = step.operation([x], [640])[0]
    x = step.operation([x], [256_000], workspace=64_000)[0]
    x = step.operation([x], [640])[0]
    for _ in range(30):
        x = step.operation([x], [640])[0]
    for value in reversed(saved):
        x = step.operation([x, value], [640], seconds=10.0)[0]
    graph = step.graph()
    fates = PlanFrontier(lambda: graph, SPILL, 1).staircase[-1].fates
    actions, places, *_ = graph.schedule(SPILL, 1, fates)
    begun, ended = moments(actions, OUT_BEGIN), moments(actions, OUT_END)
    assert begun
    assert all(ended[value] > operation + 1 for value, operation in begun.items())
    begun, ended = moments(actions, IN_BEGIN), moments(actions, IN_END)
    assert begun
    assert all(ended[value] > operation for value, operation in begun.items())
    carry_out(step, actions, places, SPILL)


def test_transfers_wait_at_once_where_every_byte_is_taken() -> None:
    step = Step()
    x = step.value(64)
    x = first = step.operation([x], [64_000], pure=False)[0]
    for _ in range(6):
        x = step.operation([x], [64_000], pure=False)[0]
    step.operation([first, x], [])
    graph = step.graph()
    _, seconds, live, top, fates = PlanFrontier(lambda: graph, SPILL, 1).staircase[-1]
    actions, *_ = graph.schedule(SPILL, 1, fates)
    assert live == top == 128_000
    assert seconds > 0
    assert {kind for _, _, kind, _ in actions} <= {RUN, DROP, OUT, IN}


def rows_of(lists: list[list[int]]) -> tuple[Any, Any]:
    starts = np.concatenate([[0], np.cumsum([len(each) for each in lists])]).astype(np.int64)
    return starts, np.array([value for each in lists for value in each], np.int32)


@pytest.mark.parametrize("count", [2, 16, 17, 60, 400])
def test_planning_ends_for_any_number_of_equal_peaks(count: int) -> None:
    """In each part of the step a value waits while another is made; a move lowers one of these peaks."""
    nbytes, operations = 1 << 16, 3 * count
    reads: list[list[int]] = [[]] * operations
    births: list[list[int]] = [[]] * operations
    for part in range(count):
        births[3 * part], births[3 * part + 1] = [2 * part], [2 * part + 1]
        reads[3 * part + 2] = [2 * part]
    begins = np.arange(0, operations, 3)
    graph = StepGraph(
        seconds=np.full(operations, 1e-4),
        workspace=np.zeros(operations, np.int64),
        pure=np.zeros(operations, np.uint8),
        reads=rows_of(reads),
        writes=rows_of([[]] * operations),
        births=rows_of(births),
        nbytes=np.full(2 * count, nbytes, np.int64),
        born=np.stack([begins, begins + 1], 1).ravel().astype(np.int32),
        freed=np.stack([begins + 2, begins + 1], 1).ravel().astype(np.int32),
        fixed=np.zeros(2 * count, np.uint8),
        packed_bytes=np.zeros(2 * count, np.int64),
        pack_seconds=np.zeros(2 * count),
    )
    assert [peak for _, peak, _ in graph.choices(2e-9, 4096)] == [2 * nbytes, nbytes]
