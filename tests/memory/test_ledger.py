"""The books of a pool: who is resident, what is refused, and that refusals change nothing."""

from __future__ import annotations

import pytest

from accelera.errors import BudgetExceededError
from accelera.memory._internal import Ledger
from accelera.policy import create_policy


def ledger(capacity_bytes: int) -> Ledger:
    return Ledger(capacity_bytes, create_policy("lru"))


def admit_and_unpin(books: Ledger, *buffers: int, nbytes: int = 10) -> None:
    for buffer in buffers:
        books.admit(buffer, nbytes)
        books.unpin(buffer)


def test_first_access_misses_and_the_next_hits() -> None:
    books = ledger(100)
    assert books.admit(1, 40) == (False, [])
    assert books.admit(1, 40) == (True, [])
    assert (books.stats.misses, books.stats.hits, books.stats.miss_bytes) == (1, 1, 40)
    assert books.resident_bytes == 40
    assert 1 in books


def test_the_policy_names_who_is_displaced_and_only_as_many_as_needed() -> None:
    books = ledger(30)
    admit_and_unpin(books, 1, 2, 3)
    assert books.admit(4, 15) == (False, [1, 2])
    assert (1 in books, 2 in books, 3 in books) == (False, False, True)
    assert (books.stats.evictions, books.stats.evicted_bytes) == (2, 20)


def test_pinned_buffers_are_never_displaced() -> None:
    books = ledger(20)
    books.admit(1, 10)
    admit_and_unpin(books, 2)
    assert books.admit(3, 10) == (False, [2])
    assert 1 in books


def test_a_buffer_stays_pinned_until_each_pin_is_dropped() -> None:
    books = ledger(10)
    books.admit(1, 10)
    books.admit(1, 10)
    books.unpin(1)
    assert not books.evictable(1)
    with pytest.raises(BudgetExceededError):
        books.admit(2, 10)
    books.unpin(1)
    assert books.evictable(1)
    assert books.admit(2, 10) == (False, [1])


def test_refusal_names_what_is_pinned_and_what_would_do() -> None:
    books = ledger(100)
    books.admit(1, 60)
    admit_and_unpin(books, 2, nbytes=30)
    with pytest.raises(BudgetExceededError) as refusal:
        books.admit(3, 50)
    assert refusal.value.needed_bytes == 110
    assert refusal.value.budget_bytes == 100
    assert str(refusal.value).startswith("[pool]")
    for number in ("50 B", "60 B", "100 B", "110 B"):
        assert number in str(refusal.value)


def test_refusal_displaces_nobody_and_counts_nothing() -> None:
    books = ledger(100)
    books.admit(1, 60)
    admit_and_unpin(books, 2, nbytes=30)
    before = (vars(books.stats).copy(), books.resident_bytes)
    with pytest.raises(BudgetExceededError):
        books.admit(3, 50)
    assert (vars(books.stats), books.resident_bytes) == before
    assert 2 in books
    assert books.admit(2, 30) == (True, [])


def test_larger_than_everything_is_refused_with_nobody_there() -> None:
    with pytest.raises(BudgetExceededError) as refusal:
        ledger(100).admit(1, 101)
    assert refusal.value.needed_bytes == 101


def test_exactly_the_capacity_fits() -> None:
    books = ledger(100)
    admit_and_unpin(books, 1, nbytes=1)
    assert books.admit(2, 100) == (False, [1])
    assert books.resident_bytes == books.stats.peak_bytes == 100


def test_free_makes_room_whether_pinned_or_not_and_is_no_eviction() -> None:
    books = ledger(20)
    books.admit(1, 10)
    admit_and_unpin(books, 2)
    books.free(1)
    books.free(2)
    assert books.resident_bytes == books.stats.evictions == 0
    assert books.admit(3, 20) == (False, [])


def test_freed_and_admitted_again_is_a_new_miss_with_one_pin() -> None:
    books = ledger(20)
    books.admit(1, 10)
    books.admit(1, 10)
    books.free(1)
    assert books.admit(1, 20) == (False, [])
    books.unpin(1)
    assert books.evictable(1)
    assert books.stats.misses == 2


def test_whoever_must_leave_is_told_while_still_here_and_may_stay_by_raising() -> None:
    books = ledger(20)
    admit_and_unpin(books, 1, 2)

    def keep(buffer: int) -> None:
        assert buffer in books
        raise OSError("not saved")

    with pytest.raises(OSError, match="not saved"):
        books.admit(3, 10, keep)
    assert (1 in books, 2 in books, 3 in books) == (True, True, False)
    assert books.resident_bytes == 20
    assert books.stats.evictions == 0
    told: list[int] = []
    assert books.admit(3, 10, told.append) == (False, [1]) == (False, told)


def test_hold_pins_without_counting_an_access() -> None:
    books = ledger(10)
    admit_and_unpin(books, 1)
    books.hold(1)
    assert (books.stats.hits, books.stats.misses) == (0, 1)
    with pytest.raises(BudgetExceededError):
        books.admit(2, 10)


def test_peak_is_the_most_ever_held() -> None:
    books = ledger(100)
    admit_and_unpin(books, 1, 2, 3)
    books.free(1)
    books.free(2)
    assert books.resident_bytes == 10
    assert books.stats.peak_bytes == 30
