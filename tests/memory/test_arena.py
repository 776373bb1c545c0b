"""The arena: blocks that do not overlap, pages that never exceed the limit, and whom it asks for room."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accelera._native import Arena, leave_arena
from accelera.memory import process_memory
from accelera.offload.memory_guard import arenas_in_torch
from tests.children import answer_of

PAGE = 4096
LIMIT = 4 << 20

pytestmark = pytest.mark.skipif(not arenas_in_torch(), reason="the library for this torch is not built")

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("tensor"), st.integers(1024, LIMIT // 3)),
        st.tuples(st.just("slab"), st.integers(1, LIMIT // 3)),
        st.tuples(st.just("free"), st.integers(0, 1000)),
        st.tuples(st.just("trim"), st.just(0)),
    ),
    max_size=60,
)


def tensor_in(arena: Arena, nbytes: int) -> torch.Tensor:
    token = arena.enter()
    try:
        return torch.empty(nbytes, dtype=torch.uint8)
    finally:
        leave_arena(token)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_blocks_are_apart_and_pages_within_the_limit(steps: list[tuple[str, int]]) -> None:
    arena = Arena(LIMIT)
    alive: list[tuple[str, np.ndarray | torch.Tensor, int]] = []
    memory: Any
    tensor: Any
    slab: Any
    for number, (what, value) in enumerate(steps):
        taken = {kind: sum(len(each) for k, each, _ in alive if k == kind) for kind in ("tensor", "slab")}
        fits = sum(taken.values()) + value <= LIMIT
        if what == "tensor" and fits:
            tensor = tensor_in(arena, value)
            tensor.fill_(number % 251)
            assert tensor.data_ptr() % 64 == 0
            alive.append((what, tensor, number % 251))
        elif what == "tensor":
            with pytest.raises(torch.OutOfMemoryError, match="budget"):
                tensor_in(arena, value)
        elif what == "slab" and fits:
            arena.commit(value)
            slab = arena.slab(value)
            slab[:] = number % 251
            assert slab.ctypes.data % PAGE == 0
            alive.append((what, slab, number % 251))
        elif what == "free" and alive:
            kind, memory, mark = alive.pop(value % len(alive))
            assert bool((memory == mark).all())
            if kind == "slab":
                nbytes, memory = len(memory), None
                arena.commit(-nbytes)
        elif what == "trim":
            arena.trim()
        memory = tensor = slab = None  # nothing but the list holds them
        sizes = {kind: sum(len(each) for k, each, _ in alive if k == kind) for kind in ("tensor", "slab")}
        assert (arena.ordinary_bytes, arena.committed_bytes) == (sizes["tensor"], sizes["slab"])
        # Blocks that share pages with free ranges keep them: at most two pages each.
        assert sum(sizes.values()) <= arena.touched_bytes <= LIMIT + 2 * PAGE * (len(alive) + 1)
        if what == "trim":
            assert arena.touched_bytes <= sum(sizes.values()) + 2 * PAGE * len(alive)
    for kind, memory, mark in alive:
        assert bool((memory == mark).all()), kind


@pytest.mark.parametrize("last", ["tensor", "slab", "arena"])
def test_memory_goes_back_with_the_last_of_what_was_taken_from_it(last: str) -> None:
    """An arena whose owner is gone lives on for what is left of it, and not longer."""
    arena: Any = Arena(64 << 20)
    tensor: torch.Tensor | None = tensor_in(arena, 16 << 20).fill_(1)
    arena.commit(32 << 20)
    slab: np.ndarray | None = arena.slab(32 << 20)
    slab[:] = 1
    held = process_memory().anon_bytes
    if last != "tensor":
        tensor = None
    if last != "slab":
        slab = None
    if last != "arena":
        arena = None
    # Without results as large as these, which the heap may keep.
    assert tensor is None or int(tensor.min()) == int(tensor.max()) == 1
    assert slab is None or int(slab.min()) == int(slab.max()) == 1
    tensor = slab = arena = None
    assert held - process_memory().anon_bytes > 40 << 20


def test_an_ordinary_tensor_asks_for_room_once() -> None:
    asked: list[int] = []
    slab = None

    def make_room(missing: int) -> bool:
        nonlocal slab
        asked.append(missing)
        slab = None
        arena.commit(-(3 << 20))
        return True

    arena = Arena(LIMIT, make_room)
    arena.commit(3 << 20)
    slab = arena.slab(3 << 20)
    first = tensor_in(arena, 1 << 20)
    assert not asked
    second = tensor_in(arena, 2 << 20)
    assert asked == [2 << 20]
    assert arena.ordinary_bytes == first.nbytes + second.nbytes


def test_what_making_room_raises_is_what_the_operation_raises() -> None:
    class Own(Exception):
        pass

    def refuse(missing: int) -> bool:
        raise Own(missing)

    arena = Arena(LIMIT, refuse)
    token = arena.enter()
    try:
        with pytest.raises(Own, match=str(LIMIT)):
            torch.zeros(2 * LIMIT, dtype=torch.uint8)
        x = torch.ones(1 << 18, requires_grad=True)
        with pytest.raises(Own):
            (x * 2).expand(8, -1).clone().sum().backward()
    finally:
        leave_arena(token)
    assert torch.zeros(2 * LIMIT, dtype=torch.uint8).sum() == 0, "outside nothing is refused"


def test_tensors_outlive_their_arena_and_the_thread_that_made_them() -> None:
    arena = Arena(LIMIT)
    kept = tensor_in(arena, 1 << 20).fill_(7)
    view = kept[1000:]
    del arena, kept
    gc.collect()
    assert bool((view == 7).all())
    other = Arena(LIMIT)
    assert bool((tensor_in(other, 1 << 20).fill_(3) == 3).all())
    assert bool((view == 7).all())


def test_storages_that_are_resized_stay_where_they_belong() -> None:
    arena = Arena(LIMIT)
    inside, outside = tensor_in(arena, 1 << 20), torch.ones(1 << 20, dtype=torch.uint8)
    inside.untyped_storage().resize_(0)
    assert arena.ordinary_bytes == 0
    inside.untyped_storage().resize_(2 << 20)
    token = arena.enter()
    outside.resize_(2 << 20)
    leave_arena(token)
    assert arena.ordinary_bytes == 2 << 20
    assert bool((outside[: 1 << 20] == 1).all())


def test_the_log_has_every_allocation_and_its_end() -> None:
    arena = Arena(LIMIT)
    before = tensor_in(arena, 5000)
    arena.start_log()
    first, second = tensor_in(arena, 3000), tensor_in(arena, 4000)
    number = arena.block_at(first.data_ptr() + 2999)
    assert arena.block_at(second.data_ptr()) == number + 1
    assert arena.block_at(torch.ones(3000).data_ptr()) == -1
    del first, before
    assert arena.log_size == 4
    log = arena.take_log().tolist()
    assert log == [[number, 3000], [number + 1, 4000], [number, -3000], [number - 1, -5000]]
    del second
    assert arena.log_size == 0


def test_peaks_are_counted_from_where_they_were_reset() -> None:
    arena = Arena(LIMIT)
    large = tensor_in(arena, 3 << 20)
    del large
    small = tensor_in(arena, 1 << 20)
    assert (arena.peak_ordinary_bytes, arena.peak_bytes) == (3 << 20, 3 << 20)
    arena.reset_peaks()
    assert arena.peak_ordinary_bytes == small.nbytes


PROGRAM = """
import json, random, torch
from accelera._native import Arena, leave_arena
from accelera.memory import process_memory
from accelera.memory import process_memory, reset_peak
from accelera.offload.memory_guard import arenas_in_torch

assert arenas_in_torch()
LIMIT = 64 << 20
arena, chosen, alive = Arena(LIMIT), random.Random(0), []
torch.ones(1 << 16).sum()
reset_peak()
before = process_memory().anon_bytes
most = 0
for number in range(3000):
    size = chosen.choice([3000, 70_000, 1 << 20, 5 << 20])
    while alive and arena.ordinary_bytes + size > LIMIT:
        alive.pop(chosen.randrange(len(alive)))
    token = arena.enter()
    alive.append(torch.full((size,), 1, dtype=torch.uint8))
    leave_arena(token)
    most = max(most, process_memory().anon_bytes - before)
print(json.dumps({"most": most, "touched": arena.peak_touched_bytes, "limit": LIMIT}))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="anonymous memory is read from /proc")
def test_resident_memory_keeps_to_the_limit_however_fragmented() -> None:
    found = answer_of("-c", PROGRAM)
    assert found["touched"] <= found["limit"] * 1.02
    assert found["most"] <= found["limit"] * 1.02 + (2 << 20)


def test_memory_that_was_handed_out_raw_finds_its_way_back() -> None:
    """oneDNN takes scratch space from torch's allocator and gives it back by address alone."""
    arena = Arena(32 << 20)
    layer = torch.nn.Conv2d(8, 8, 3)
    token = arena.enter()
    try:
        for _ in range(3):
            layer(torch.randn(2, 8, 64, 64)).sum().backward()
    finally:
        leave_arena(token)
    layer(torch.randn(2, 8, 64, 64)).sum().backward()
    del layer
    gc.collect()
    assert arena.ordinary_bytes == 0
