"""What a process holds besides its blocks makes blocks leave, before the budget is exceeded."""

from __future__ import annotations

import mmap

import pytest
import torch

from accelera._native import Arena, leave_arena
from accelera.errors import BudgetExceededError
from accelera.memory._internal import Use
from accelera.offload.block_cache import BlockCache
from accelera.offload.config import CacheBudget, OffloadConfig
from accelera.offload.memory_guard import ArenaCount, HeldCount, MemoryGuard, arenas_in_torch, held_on
from tests.children import answer_of

PROGRAM = """
import json, sys, torch
from accelera.memory import process_memory, reset_peak
from accelera.memory._internal import Use
from accelera.offload import block_cache as keeping
from accelera.offload.block_cache import BlockCache
from accelera.offload.config import CacheBudget, OffloadConfig

if sys.argv[1] == "process":
    keeping.arenas_in_torch = lambda: False
SIZE, BUDGET = 8 << 20, 96 << 20
torch.ones(1 << 20) @ torch.ones(1 << 20)
cache = BlockCache(
    80 << 20, OffloadConfig(block_bytes=SIZE, record=True), budget=CacheBudget(limit_bytes=BUDGET)
)
blocks = [cache.adopt(torch.full((SIZE,), i, dtype=torch.uint8), str(i))[0] for i in range(14)]
with cache.use([Use(blocks[0])]):
    pass
before = process_memory().anon_bytes - SIZE
reset_peak()
held = []
entry = cache.scope.open("inference")
for number in range(70):
    if number in range(20, 26):
        held.append(torch.ones(6 << 20, dtype=torch.uint8))
    if number == 50:
        held.clear()
    with cache.use([Use(blocks[number % 14])]) as (memory,):
        assert bool((memory == number % 14).all())
entry.close()
peak = process_memory().peak_bytes - before - process_memory().file_bytes
print(json.dumps({"peak": peak, "budget": BUDGET, "resident": cache.report().peak_bytes}))
"""


@pytest.mark.parametrize("counted", ["arena", "process"])
def test_the_peak_of_a_process_stays_within_the_budget(counted: str) -> None:
    """Blocks alone take 80 MiB of 96; beside 36 MiB of others they must give up 20."""
    found = answer_of("-c", PROGRAM, counted)
    assert found["resident"] == 80 << 20
    assert found["peak"] <= found["budget"] + (4 << 20)


def guard(held: list[int], blocks: list[int], *, learns: bool = False) -> MemoryGuard:
    return MemoryGuard(100, HeldCount(lambda: held[0], lambda: blocks[0]), learns=learns)


def test_nothing_is_withheld_within_the_reserve() -> None:
    held, blocks = [1000], [0]
    one = guard(held, blocks)
    assert one.withheld_bytes() == 0
    held[0], blocks[0] = 1000 + 350 + 100, 350
    assert one.withheld_bytes() == 0
    held[0] += 30
    assert one.withheld_bytes() == 30


def test_the_least_that_was_seen_is_where_counting_begins() -> None:
    """Weights that were in memory before they were adopted are given back later."""
    held, blocks = [1000], [0]
    one = guard(held, blocks)
    one.withheld_bytes()
    held[0] = 200
    assert one.withheld_bytes() == 0
    held[0] = 200 + 101
    assert one.withheld_bytes() == 1


def test_what_others_allocate_between_the_phases_is_theirs() -> None:
    held, blocks = [1000], [0]
    one = guard(held, blocks)
    for _ in range(3):
        one.enter("training")
        held[0] += 60
        assert one.withheld_bytes() == 0
        held[0] -= 40
        one.enter("")
        held[0] += 5000
    one.enter("training")
    held[0] += 50
    assert one.withheld_bytes() == 10, "what the phases left, and not what was added between them"


def test_a_phase_that_is_counted_exactly_is_expected_to_take_what_it_took() -> None:
    arena = Arena(1 << 20)
    one = MemoryGuard(10_000, ArenaCount(arena))

    def phase(nbytes: int) -> list[int]:
        one.enter("training")
        found = [one.withheld_bytes()]
        token = arena.enter()
        kept = torch.empty(nbytes, dtype=torch.uint8)
        leave_arena(token)
        found.append(one.withheld_bytes())
        del kept
        found.append(one.withheld_bytes())
        one.enter("")
        return found

    if not arenas_in_torch():
        pytest.skip("the library for this torch is not built")
    assert phase(50_000) == [0, 40_000, 0]
    assert phase(30_000) == [40_000, 40_000, 40_000]
    assert phase(60_000) == [20_000, 50_000, 20_000]
    assert one.withheld_bytes() == 0
    one.expect("training", 70_000)
    one.enter("training")
    assert one.withheld_bytes() == 60_000


def test_what_a_process_holds_is_counted() -> None:
    count = held_on(torch.device("cpu"))
    before = count()
    size = 40 << 20
    # Pages of its own: an array may lie in pages that an earlier one left.
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as kept:
        kept.write(bytes(size))
        assert count() - before >= size - (4 << 20)


def test_a_process_that_took_all_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [0]
    monkeypatch.setattr("accelera.offload.block_cache.held_on", lambda _: lambda: taken[0])
    monkeypatch.setattr("accelera.offload.block_cache.arenas_in_torch", lambda: False)
    cache = BlockCache(1000, budget=CacheBudget(limit_bytes=1200))
    block = cache.create(300, "w")
    with cache.use([Use(block, False, True)]):
        pass
    taken[0] = 10_000
    other = cache.create(300, "other")
    with pytest.raises(BudgetExceededError, match="held beside them"), cache.use([Use(other)]):
        pass
    taken[0] = 0
    with cache.use([Use(other, False, True)]):
        pass
    cache.close()


def test_what_is_coming_is_withheld_before_it_is_there() -> None:
    one = guard([1000], [0])
    assert one.withheld_bytes(100) == 0
    assert one.withheld_bytes(130) == 30


def test_growth_that_was_not_foreseen_is_expected_again() -> None:
    held, blocks = [1000], [0]
    one = guard(held, blocks, learns=True)
    one.withheld_bytes(20)
    held[0] += 60
    one.withheld_bytes(settled=False)
    assert one.margin_bytes == 0
    assert one.withheld_bytes() == 0
    assert one.margin_bytes == 40
    held[0] += 1000
    one.withheld_bytes()
    assert one.margin_bytes == 50, "at most half of the reserve"


def test_blocks_leave_for_a_tensor_in_the_middle_of_an_operation() -> None:
    """The arena asks; a block that is in use stays, and what cannot be had is refused with what would do."""
    if not arenas_in_torch():
        pytest.skip("the library for this torch is not built")
    cache = BlockCache(6 << 20, OffloadConfig(block_bytes=1 << 20), budget=CacheBudget(limit_bytes=8 << 20))
    blocks = [cache.create(1 << 20, f"w{number}") for number in range(6)]
    for number, block in enumerate(blocks):
        with cache.use([Use(block, False, True)]) as (memory,):
            memory.fill_(number)
    assert cache.report().evictions == 0
    with cache.use([Use(blocks[0])]) as (memory,):
        tensor = torch.zeros(5 << 20, dtype=torch.uint8)
        assert bool((memory == 0).all())
        with pytest.raises(BudgetExceededError, match="a tensor does not fit") as refused:
            torch.zeros(3 << 20, dtype=torch.uint8)
        assert refused.value.needed_bytes == (8 << 20) + (1 << 20)
    assert cache.report().saved_bytes >= 3 << 20
    del tensor
    for number, block in enumerate(blocks):
        with cache.use([Use(block)]) as (memory,):
            assert bool((memory == number).all())
    cache.close()
