"""The order that comes round again, learned: what is expected after each access."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from accelera._native import Order


def learned(ids: Iterable[int]) -> Order:
    order = Order()
    for each in ids:
        order.note(each)
    return order


def expected(order: Order, count: int) -> list[int]:
    return [order.ahead(k) for k in range(1, count + 1)]


def test_nothing_is_known_in_the_first_round() -> None:
    assert expected(learned([3, 1, 2]), 3) == [-1, -1, -1]


def test_what_followed_last_time_follows_now() -> None:
    assert expected(learned([3, 1, 2, 3]), 5) == [1, 2, 3, 1, 2]


@given(loop=st.lists(st.integers(0, 9), min_size=1, max_size=40, unique=True), rounds=st.integers(1, 4))
def test_a_loop_is_known_to_its_end_and_beyond(loop: list[int], rounds: int) -> None:
    order = learned(loop * rounds + loop[:1])
    assert expected(order, 2 * len(loop)) == (loop[1:] + loop[:1]) * 2


def test_places_with_one_id_are_told_apart_by_what_came_before() -> None:
    """Forward and backward: after 2 comes 3 on the way there and 1 on the way back."""
    there_and_back = [1, 2, 3, 4, 4, 3, 2, 1]
    assert expected(learned([*there_and_back, *there_and_back, 1, 2]), 2) == [3, 4]
    assert expected(learned([*there_and_back, *there_and_back, 1, 2, 3, 4, 4, 3, 2]), 2) == [1, 1]


def test_it_finds_the_way_back_after_something_else() -> None:
    loop = [1, 2, 3, 4, 5]
    assert expected(learned([*loop, *loop, 1, 2, 9, 3]), 3) == [4, 5, 1]
    assert expected(learned([*loop, *loop, 1, 3]), 3) == [4, 5, 1]


def test_a_long_history_is_forgotten_but_the_loop_is_not() -> None:
    loop = list(range(70_000))
    assert expected(learned(loop * 17), 3) == [0, 1, 2]
