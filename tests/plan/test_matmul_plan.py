"""Plans of products: what they hold, move and compute, and when they are refused."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelera.errors import BudgetExceededError
from accelera.plan import Plan
from accelera.plan._internal import MatmulProblem, Operand, PlanLimits, plan_matmul
from tests.plan.problems import COST, plan, product

MIB = 1 << 20


def computed(planned: Plan) -> np.ndarray:
    """Return how often each (m, n, k) is multiplied, as a dense count."""
    a, _, c = planned.operands
    count = np.zeros((*c.shape, a.shape[-1]), int)
    for step in planned.steps():
        block_a, (k0, k1) = step.reads[0], step.task[0]
        depth = slice(block_a.region[-1].start + k0, block_a.region[-1].start + k1)
        block_b, (b0, b1) = step.reads[1], step.task[1]
        assert depth == slice(block_b.region[-2].start + b0, block_b.region[-2].start + b1)
        region = (*step.write.region, depth)
        count[region] += 1
    return count


@settings(max_examples=40, deadline=None)
@given(
    m=st.integers(1, 40), k=st.integers(1, 40), n=st.integers(1, 40),
    room=st.integers(0, 30), batch=st.sampled_from([(), (3,), (2, 2)]),
)  # fmt: skip
def test_every_product_is_computed_once(m: int, k: int, n: int, room: int, batch: tuple[int, ...]) -> None:
    problem = product(m, k, n, batch=batch)
    with pytest.raises(BudgetExceededError) as refusal:
        plan(problem, 1)
    planned = plan(problem, refusal.value.needed_bytes + room * 200)
    assert (computed(planned) == 1).all()


def test_tiles_cut_by_the_caller_are_kept() -> None:
    tiles = [((0, 10), (0, 50)), ((10, 30), (0, 50))]
    planned = plan(product(30, 20, 50), 1 * MIB, tiles=tiles)
    assert (computed(planned) == 1).all()
    rows = {(step.write.region[0].start, step.write.region[0].stop) for step in planned.steps()}
    assert rows == {(0, 10), (10, 30)}


@pytest.mark.parametrize("capacity", [40 * MIB, 100 * MIB, 400 * MIB])
@pytest.mark.parametrize(("m", "k", "n"), [(4096, 4096, 4096), (20_000, 512, 300), (300, 60_000, 300)])
def test_the_pool_stays_inside_its_capacity(m: int, k: int, n: int, capacity: int) -> None:
    planned = plan(product(m, k, n), capacity)
    assert planned.forecast.peak_pool_bytes <= capacity


def test_what_fits_moves_only_what_it_must() -> None:
    planned = plan(product(1000, 800, 600), 64 * MIB)
    assert planned.moved_bytes == planned.compulsory_bytes == planned.lower_bound_bytes


def test_shallow_products_keep_a_panel() -> None:
    """k < 2 sqrt(S): a panel over the full depth moves less than C tiles would."""
    planned = plan(product(8192, 512, 8192), 60 * MIB)
    assert "panel-stationary" in planned.schedule
    assert planned.bound_ratio < 1.05


def test_refusal_names_the_smallest_budget_that_does() -> None:
    problem = product(3000, 3000, 3000)
    with pytest.raises(BudgetExceededError) as refusal:
        plan(problem, 1000, budget_bytes=5000, reserved={"runtime": 4000})
    needed = refusal.value.needed_bytes
    assert str(needed) in str(refusal.value)
    assert "5000 bytes" in str(refusal.value)
    assert plan(problem, needed - 4000, reserved={"runtime": 4000}).forecast.steps > 0
    with pytest.raises(BudgetExceededError):
        plan(problem, needed - 4001, reserved={"runtime": 4000})


def test_the_same_spec_makes_the_same_steps() -> None:
    problem = product(700, 500, 900)
    first = plan(problem, 1 * MIB)
    again = plan(problem, 1 * MIB, spec=first.spec)
    assert list(first.steps()) == list(again.steps())
    assert first.forecast == again.forecast


def test_operands_used_in_place_move_nothing() -> None:
    f32 = np.dtype(np.float32)
    a = Operand("A", (2000, 2000), f32, f32, "ram", in_place=True)
    b = Operand("B", (2000, 2000), f32, f32, "disk")
    c = Operand("C", (2000, 2000), f32, f32, "ram", in_place=True)
    planned = plan(MatmulProblem(a, b, c), 4 * MIB)
    assert planned.forecast.bytes_read["A"] == planned.forecast.bytes_written == 0
    assert planned.forecast.bytes_read["B"] >= b.nbytes


def test_without_prefetch_one_step_is_under_way() -> None:
    planned = plan_matmul(product(2000, 2000, 2000), PlanLimits(8 * MIB, window=1), COST)
    assert planned.window == 1


def test_result_blocks_begin_and_end_once() -> None:
    planned = plan(product(2000, 2000, 2000), 8 * MIB)
    begun, ended = Counter(), Counter()
    for step in planned.steps():
        begun[step.write.id] += step.first
        ended[step.write.id] += step.last
    assert set(begun.values()) == set(ended.values()) == {1}


def test_explain_names_every_figure() -> None:
    text = plan(
        product(4096, 4096, 4096), 40 * MIB, budget_bytes=50 * MIB, reserved={"runtime": 10 * MIB}
    ).explain()
    for word in (
        "schedule",
        "peak",
        "budget 50.0 MiB",
        "bytes moved",
        "lower bound",
        "compulsory",
        "estimated",
        "not chosen",
    ):
        assert word in text


@pytest.mark.parametrize(("m", "k", "n"), [(600, 400, 500), (4096, 4096, 4096), (100, 9000, 100)])
@pytest.mark.parametrize("room_mib", [2, 8, 40])
def test_what_was_not_chosen_reads_otherwise_than_what_was(m: int, k: int, n: int, room_mib: int) -> None:
    planned = plan(product(m, k, n), room_mib * MIB)
    grid = planned.shape_note.removeprefix("C in ").partition(", ")[0]
    assert f"{planned.schedule} with {grid}" not in [each.schedule for each in planned.alternatives]


@pytest.mark.parametrize(
    ("n", "over"), [(16384, 2.6), (32768, 2.3), (32768, 2.9), (32768, 5.0), (65536, 4.0)]
)
def test_square_products_far_over_budget_can_stay_within_a_tenth_of_the_bound(n: int, over: float) -> None:
    planned = plan(product(n, n, n), int((n / over) ** 2 * 4), objective="bytes")
    assert planned.bound_ratio <= 1.10


@pytest.mark.parametrize(("n", "over"), [(16384, 2.6), (32768, 2.6), (32768, 5.0), (65536, 8.0)])
def test_by_default_they_stay_within_three_tenths(n: int, over: float) -> None:
    planned = plan(product(n, n, n), int((n / over) ** 2 * 4))
    assert planned.bound_ratio <= 1.30
