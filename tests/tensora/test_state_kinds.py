"""A saved state is compared with the object that loads it, value by value."""

from __future__ import annotations

import collections
from typing import Any

import pytest

from accelera import tensora
from accelera.errors import ArgumentError
from accelera.tensora import optim, random
from accelera.tensora.amp import GradScaler
from accelera.tensora.optim import lr_scheduler
from accelera.tensora.state_kinds import is_alike, matching_state


@pytest.mark.parametrize(
    ("value", "other", "expected"),
    [
        (1, 2.5, True),
        (True, 0, True),
        (None, "a", True),
        ("1", 1, False),
        (10**400, 1, False),
        ((0.9, 0.99), [0.8, 0.9], True),
        ((0.9,), (0.8, 0.9), False),
        ((0.9, "x"), (0.8, 0.9), False),
        ({3: 1}, {2: 1}, True),
        ({"a": 1}, {2: 1}, False),
        (collections.Counter({"a": 1}), collections.Counter({2: 1}), False),
    ],
)
def test_is_alike(value: Any, other: Any, expected: bool) -> None:
    assert is_alike(value, other) is expected


def test_matching_state_leaves_out_other_names() -> None:
    assert matching_state("load", {"a": 1, "optimizer": 2}, {"a": 3}) == {"a": 1}
    with pytest.raises(ArgumentError, match=r"\[load\] the state has no 'b'"):
        matching_state("load", {"a": 1}, {"a": 3, "b": 4})
    with pytest.raises(ArgumentError, match=r"\[load\] a list; give the mapping"):
        matching_state("load", [], {"a": 3})


def _schedulers() -> list[Any]:
    optimizer = optim.SGD([tensora.nn.Parameter(tensora.ones((2,)))], lr=0.1)
    steps = [lr_scheduler.StepLR(optimizer, 2) for _ in range(2)]
    return [
        steps[0],
        lr_scheduler.MultiStepLR(optimizer, [2, 3]),
        lr_scheduler.SequentialLR(optimizer, steps, [3]),
        lr_scheduler.ChainedScheduler(steps),
        lr_scheduler.ReduceLROnPlateau(optimizer),
    ]


def test_scheduler_takes_its_own_state_back() -> None:
    for scheduler in _schedulers():
        state = scheduler.state_dict()
        scheduler.load_state_dict(state)
        assert scheduler.state_dict() == state


def test_scheduler_refuses_values_of_other_kinds() -> None:
    for scheduler in _schedulers():
        state = scheduler.state_dict()
        with pytest.raises(ArgumentError, match=type(scheduler).__name__):
            scheduler.load_state_dict({**state, "_last_lr": "0.1"})
        assert scheduler.state_dict() == state


@pytest.mark.parametrize("state", [None, (1,), (1, 2, 3), ("1", 2), (-1, 0), (1 << 64, 0), (1.0, 2)])
def test_generator_refuses_other_states(state: Any) -> None:
    generator = random.Generator(3)
    with pytest.raises(ArgumentError, match=r"\[Generator.state\]"):
        generator.state = state
    assert generator.state == (3, 0)


def test_scaler_refuses_values_of_other_kinds() -> None:
    scaler = GradScaler()
    with pytest.raises(ArgumentError, match=r"scale is 'x', expected a value such as"):
        scaler.load_state_dict({**scaler.state_dict(), "scale": "x"})
