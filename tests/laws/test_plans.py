"""Laws of plans, on paper: the room named is enough and not too much, and nothing beats the bound."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelera.errors import BudgetExceededError
from accelera.plan import Plan
from accelera.plan._internal import CostModel, MatmulProblem, Operand, PlanLimits, plan_matmul

COST = CostModel()
sizes = st.sampled_from([1, 2, 63, 100, 256, 257, 311, 511, 777, 1500])
types = st.sampled_from([("f4", "f4"), ("f2", "f4"), ("f8", "f8"), ("c16", "c16"), ("i1", "i1")])


@st.composite
def operands(draw: st.DrawFn, name: str, shape: tuple[int, ...], dtype: str, held: str) -> Operand:
    """Draw how an operand lies: in either order, in chunks, in memory, repeated along batch axes."""
    if name != "C":
        lead = tuple(draw(st.sampled_from([1, size])) for size in shape[:-2])
        shape = (*lead, *shape[-2:])
    rank = len(shape)
    order = draw(st.sampled_from([(), (*range(rank - 2), rank - 1, rank - 2)]))
    parts = draw(st.sampled_from([None, 1, 3, 7]))
    chunk = None if parts is None else tuple(max(1, -(-size // parts)) for size in shape)
    in_place = dtype == held and draw(st.integers(0, 4)) == 0
    return Operand(name, shape, np.dtype(dtype), np.dtype(held), "disk", order, chunk, in_place=in_place)


@st.composite
def problems(draw: st.DrawFn) -> MatmulProblem:
    batch = draw(st.sampled_from([(), (), (3,), (2, 4)]))
    m, k, n = (draw(sizes) if not batch else min(draw(sizes), 256) for _ in range(3))
    dtype, held = draw(types)
    a, b, c = (
        draw(operands(name, (*batch, *matrix), dtype, held))
        for name, matrix in (("A", (m, k)), ("B", (k, n)), ("C", (m, n)))
    )
    return MatmulProblem(a, b, c)


def tiles_of(problem: MatmulProblem, edge: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return square tiles of a caller, those at the borders smaller."""
    rows, cols = (
        [(start, min(start + edge, size)) for start in range(0, size, edge)]
        for size in (problem.m, problem.n)
    )
    return list(itertools.product(rows, cols))


@settings(max_examples=50)
@given(
    problem=problems(),
    edge=st.sampled_from([None, None, 100, 312]),
    window=st.sampled_from([1, 3]),
    extra_bytes=st.sampled_from([0, 1, 50_000, 1_000_000]),
)
def test_the_room_a_refusal_names_is_the_least_that_does(
    problem: MatmulProblem, edge: int | None, window: int, extra_bytes: int
) -> None:
    tiles = None if edge is None else tiles_of(problem, edge)

    def plan(capacity_bytes: int) -> Plan:
        return plan_matmul(problem, PlanLimits(capacity_bytes, window=window), COST, tiles=tiles)

    with pytest.raises(BudgetExceededError) as refusal:
        plan(-1)
    need_bytes = refusal.value.needed_bytes
    made = plan(need_bytes + extra_bytes)
    assert made.forecast.peak_pool_bytes <= need_bytes + extra_bytes
    assert made.moved_bytes >= made.lower_bound_bytes >= made.compulsory_bytes
    if need_bytes:
        with pytest.raises(BudgetExceededError) as again:
            plan(need_bytes - 1)
        assert again.value.needed_bytes == need_bytes


def test_a_short_last_tile_needs_more_right_blocks_at_once() -> None:
    """A tile of one strip moves on to the next right block at every step, a tile of two at every other."""
    f8 = np.dtype("f8")
    problem = MatmulProblem(
        Operand("A", (511, 511), f8, f8, "ram", in_place=True),
        Operand("B", (511, 1500), f8, f8, "disk", (1, 0)),
        Operand("C", (511, 1500), f8, f8, "ram", in_place=True),
    )
    with pytest.raises(BudgetExceededError) as refusal:
        plan_matmul(problem, PlanLimits(0), COST, tiles=tiles_of(problem, 312))
    need_bytes = refusal.value.needed_bytes
    made = plan_matmul(problem, PlanLimits(need_bytes), COST, tiles=tiles_of(problem, 312))
    assert made.forecast.peak_pool_bytes <= need_bytes
