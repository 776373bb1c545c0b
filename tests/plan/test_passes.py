"""Plans in passes: nothing is left out or done twice, and the figures of a few passes are those of all."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelera.errors import BudgetExceededError
from accelera.plan import Plan
from accelera.plan._internal import (
    CostModel,
    ElementwiseProblem,
    Eviction,
    GramProblem,
    MatmulProblem,
    Operand,
    Partition,
    Pattern,
    PlanLimits,
    PlanStep,
    Repeat,
    forecast,
    plan_elementwise,
    plan_gram,
    plan_matmul,
)
from accelera.plan.partition import Cuts

COST = CostModel()
F4 = np.dtype("f4")
POLICIES = ("belady", "belady_size", "fifo", "largest", "lru", "mru", "planner")


def operands(**shapes: tuple[int, ...]) -> list[Operand]:
    return [Operand(name, shape, F4, F4) for name, shape in shapes.items()]


def one_by_one(pattern: Pattern) -> Pattern:
    """Return the same passes, each walked for itself."""
    return Pattern(tuple(Repeat(1, lambda _, each=each: each) for each in pattern.passes()))  # type: ignore[misc]


def assert_exact(plan: Plan) -> None:
    """Raise unless the figures are those of walking every pass."""
    name = plan.operation
    said, window = plan.forecast, plan.window
    walked = forecast(
        one_by_one(plan.pattern),
        plan.operands,
        plan.capacity_bytes,
        window,
        COST,
        plan.eviction,
        operation=name,
    )
    for figure, value in vars(walked).items():
        if isinstance(value, float):
            assert getattr(said, figure) == pytest.approx(value, rel=1e-6, abs=1e-9), figure
        else:
            assert getattr(said, figure) == value, figure


def assert_whole(plan: Plan, elements: dict[Any, float]) -> None:
    """Raise unless each block of the result is begun, gone through and ended once, in that order."""
    open_blocks: dict[str, float] = {}
    done: Counter[str] = Counter()
    for step in plan.steps():
        name = step.write.name(plan.operands)
        assert (name in open_blocks) != step.first, name
        open_blocks[name] = open_blocks.get(name, 0.0) + step.flops
        if step.last:
            done[name] += 1
            elements[name] = open_blocks.pop(name)
    assert not open_blocks
    assert set(done.values()) <= {1}


def lengths(plan: Plan) -> list[int]:
    return [sum(1 for _ in each.steps()) for each in plan.pattern.passes()]


def least(make: Any) -> int:
    with pytest.raises(BudgetExceededError) as refusal:
        make(capacity_bytes=-1)
    return refusal.value.needed_bytes


def whole_and_in_passes(
    make: Any, capacity: int, pass_steps: int, *, same_bits: bool = False
) -> tuple[Plan, Plan]:
    """Return two plans, the second in passes of so many steps; both do the same work for each block."""
    whole = make(capacity)
    plan = make(capacity, spec={**whole.spec, "pass_steps": pass_steps})
    assert_exact(plan)
    found: list[dict[Any, float]] = [{}, {}]
    for each, flops in zip((whole, plan), found, strict=True):
        assert_whole(each, flops)
    near = found[1] if same_bits else pytest.approx(found[1])
    assert found[0] == near
    return whole, plan


sizes = st.sampled_from([1, 63, 256, 300, 511, 1100, 2300])


@settings(max_examples=60)
@given(
    shape=st.tuples(sizes, sizes, sizes),
    batch=st.sampled_from([(), (), (3,), (2, 5)]),
    broadcast=st.booleans(),
    extra_bytes=st.sampled_from([0, 50_000, 1_000_000]),
    pass_steps=st.sampled_from([1, 2, 5, 17, 60]),
    policy=st.sampled_from(POLICIES),
    tiled=st.booleans(),
)
def test_products(
    shape: tuple[int, int, int],
    batch: tuple[int, ...],
    broadcast: bool,
    extra_bytes: int,
    pass_steps: int,
    policy: str,
    tiled: bool,
) -> None:
    m, k, n = shape if not batch else (min(each, 300) for each in shape)
    left = tuple(1 for _ in batch) if broadcast else batch
    problem = MatmulProblem(*operands(A=(*left, m, k), B=(*batch, k, n), C=(*batch, m, n)))
    tiles = None
    if tiled:
        tiles = [(r, c) for r in Cuts(m, math.ceil(m / 200)) for c in Cuts(n, math.ceil(n / 150))]

    def make(capacity_bytes: int, **options: Any) -> Plan:
        return plan_matmul(
            problem, PlanLimits(capacity_bytes, eviction=Eviction(policy)), COST, tiles=tiles, **options
        )

    whole, plan = whole_and_in_passes(make, least(make) + extra_bytes, pass_steps)
    strips = max(1, max((math.ceil(m / whole.spec["strip"]), math.ceil(n / whole.spec["strip"]))))
    assert max(lengths(plan), default=0) <= max(pass_steps, strips)
    assert plan.moved_bytes >= plan.compulsory_bytes


@settings(max_examples=40)
@given(
    depth=st.sampled_from([1, 63, 300, 1100, 5000]),
    size=st.sampled_from([1, 63, 130, 300, 700, 1500]),
    batch=st.sampled_from([(), (), (3,), (2, 2)]),
    pass_steps=st.sampled_from([1, 3, 10, 40]),
    policy=st.sampled_from(POLICIES),
)
def test_gram_matrices(depth: int, size: int, batch: tuple[int, ...], pass_steps: int, policy: str) -> None:
    problem = GramProblem(*operands(A=(*batch, depth, size), G=(*batch, size, size)))

    def make(capacity_bytes: int, **options: Any) -> Plan:
        return plan_gram(problem, PlanLimits(capacity_bytes, eviction=Eviction(policy)), COST, **options)

    whole_and_in_passes(make, least(make) + 20_000, pass_steps)


@settings(max_examples=40)
@given(
    shape=st.sampled_from([(9000,), (130, 900), (7, 40, 500), (64, 64, 64)]),
    reduced=st.sampled_from([(), (0,), (-1,), "all"]),
    broadcast=st.booleans(),
    pass_steps=st.sampled_from([1, 2, 3, 7, 30]),
    policy=st.sampled_from(POLICIES),
)
def test_sweeps(shape: tuple[int, ...], reduced: Any, broadcast: bool, pass_steps: int, policy: str) -> None:
    axes = tuple(range(len(shape))) if reduced == "all" else tuple(axis % len(shape) for axis in reduced)
    row = tuple(1 if axis == 0 and broadcast else size for axis, size in enumerate(shape))
    out = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    a, b, c = operands(A=shape, B=row, out=out)
    problem = ElementwiseProblem("evaluate", shape, (a, b), c, axes, 16 if axes else 0)

    def make(capacity_bytes: int, **options: Any) -> Plan:
        return plan_elementwise(
            problem, PlanLimits(capacity_bytes, eviction=Eviction(policy)), COST, **options
        )

    whole, plan = whole_and_in_passes(make, least(make), pass_steps, same_bits=True)
    assert max(lengths(plan)) <= pass_steps
    assert list(map(_outline, whole.steps())) == list(map(_outline, plan.steps()))


def _outline(step: PlanStep) -> Any:
    return step.write.region, step.task, step.first, step.last


@given(
    size=st.integers(0, 4000),
    parts=st.integers(1, 200),
    align=st.sampled_from([1, 7, 64]),
    start=st.sampled_from([0, 64]),
    group=st.integers(1, 9),
    ends=st.booleans(),
)
def test_cuts_say_where_they_look_alike(
    size: int, parts: int, align: int, start: int, group: int, ends: bool
) -> None:
    cuts = Cuts(size, parts, align, start)
    spans = list(cuts)
    assert spans == [cuts[place] for place in range(len(cuts))] == cuts[:]
    assert (spans[0][0], spans[-1][1]) == (start, start + size)
    assert len(spans) <= parts
    assert all(a[1] == b[0] for a, b in pairwise(spans))
    sizes = [stop - first for first, stop in spans]
    assert (max(sizes), min(sizes)) == (cuts.longest, cuts.shortest)
    groups = cuts.groups(group, ends=ends)
    assert [first for first, _ in groups[1:]] == [stop for _, stop in groups[:-1]]
    assert (groups[0][0], groups[-1][1]) == (0, math.ceil(len(spans) / group))
    for first, stop in groups:
        assert len({tuple(sizes[each * group : (each + 1) * group]) for each in range(first, stop)}) == 1
    if ends and groups[-1][1] > 1:
        assert groups[0][1] == 1
        assert groups[-1][0] == groups[-1][1] - 1


def test_partitions_of_two_kinds_of_bands_run_in_passes_too() -> None:
    problem = MatmulProblem(*operands(A=(2100, 300), B=(300, 2100), C=(2100, 2100)))
    spec = {
        "bands": [[1, 2], [1, 3]], "by_rows": False, "shares": [0.42, 0.58], "strip": 256, "slab": 300,
        "sub": 100, "window": 3, "swap": False, "group": 1, "tiles": None, "pass_steps": 20,
    }  # fmt: skip
    plan = plan_matmul(problem, PlanLimits(20 << 20), COST, spec=spec)
    assert_exact(plan)
    assert_whole(plan, {})
    assert plan.forecast.passes > 4
    tiles = list(Partition(((1, 2), (1, 3)), False, (0.42, 0.58)).tiles(2100, 2100, 64, 64))
    assert len(tiles) == 5


HUGE = {
    "tall": (10**8, 1000, 1000),
    "taller": (10**9, 1000, 1000),
    "wide": (1000, 1000, 10**8),
    "deep": (1000, 10**9, 1000),
    "dot": (1, 10**12, 1),
    "outer": (10**7, 1, 10**7),
    "square": (10**6, 10**6, 10**6),
}


@pytest.mark.parametrize("name", HUGE)
def test_the_least_room_does_not_grow_with_the_matrices(name: str) -> None:
    m, k, n = HUGE[name]
    problem = MatmulProblem(*operands(A=(m, k), B=(k, n), C=(m, n)))
    need = least(lambda capacity_bytes: plan_matmul(problem, PlanLimits(capacity_bytes), COST))
    assert need <= 6 << 20
    plan = plan_matmul(problem, PlanLimits(need), COST)
    assert plan.forecast.steps > 1_000_000
    assert plan.reserved.get("books", 0) <= need // 16
    assert max(sum(1 for _ in each.steps()) for each in islice(plan.pattern.passes(), 3)) < 2000
    assert plan.forecast.bytes_written == 4 * m * n
    with pytest.raises(BudgetExceededError):
        plan_matmul(problem, PlanLimits(need - 1), COST)


@pytest.mark.parametrize("shape", [(10**10, 1000), (10**5, 10**5), (50, 10**9)])
def test_nor_that_of_a_gram_matrix(shape: tuple[int, int]) -> None:
    problem = GramProblem(*operands(A=shape, G=(shape[1], shape[1])))
    need = least(lambda capacity_bytes: plan_gram(problem, PlanLimits(capacity_bytes), COST))
    assert need <= 6 << 20
    plan = plan_gram(problem, PlanLimits(need + (1 << 20)), COST)
    assert plan.forecast.bytes_written == 4 * shape[1] ** 2
    assert plan.reserved.get("books", 0) <= (need + (1 << 20)) // 16


@pytest.mark.parametrize("axes", [(), (0,), (1,), (0, 1)])
def test_nor_that_of_a_sweep(axes: tuple[int, ...]) -> None:
    shape = (10**9, 1000)
    out = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    a, c = operands(A=shape, out=out)
    problem = ElementwiseProblem("evaluate", shape, (a,), c, axes, 16 if axes else 0)
    need = least(lambda capacity_bytes: plan_elementwise(problem, PlanLimits(capacity_bytes), COST))
    assert need <= 2 << 20
    plan = plan_elementwise(problem, PlanLimits(need), COST)
    assert plan.forecast.steps > 1_000_000
    assert plan.forecast.bytes_read == {"A": 4 * 10**12}


def test_policies_that_need_the_whole_run_get_it_in_one_pass() -> None:
    problem = MatmulProblem(*operands(A=(3000, 400), B=(400, 2000), C=(3000, 2000)))
    for policy in ("arc", "scored", "iteration_replay", "random"):
        plan = plan_matmul(problem, PlanLimits(8 << 20, eviction=Eviction(policy)), COST)
        assert plan.spec["pass_steps"] == 0
        assert plan.forecast.passes == 1
    maker = Eviction(lambda known: None)  # type: ignore[arg-type, return-value]
    assert not maker.by_pass
    assert not replace(Eviction("planner"), score=lambda trace: np.zeros(trace.access_count)).by_pass
