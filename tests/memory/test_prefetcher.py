"""Looking ahead: what is expected is pinned and brought early, and nothing else changes for it."""

from __future__ import annotations

from typing import Any

import pytest

from accelera.errors import BudgetExceededError, UnknownNameError
from accelera.memory._internal import BufferTable, PoolBlock, Prefetcher, Use, window_of
from accelera.memory.pool.prefetcher import MOST_BYTES, BlockIds


class Heard:
    """A memory that writes down what it is told by its table."""

    table: BufferTable

    def __init__(self) -> None:
        self.said: list[str] = []

    def here(self, block: PoolBlock) -> Any:
        return block.name

    def arrive(self, block: PoolBlock, *, load: bool) -> Any:
        self.said.append(f"{'load' if load else 'make'} {block.name}")
        return block.name

    def leave(self, block: PoolBlock, *, save: bool) -> None:
        self.said.append(f"{'save and drop' if save else 'drop'} {block.name}")

    def store(self, block: PoolBlock) -> None:
        self.said.append(f"save {block.name}")


def make(capacity: int, names: str, window: int = 1) -> tuple[Prefetcher, Heard, dict[str, PoolBlock]]:
    """Return a stream over blocks of one byte."""
    heard = Heard()
    heard.table = BufferTable(capacity, "loop", heard)
    stream = Prefetcher(heard.table, window)
    blocks = {name: stream.create(1, "weight", name) for name in names}
    for block in blocks.values():
        block.filled = True
    return stream, heard, blocks


def run(stream: Prefetcher, blocks: dict[str, PoolBlock], names: str, *, write: bool = False) -> None:
    for name in names:
        stream.end(stream.begin([Use(blocks[name], True, write)], "op"))


def test_nothing_is_brought_early_in_the_first_round() -> None:
    stream, heard, blocks = make(2, "abcd")
    run(stream, blocks, "abc")
    assert heard.said == ["load a", "load b", "drop b", "load c"]


def test_the_next_is_brought_while_one_is_used() -> None:
    stream, heard, blocks = make(3, "abcd")
    run(stream, blocks, "abcd")
    heard.said.clear()
    pins = stream.begin([Use(blocks["a"])], "op")
    assert pins.given == ["a"]
    assert [said for said in heard.said if said.startswith("load")] != []
    stream.end(pins)


def test_a_wrong_guess_is_let_go_and_the_order_found_again() -> None:
    loop = "abcdefgh"
    stream, heard, blocks = make(6, loop + "xy")
    misses = []
    for names in [*[loop] * 7, "abxcdeyfgh", *[loop] * 10]:
        before = heard.table.stats.misses
        run(stream, blocks, names)
        misses.append(heard.table.stats.misses - before)
    assert sum(misses[-5:]) <= sum(misses[2:7]) + 1 < 5 * len(loop)
    stream.forget_predictions()
    assert not any(heard.table.pinned(block) for block in blocks.values())


def test_looking_ahead_moves_little_more() -> None:
    """What is pinned early takes room that others could have had: at most the window's."""
    names = "abcdefghijklmnopqrst"
    moved = []
    for capacity, window in ((16, 1), (14, 0)):
        stream, heard, blocks = make(capacity, names, window)
        run(stream, blocks, names * 10)
        moved.append(heard.table.stats.fetched_bytes)
    assert moved[0] <= moved[1]


def test_changed_blocks_are_saved_before_their_room_is_needed() -> None:
    stream, heard, blocks = make(3, "abcd")
    run(stream, blocks, "ab", write=True)
    run(stream, blocks, "c")
    assert heard.said == ["load a", "load b", "load c", "save a"]
    stream.end(stream.begin([Use(blocks[name]) for name in "dbc"], "op"))
    assert heard.said[4:] == ["drop a", "load d"]


def test_guesses_make_way_for_what_is_used() -> None:
    """With everything expected pinned, a use that needs all the room still gets it."""
    stream, _, blocks = make(3, "abcxyz", window=2)
    run(stream, blocks, "abc" * 4)
    pins = stream.begin([Use(blocks[name]) for name in "xyz"], "op")
    assert pins.given == ["x", "y", "z"]
    stream.end(pins)


def test_what_does_not_fit_holds_nothing() -> None:
    stream, heard, blocks = make(2, "abc")
    with pytest.raises(BudgetExceededError, match="2 B of 2 B are pinned"):
        stream.begin([Use(blocks[name]) for name in "abc"], "op")
    assert not any(heard.table.pinned(block) for block in blocks.values())
    run(stream, blocks, "abc")


def test_what_is_withheld_stays_empty() -> None:
    stream, heard, blocks = make(4, "abcdef")
    run(stream, blocks, "abcdef" * 2)
    stream.withheld_bytes = 2
    stream.forget_predictions()
    for name in "abcdef":
        pins = stream.begin([Use(blocks[name])], "op")
        stream.end(pins)
    assert heard.table.room_bytes >= 2
    stream.withheld_bytes = 4
    stream.forget_predictions()
    with pytest.raises(BudgetExceededError, match=r"raise the budget by 1 B, or use a smaller batch"):
        run(stream, blocks, "abcdef")


def test_a_held_block_cannot_be_freed() -> None:
    stream, heard, blocks = make(2, "ab")
    pins = stream.begin([Use(blocks["a"])], "op")
    assert not stream.free(blocks["a"])
    stream.end(pins)
    assert stream.free(blocks["a"])
    assert blocks["a"] not in heard.table


def test_the_first_use_of_a_new_block_reads_nothing() -> None:
    stream, heard, _ = make(2, "")
    new = stream.create(1, "", "new")
    stream.end(stream.begin([Use(new, True, True)], "op"))
    assert heard.said == ["make new"]
    assert heard.table.stats.fetched_bytes == 0


def test_ids_serve_again_by_size_and_role_the_smallest_first() -> None:
    ids = BlockIds()
    assert [ids.take(8, "weight"), ids.take(8, "weight"), ids.take(4, "weight")] == [0, 1, 2]
    ids.release(1, 8, "weight")
    ids.release(0, 8, "weight")
    assert [ids.take(8, "gradient"), ids.take(8, "weight"), ids.take(4, "weight")] == [3, 0, 4]


@pytest.mark.parametrize(("capacity", "asked", "window"), [(800, None, 100), (800, 7, 7), (800, 0, 0)])
def test_the_window(capacity: int, asked: int | None, window: int) -> None:
    assert window_of(capacity, asked) == window
    assert window_of(1 << 40) == MOST_BYTES


def test_policies_must_know_nothing_of_the_future() -> None:
    with pytest.raises(ValueError, match="belady needs next_use"):
        BufferTable(10, "belady")
    with pytest.raises(UnknownNameError, match="did you mean 'loop'"):
        BufferTable(10, "lopo")
