"""Plans that evict by any policy, the trace they know beforehand, and what a run must remember of them."""

from __future__ import annotations

import gc
import itertools
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from accelera.errors import BudgetExceededError, UnknownNameError
from accelera.plan import Plan
from accelera.plan._internal import (
    BufferNumbers,
    CostModel,
    Eviction,
    GramProblem,
    MatmulProblem,
    Operand,
    PlanLimits,
    plan_gram,
    plan_matmul,
    trace_of,
)
from accelera.plan.cost import FREE_BYTES
from accelera.policy import POLICIES, EvictionPolicy, Knowledge, create_policy
from accelera.simulator import simulate
from accelera.simulator.advice_search import with_lookahead

F4 = np.dtype("f4")
NAMES = sorted(set(POLICIES) - {"learned"})


def square(size: int) -> MatmulProblem:
    return MatmulProblem(*(Operand(name, (size, size), F4, F4) for name in "ABC"))


def product(capacity_bytes: int, policy: str = "belady", window: int = 3, size: int = 1024) -> Plan:
    return plan_matmul(
        square(size), PlanLimits(capacity_bytes, window=window, eviction=Eviction(policy)), CostModel()
    )


@pytest.mark.parametrize("policy", NAMES)
def test_the_forecast_is_what_a_simulation_of_the_plans_trace_finds(policy: str) -> None:
    plan = product(3_000_000, policy)
    found = simulate(plan.trace(), plan.capacity_bytes, policy)
    said = plan.forecast
    assert said.evictions > 0
    assert (found.hits, found.misses, found.evictions) == (said.hits, said.misses, said.evictions)
    assert (found.fetched_bytes, found.saved_bytes) == (said.fetched_bytes, said.saved_bytes)
    assert found.peak_bytes == said.peak_pool_bytes
    assert found.compute_s == pytest.approx(said.compute_s)


def test_no_policy_reads_less_than_belady_where_blocks_are_alike() -> None:
    by_policy = {name: product(3_000_000, name) for name in NAMES}
    spec = by_policy["belady"].spec
    same = {name: plan.forecast.misses for name, plan in by_policy.items() if plan.spec == spec}
    assert len(same) > 5
    assert min(same.values()) == same["belady"]


@pytest.mark.parametrize("lookahead", [0, 1, 4])
def test_a_trace_retimed_is_that_of_a_plan_with_another_window(lookahead: int) -> None:
    """The same steps, with more or fewer of them under way."""
    usual = product(6_000_000)
    other = trace_of(usual.steps(), usual.operands, lookahead + 1)
    found = with_lookahead(usual.trace(), lookahead)
    np.testing.assert_array_equal(found.buffer, other.buffer)
    np.testing.assert_array_equal(found.kind, other.kind)
    np.testing.assert_array_equal(found.step, other.step)


def test_the_plan_says_its_policy() -> None:
    plan = product(3_000_000, "sieve")
    assert "policy       sieve: " in plan.explain()
    found = plan.to_dict()
    assert found["policy"] == "sieve"
    assert found["misses"] == plan.forecast.misses
    assert plan.trace().meta == {
        "operation": "matmul",
        "policy": "sieve",
        "capacity_bytes": plan.capacity_bytes,
        "window": 3,
    }
    assert plan.trace().names[0].startswith("A[0:")


def test_unknown_names_and_made_policies_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="belady"):
        Eviction("beladi")
    with pytest.raises(TypeError, match="serve only once"):
        Eviction(create_policy("lru"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="learned"):
        product(3_000_000, "learned")


def test_a_maker_gets_the_plans_own_future() -> None:
    heard: list[Knowledge] = []

    def maker(known: Knowledge) -> EvictionPolicy:
        heard.append(known)
        return create_policy("belady", known)

    plan = plan_matmul(square(1024), PlanLimits(3_000_000, eviction=Eviction(maker)), CostModel())
    assert plan.eviction.name == "maker"
    assert plan.forecast == product(3_000_000).forecast
    assert {known.capacity_bytes for known in heard} == {3_000_000}


def tiny_tiles(policy: str, capacity_bytes: int = 50_000_000) -> Plan:
    """Return a plan of thousands of steps, each with blocks of its own."""
    spans = [(start, start + 8) for start in range(0, 480, 8)]
    return plan_matmul(
        square(480),
        PlanLimits(capacity_bytes, eviction=Eviction(policy)),
        CostModel(),
        tiles=tuple(itertools.product(spans, spans)),
    )


def peak_bytes(action: Callable[[], None]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("policy", ["belady", "lru", "planner", "scored", "iteration_replay"])
def test_the_books_hold_what_a_long_run_remembers(policy: str) -> None:
    plan = tiny_tiles(policy)
    allowed = FREE_BYTES + plan.reserved["books"]

    def make() -> None:
        to_come = trace_of(
            plan.steps(), plan.operands, plan.window, accesses_only=plan.eviction.needs_only_order
        )
        plan.eviction.create(to_come, plan.capacity_bytes)

    def go() -> None:
        numbers = BufferNumbers()
        for step in plan.steps():
            for block in (*step.reads, step.write):
                numbers[block.id]

    assert max(peak_bytes(make), peak_bytes(go)) <= allowed
    assert plan.capacity_bytes == 50_000_000 - plan.reserved["books"]
    assert sum(plan.peak_bytes.values()) <= 50_000_000


def test_the_least_room_counts_the_books() -> None:
    with pytest.raises(BudgetExceededError) as refusal:
        tiny_tiles("belady", 0)
    need_bytes = refusal.value.needed_bytes
    plan = tiny_tiles("belady", need_bytes)
    assert plan.capacity_bytes + plan.reserved.get("books", 0) == need_bytes
    with pytest.raises(BudgetExceededError):
        tiny_tiles("belady", need_bytes - 1)


def test_short_plans_have_no_books_of_their_own() -> None:
    assert "books" not in product(3_000_000).reserved


def test_a_long_gram_matrix_has_books_too() -> None:
    problem = GramProblem(Operand("A", (60_000, 4096), F4, F4), Operand("G", (4096, 4096), F4, F4))
    plan = plan_gram(problem, PlanLimits(4_000_000), CostModel())
    assert plan.capacity_bytes + plan.reserved.get("books", 0) == 4_000_000
    assert plan.forecast.peak_pool_bytes <= plan.capacity_bytes
