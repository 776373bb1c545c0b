"""Sweeps on somebody's executor: the figures are those of the sweep on threads of this process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from accelera.execution import StrategyManager
from accelera.simulator import Sweep, generate_synthetic_trace, sweep
from accelera.simulator.sweeps import PIECES
from accelera.trace import Trace


@pytest.fixture(scope="module")
def trace() -> Trace:
    return generate_synthetic_trace("Transformer", 3, 4, 32, 0.2, mode="training", hidden_size=64, steps=2)


@pytest.fixture(scope="module")
def here(trace: Trace) -> Sweep:
    return sweep(trace, ["lru", "planner", "mru"], 12, progress=False)


class Counting(Executor):
    """Runs tasks at once, and counts them; fails from the ``broken_at``-th on."""

    def __init__(self, broken_at: int = 10**9) -> None:
        self.futures: list[Future[Any]] = []
        self._broken_at = broken_at

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.futures.append(future)
        if len(self.futures) == self._broken_at:
            future.set_exception(ConnectionError("the machine is gone"))
        elif len(self.futures) < self._broken_at:
            future.set_result(fn(*args, **kwargs))
        return future


def test_processes_find_the_same(trace: Trace, here: Sweep) -> None:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        there = sweep(trace, ["lru", "planner", "mru"], 12, executor=pool, progress=False)
    assert there.to_dict() == here.to_dict()
    assert there.trace is trace
    assert all(report.trace is trace for report in there.reports["lru"])


@pytest.mark.parametrize("make", [lambda: ThreadPoolExecutor(2), lambda: StrategyManager().as_executor(2)])
def test_threads_of_others_find_the_same(trace: Trace, here: Sweep, make: Callable[[], Executor]) -> None:
    with make() as pool:
        there = sweep(trace, ["lru", "planner", "mru"], 12, executor=pool, progress=False)
    assert there.to_dict() == here.to_dict()


def test_an_executor_has_few_pieces_and_one_with_few_cells_fewer(trace: Trace) -> None:
    many, few = Counting(), Counting()
    sweep(trace, ["lru", "mru", "fifo"], 30, executor=many, progress=False)
    sweep(trace, "lru", ["50%", "80%"], executor=few, progress=False)
    assert (len(many.futures), len(few.futures)) == (PIECES, 2)


def test_scores_and_a_sequential_machine_go_along(trace: Trace) -> None:
    scores = {"scored": np.arange(trace.access_count, dtype=float)}
    found = [
        sweep(trace, ["scored", "lru"], 4, "copilot", scores=scores, executor=pool, progress=False)
        for pool in (None, Counting())
    ]
    assert found[0].to_dict(bound=False) == found[1].to_dict(bound=False)
    assert found[0].trace is found[1].trace


def test_what_an_executor_raises_is_raised_and_the_rest_is_cancelled(trace: Trace) -> None:
    broken = Counting(broken_at=2)
    with pytest.raises(ConnectionError, match="the machine is gone"):
        sweep(trace, "lru", 5, executor=broken, progress=False)
    assert [future.cancelled() for future in broken.futures] == [False, False, True, True, True]


def test_threads_and_an_executor_are_one_too_many(trace: Trace) -> None:
    with pytest.raises(ValueError, match=r"threads=2 and an executor.*give one"):
        sweep(trace, "lru", 2, threads=2, executor=Counting())
