"""Spare memory: by size, the right piece first, and as much given up as is asked for."""

from __future__ import annotations

from accelera.memory.pool.backing_store import FreeList


def spares_of(**sizes: int) -> FreeList[str]:
    spares: FreeList[str] = FreeList()
    for name, nbytes in sizes.items():
        spares.add(nbytes, name)
    return spares


def test_a_piece_of_just_that_size_is_taken_the_newest_first() -> None:
    spares = spares_of(a=4, b=4, c=8)
    assert [spares.take(4), spares.take(4), spares.take(4)] == ["b", "a", None]
    assert spares.take(6) is None


def test_the_oldest_that_is_ready_is_taken_else_the_oldest() -> None:
    spares = spares_of(a=4, b=4, c=4)
    assert spares.take(4, lambda piece: piece != "a") == "b"
    assert spares.take(4, lambda piece: False) == "a"


def test_the_largest_are_given_up_first_and_no_more_than_needed() -> None:
    spares = spares_of(a=1, b=4, c=8, d=4)
    assert list(spares.trim(10)) == [(8, "c"), (4, "d")]
    assert list(spares.trim(0)) == []
    assert spares.clear() == [(1, "a"), (4, "b")]
    assert list(spares.trim(1)) == []
