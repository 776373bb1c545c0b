"""One grammar for sizes: every function that limits memory reads the same values in the same way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import accelera
import accelera.tensora as ts
from accelera.devices import SimulatedDevice
from accelera.errors import ArgumentError, BudgetExceededError, UnknownNameError
from accelera.execution import SimulatedExecutor, TorchDeviceExecutor
from accelera.units import parse_limit

TRACE = accelera.generate_synthetic_trace("MLP", num_layers=2, batch_size=2, mode="training")
MODEL, INPUT = torch.nn.Linear(8, 8), torch.ones(1, 8)
ONES = np.ones((4, 4), np.float32)

WITH_TOTAL: dict[str, Callable[[Any], Any]] = {
    "MatrixEngine": lambda limit: accelera.MatrixEngine("cpu", budget=limit),
    "engine.budget": lambda limit: setattr(accelera.MatrixEngine("cpu"), "budget", limit),
    "matmul": lambda limit: accelera.MatrixEngine("cpu").matmul(ONES, ONES, budget=limit),
    "plan": lambda limit: accelera.MatrixEngine("cpu").plan(ONES, ONES, budget=limit),
    "gram": lambda limit: accelera.MatrixEngine("cpu").gram(ONES, budget=limit),
    "evaluate": lambda limit: accelera.MatrixEngine("cpu").evaluate(accelera.lazy(ONES) + 1, budget=limit),
    "offload": lambda limit: accelera.offload(torch.nn.Linear(8, 8), limit, inputs=INPUT),
    "plan_offload": lambda limit: accelera.plan_offload(MODEL, INPUT, limit, train=False),
    "estimate": lambda limit: accelera.estimate(MODEL, INPUT, dtypes=["float32"], budget=limit),
    "simulate": lambda limit: accelera.simulate(TRACE, limit),
    "simulate_cache": lambda limit: accelera.simulate_cache(TRACE, capacity_bytes=limit),
    "sweep": lambda limit: accelera.sweep(TRACE, ["lru"], [limit], progress=False),
    "advise": lambda limit: accelera.advise(TRACE, budget=limit),
}
"""Functions that know a total, of which a fraction is taken."""
WITHOUT_TOTAL: dict[str, Callable[[Any], Any]] = {
    "ts.budget": lambda limit: ts.budget(limit),
    "ts.set_memory_limit": lambda limit: ts.set_memory_limit(limit),
    "SimulatedDevice": lambda limit: SimulatedDevice(limit),
    "SimulatedExecutor": lambda limit: SimulatedExecutor(limit),
    "TorchDeviceExecutor": lambda limit: TorchDeviceExecutor("cpu", budget=limit),
    "StrategyManager": lambda limit: accelera.StrategyManager(budget=limit),
}
FUNCTIONS = WITH_TOTAL | WITHOUT_TOTAL
SIZES = ["8GiB", "8 GB", "8192MiB", "8e9", str(8 << 30), 8 << 30, np.int64(8 << 30), float(8 << 30)]
FRACTIONS = ["50%", "0.5", 0.5, 1.0, np.float64(0.9), "100%"]
REFUSED = [
    0,
    0.0,
    "0",
    "0%",
    -1,
    "-1GiB",
    -0.5,
    math.nan,
    math.inf,
    1.5,
    "1.5",
    "150%",
    "12 parsecs",
    "",
    "GiB",
    2**70,
    True,
    [8 << 30],
    {"a": 1},
    b"8GiB",
]


@pytest.fixture(autouse=True)
def no_limit_stays() -> Iterator[None]:
    yield
    ts.set_memory_limit(None)


def name(value: Any) -> str:
    return f"{type(value).__name__}-{value!r}"


@pytest.mark.parametrize("size", SIZES, ids=name)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_sizes_are_accepted(function: str, size: Any) -> None:
    FUNCTIONS[function](size)


@pytest.mark.parametrize("fraction", FRACTIONS, ids=name)
@pytest.mark.parametrize("function", WITH_TOTAL)
def test_fractions_are_accepted_where_a_total_is_known(function: str, fraction: Any) -> None:
    try:
        WITH_TOTAL[function](fraction)
    except BudgetExceededError:
        assert function in ("simulate", "advise")


@pytest.mark.parametrize("fraction", FRACTIONS, ids=name)
@pytest.mark.parametrize("function", WITHOUT_TOTAL)
def test_fractions_are_refused_where_no_total_is_known(function: str, fraction: Any) -> None:
    with pytest.raises(ArgumentError, match=r"\[.*is a fraction, and its total is not known here"):
        WITHOUT_TOTAL[function](fraction)


@pytest.mark.parametrize("value", REFUSED, ids=name)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_other_values_are_refused_by_the_call_that_receives_them(function: str, value: Any) -> None:
    if isinstance(value, dict) and function in ("offload", "plan_offload"):
        return  # budgets by device
    if type(value) is int and value == 0 and function in ("simulate", "simulate_cache", "sweep", "advise"):
        return  # a memory that holds nothing can be simulated
    # A word may be the name of a hierarchy.
    expected = (ArgumentError, UnknownNameError) if function == "simulate" else ArgumentError
    with pytest.raises(expected, match=r"^\[.*([MG]iB|known:)"):
        FUNCTIONS[function](value)


def test_fraction_is_of_the_total() -> None:
    assert parse_limit("budget", "25%", lambda: 1000) == parse_limit("budget", 0.25, lambda: 1000) == 250
    assert accelera.simulate(TRACE, 0.75).hierarchy.tiers[0].capacity_bytes == (
        accelera.simulate(TRACE, "75%").hierarchy.tiers[0].capacity_bytes
    )


def test_none_is_no_limit_where_it_is_allowed() -> None:
    ts.set_memory_limit(None)
    assert accelera.MatrixEngine("cpu", budget=None).budget is None
    accelera.StrategyManager(budget=None)
