"""Plans of training steps: carried out by an interpreter, they do what they say."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    plans = PlanFrontier(graph, SPILL, 1).staircase
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
    made = [PlanFrontier(random_step(np.random.default_rng(3), 12).graph(), SPILL, 1) for _ in range(2)]
    assert made[0].staircase == made[1].staircase


def test_masks_are_packed_where_that_is_cheapest() -> None:
    assert any(
        4 in plan.fates
        for seed in range(20)
        for plan in PlanFrontier(random_step(np.random.default_rng(seed), 12).graph(), SPILL, 1).staircase
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
    fates = PlanFrontier(graph, SPILL, 1).staircase[-1].fates
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
    _, seconds, live, top, fates = PlanFrontier(graph, SPILL, 1).staircase[-1]
    actions, *_ = graph.schedule(SPILL, 1, fates)
    assert live == top == 128_000
    assert seconds > 0
    assert {kind for _, _, kind, _ in actions} <= {RUN, DROP, OUT, IN}
