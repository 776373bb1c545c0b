"""The planner's policy: the dead first, then far and cheap ones; and a plan followed moves little."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from accelera.policy import EvictionPolicy, Knowledge, create_policy
from accelera.policy._internal import KEPT, next_reads
from accelera.simulator import lower_bound, plan_residency, simulate
from accelera.simulator.time_steps import TimeSteps
from accelera.trace import Kind, Occupancy, Trace
from accelera.trace._internal import NEVER
from tests.simulator.traces import lively_traces


def anyone(buffer: int) -> bool:
    return True


def planner(next_read: list[int], score: list[float] | None = None) -> EvictionPolicy:
    """Return a planner that is told these next reads, padded to 1,000 accesses."""
    reads = np.array(next_read + [KEPT] * (1000 - len(next_read)), dtype=np.int32)
    given_score = None if score is None else np.array(score + [0.0] * (1000 - len(score)))
    return create_policy("planner", Knowledge(buffers=8, next_read=reads, score=given_score))


class Judge(EvictionPolicy):
    """The same rule by looking at everyone each time: slow, and in plain words."""

    def __init__(self, next_read: NDArray[np.int32], score: NDArray[np.float64] | None = None) -> None:
        self.next_read = next_read.tolist()
        self.score = [0.0] * len(self.next_read) if score is None else score.tolist()
        self.changed: dict[int, bool] = {}
        self.last: dict[int, int] = {}
        self.now = 0

    def insert(self, buffer: int, nbytes: int, time: int, write: bool) -> None:
        self.changed[buffer] = write
        self.last[buffer] = self.now = time

    def touch(self, buffer: int, time: int, write: bool) -> None:
        self.changed[buffer] |= write
        self.last[buffer] = self.now = time

    def remove(self, buffer: int) -> None:
        del self.changed[buffer], self.last[buffer]

    def dead(self, buffer: int) -> bool:
        return bool(self.next_read[self.last[buffer]] == NEVER)

    def moves(self, buffer: int) -> int:
        due = self.next_read[self.last[buffer]]
        return 0 if due == NEVER else (due != KEPT) + self.changed[buffer]

    def rank(self, buffer: int) -> tuple[float, ...]:
        due = min(self.next_read[self.last[buffer]], len(self.next_read))
        moves, oldest = self.moves(buffer), -self.last[buffer]
        if moves == 0:
            return (2, due, oldest)
        if self.score[self.last[buffer]] >= 0.5:
            return (1, due, oldest)
        return (0, (due - self.now) / moves**2, -moves, oldest)

    def victim(self, evictable: Callable[[int], bool]) -> int | None:
        return max(filter(evictable, self.last), key=self.rank, default=None)


def test_the_dead_go_first_and_need_no_saving() -> None:
    policy = planner([5, NEVER, 900])
    for buffer in range(3):
        policy.insert(buffer, 1, buffer, True)
    assert policy.victim(anyone) == 1
    assert [policy.dead(buffer) for buffer in range(3)] == [False, True, False]


def test_whoever_is_unchanged_and_never_read_again_goes_for_nothing_too() -> None:
    policy = planner([900, KEPT])
    policy.insert(0, 1, 0, False)
    policy.insert(1, 1, 1, False)
    assert policy.victim(anyone) == 1
    assert not policy.dead(1)


@pytest.mark.parametrize(("far", "victim"), [(390, 1), (410, 0)])
def test_a_changed_one_goes_when_it_is_four_times_as_far(far: int, victim: int) -> None:
    policy = planner([far, 100])
    policy.insert(0, 1, 0, True)
    policy.insert(1, 1, 1, False)
    assert policy.victim(anyone) == victim


def test_a_result_that_nobody_reads_costs_one_move_at_the_end() -> None:
    policy = planner([KEPT, 900])
    policy.insert(0, 1, 0, True)
    policy.insert(1, 1, 1, False)
    assert policy.victim(anyone) == 0


def test_a_changed_one_that_was_evicted_comes_back_clean() -> None:
    policy = planner([390, 100, 390])
    policy.insert(0, 1, 0, True)
    policy.insert(1, 1, 1, False)
    policy.evict(0)
    policy.insert(0, 1, 2, False)
    assert policy.victim(anyone) == 0


def test_what_a_plan_drops_goes_before_others() -> None:
    policy = planner([50, 900], score=[0.5, 0.4])
    policy.insert(0, 1, 0, True)
    policy.insert(1, 1, 1, False)
    assert policy.victim(anyone) == 0
    assert policy.victim(lambda buffer: buffer == 1) == 1


@given(
    trace=lively_traces(buffers=8, steps=25),
    capacity=st.integers(5, 25),
    planned=st.booleans(),
)
def test_equals_the_rule_in_plain_words(trace: Trace, capacity: int, planned: bool) -> None:
    score = plan_residency(trace, capacity).dropped if planned else None
    compiled = simulate(trace, capacity, "planner", score=score)
    plain = simulate(trace, capacity, Judge(next_reads(trace), score))
    assert (compiled.moved_bytes, compiled.evictions, compiled.hits) == (
        plain.moved_bytes,
        plain.evictions,
        plain.hits,
    )


def training(layers: int = 12, iterations: int = 3) -> Trace:
    """Forward and backward over weights and activations, then an optimizer's update of each weight."""
    events: list[tuple[str, Kind]] = []
    steps: list[int] = []

    def step(reads: list[str], writes: list[str], frees: list[str]) -> None:
        index = steps[-1] + 1 if steps else 0
        for names, kind in ((reads, Kind.READ), (writes, Kind.WRITE), (frees, Kind.FREE)):
            events.extend((name, kind) for name in names)
            steps.extend([index] * len(names))

    for turn in range(iterations):
        for n in range(layers):
            step([f"w{n}", f"a{turn}.{n}"], [f"a{turn}.{n + 1}"], [])
        for n in reversed(range(layers)):
            step([f"w{n}", f"a{turn}.{n}"], [f"g{turn}.{n}"], [f"a{turn}.{n}"])
        for n in range(layers):
            step([f"w{n}", f"m{n}", f"g{turn}.{n}"], [f"w{n}", f"m{n}"], [f"g{turn}.{n}"])
    ids = {name: index for index, name in enumerate(dict.fromkeys(name for name, _ in events))}
    sizes = {"w": 400, "m": 800, "g": 400, "a": 100}
    return Trace.from_arrays(
        [ids[name] for name, _ in events],
        [sizes[name[0]] for name, _ in events],
        kinds=[kind for _, kind in events],
        steps=steps,
    )


@pytest.mark.parametrize("share", [0.3, 0.5, 0.75])
def test_is_near_the_bound_where_lru_is_not(share: float) -> None:
    trace = training()
    capacity = max(TimeSteps.of(trace).floor_bytes, int(share * Occupancy(trace).peak_bytes))
    plan = plan_residency(trace, capacity)
    regret = {name: simulate(trace, capacity, name).regret for name in ("planner", "lru")}
    assert 1 <= regret["planner"] < 1.15 < regret["lru"]
    assert simulate(trace, capacity, "planner", score=plan.dropped).regret < 1.1
    assert plan.lower_bound_bytes == lower_bound(trace, capacity)
