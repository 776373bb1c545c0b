"""The books: decisions and record over any memory, and a memory that fails leaves them right."""

from __future__ import annotations

from typing import Any

import pytest

from accelera.memory._internal import BufferTable, PoolBlock
from accelera.simulator import simulate
from accelera.trace import Kind, TraceLog


class Stubborn:
    """A memory that fails when it is told to."""

    def __init__(self) -> None:
        self.broken = False
        self.stored: list[int] = []

    def here(self, block: PoolBlock) -> str:
        return block.name

    def arrive(self, block: PoolBlock, *, load: bool) -> str:
        self._may_fail()
        return block.name

    def leave(self, block: PoolBlock, *, save: bool) -> None:
        if save:
            self.store(block)

    def store(self, block: PoolBlock) -> None:
        self._may_fail()
        self.stored.append(block.id)

    def _may_fail(self) -> None:
        if self.broken:
            raise OSError("disk full")


def books_of(capacity: int, **options: Any) -> tuple[BufferTable[PoolBlock], Stubborn, list[PoolBlock]]:
    """Return books over a memory that may fail, and blocks of one byte."""
    memory = Stubborn()
    return BufferTable(capacity, "lru", memory, **options), memory, [PoolBlock(id, 1) for id in range(4)]


def set_anew(books: BufferTable[PoolBlock], block: PoolBlock) -> None:
    books.admit(block, 0, write=True)
    books.unpin(block, 0)


def test_what_cannot_be_saved_stays_and_is_dirty() -> None:
    log = TraceLog()
    books, memory, (a, b, *_) = books_of(1, recorder=log)
    set_anew(books, a)
    memory.broken = True
    for attempt in (
        lambda: books.save(a, 0),
        lambda: books.give_up(a, 0),
        lambda: books.evict(1, 0),
        lambda: books.admit(b, 1, write=True),
    ):
        with pytest.raises(OSError, match="disk full"):
            attempt()
        assert books.must_save(a)
        assert not books.pinned(a)
        assert (a in books, b in books) == (True, False)
        assert books.stats.saved_bytes == 0
    assert [each.kind for each in log] == [Kind.WRITE, Kind.RELEASE]
    memory.broken = False
    books.save(a, 1)
    assert (memory.stored, books.stats.saved_bytes, books.must_save(a)) == ([0], 1, False)


def test_what_cannot_come_was_never_here() -> None:
    books, memory, (a, *_) = books_of(1)
    memory.broken = True
    with pytest.raises(OSError, match="disk full"):
        books.admit(a, 0, write=False)
    assert a not in books
    assert books.room_bytes == 1


def test_what_is_written_while_it_is_saved_is_saved_again() -> None:
    books, _, (a, *_) = books_of(1)
    set_anew(books, a)
    books.begin_save(a)
    assert books.pinned(a)
    set_anew(books, a)
    books.end_save(a, 0, saved=True)
    assert books.must_save(a)
    assert not books.pinned(a)


def test_a_record_on_paper_replays_to_the_same_figures() -> None:
    log = TraceLog()
    books: BufferTable[PoolBlock] = BufferTable(2, "loop", recorder=log, op="pass")
    blocks = [PoolBlock(id, 1, "weight", f"w{id}") for id in range(3)]
    for step in range(12):
        block = blocks[step % 3]
        books.admit(block, step, write=step < 3)
        books.unpin(block, step)
        if step == 7:
            books.give_up(block, step)
    found = simulate(log.trace(), 2, "loop")
    stats = books.stats
    assert (found.hits, found.misses, found.evictions) == (stats.hits, stats.misses, stats.evictions)
    assert {each.op for each in log} == {"pass"}
    assert log.trace().roles == ("weight",) * 3
