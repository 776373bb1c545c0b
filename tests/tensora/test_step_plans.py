"""Plans of training steps: carried out by an interpreter, they do what they say."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tensora.step_graphs import carry_out, random_step

SPILL = 1e-4


@pytest.fixture(autouse=True, params=["once"])
def fusion() -> None:
    """The planner knows no tensors: its tests run once."""


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 14))
def test_every_plan_can_be_carried_out_with_the_bytes_and_time_it_states(seed: int, depth: int) -> None:
    step = random_step(np.random.default_rng(seed), depth)
    graph = step.graph()
    choices = graph.choices(SPILL, 1)
    assert choices[0][0] == 0
    for seconds, live, top, fates in choices:
        actions, places, stated_top, stated_live, stated_seconds = graph.schedule(SPILL, 1, fates)
        found = carry_out(step, actions, places, SPILL)
        assert found.top == stated_top == top
        assert found.live == stated_live == live <= top
        assert found.seconds == pytest.approx(stated_seconds, rel=1e-9, abs=1e-12)
        assert seconds == pytest.approx(stated_seconds)
    for better, worse in itertools.pairwise(choices):
        assert worse[2] < better[2]
        assert worse[0] >= better[0]


def test_a_plan_is_the_same_each_time() -> None:
    made = [random_step(np.random.default_rng(3), 12).graph().choices(SPILL, 1) for _ in range(2)]
    assert made[0] == made[1]


def test_masks_are_packed_where_that_is_cheapest() -> None:
    fates = [
        choice[3]
        for seed in range(20)
        for choice in random_step(np.random.default_rng(seed), 12).graph().choices(SPILL, 1)
    ]
    assert any(4 in each for each in fates)
