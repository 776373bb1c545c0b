"""Laws of replacement: occupancy, conservation of bytes, and that nobody beats Belady."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelera.errors import BudgetExceededError
from accelera.memory._internal import Ledger
from accelera.policy import POLICIES, EvictionPolicy, create_policy
from accelera.policy._internal import prepare
from accelera.simulator import simulate_cache
from accelera.simulator._internal import CacheResult
from accelera.trace import Kind, Trace
from tests.policy.plugins import OrderedLru

traces = st.lists(st.integers(0, 7), max_size=60)
small_traces = st.lists(st.integers(0, 4), max_size=11)
names = st.sampled_from(sorted(POLICIES))


def fresh(
    name: str, accesses: Sequence[int], capacity_bytes: int, sizes: Mapping[int, int] | None = None
) -> EvictionPolicy:
    """Return a policy that knows what it needs of ``accesses``; buffers without a size have 1 byte."""
    trace = Trace.from_arrays(accesses, [(sizes or {}).get(each, 1) for each in accesses])
    score = np.arange(len(accesses)) % 5.0 if name == "learned" else None
    return prepare(name, trace, capacity_bytes, score=score, seed=3).policy()


def replay(trace: list[int], policy: EvictionPolicy, places: int) -> Ledger:
    """Access each buffer of ``trace`` for a moment, all of one size, in ``places`` places."""
    books = Ledger(places, policy)
    for buffer in trace:
        books.admit(buffer, 1)
        books.unpin(buffer)
    return books


@given(trace=traces, places=st.integers(1, 6))
def test_lru_is_four_lines(trace: list[int], places: int) -> None:
    queue: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for buffer in trace:
        hits += buffer in queue
        queue[buffer] = queue.pop(buffer, None)
        if len(queue) > places:
            queue.popitem(last=False)
    books = replay(trace, create_policy("lru"), places)
    assert books.stats.hits == hits
    assert {buffer for buffer in range(8) if buffer in books} == set(queue)


@given(trace=small_traces, places=st.integers(1, 4))
def test_belady_misses_as_little_as_brute_force(trace: list[int], places: int) -> None:
    books = replay(trace, fresh("belady", trace, places), places)
    assert books.stats.misses == fewest_misses(tuple(trace), places)


def fewest_misses(trace: tuple[int, ...], places: int) -> int:
    """Try every choice of victim."""

    @functools.cache
    def from_here(position: int, resident: frozenset[int]) -> int:
        if position == len(trace):
            return 0
        buffer = trace[position]
        if buffer in resident:
            return from_here(position + 1, resident)
        if len(resident) < places:
            return 1 + from_here(position + 1, resident | {buffer})
        return 1 + min(from_here(position + 1, resident - {each} | {buffer}) for each in resident)

    return from_here(0, frozenset())


@given(trace=traces, places=st.integers(1, 6), name=names)
def test_no_policy_misses_less_than_belady(trace: list[int], places: int, name: str) -> None:
    best = replay(trace, fresh("belady", trace, places), places).stats
    other = replay(trace, fresh(name, trace, places), places).stats
    assert best.misses <= other.misses
    assert best.misses + best.hits == other.misses + other.hits == len(trace)


@given(trace=traces, name=names)
def test_where_everything_fits_each_buffer_misses_once(trace: list[int], name: str) -> None:
    stats = replay(trace, fresh(name, trace, 8), 8).stats
    assert stats.misses == len(set(trace))
    assert stats.evictions == 0


@given(trace=traces, places=st.integers(1, 6))
def test_belady_and_lru_never_get_worse_with_more_room(trace: list[int], places: int) -> None:
    """Both are stack algorithms."""
    for name in ("belady", "lru"):
        less = replay(trace, fresh(name, trace, places), places).stats
        more = replay(trace, fresh(name, trace, places + 1), places + 1).stats
        assert more.misses <= less.misses


@given(trace=traces, places=st.integers(1, 6))
def test_what_lru_holds_it_holds_in_more_room_too(trace: list[int], places: int) -> None:
    less, more = Ledger(places, create_policy("lru")), Ledger(places + 1, create_policy("lru"))
    for buffer in trace:
        for books in (less, more):
            books.admit(buffer, 1)
            books.unpin(buffer)
        assert {each for each in range(8) if each in less} <= {each for each in range(8) if each in more}


@st.composite
def busy_traces(draw: st.DrawFn) -> tuple[int, dict[int, int], list[tuple[str, int]]]:
    """A capacity, buffers of many sizes, and what is done with them, pins overlapping."""
    capacity_bytes = draw(st.integers(1, 60))
    sizes = draw(st.dictionaries(st.integers(0, 9), st.integers(1, 30), min_size=1))
    action = st.tuples(st.sampled_from(["admit", "admit", "unpin", "free"]), st.sampled_from(sorted(sizes)))
    return capacity_bytes, sizes, draw(st.lists(action, max_size=80))


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(case=busy_traces())
def test_books_balance_after_every_access(
    name: str, case: tuple[int, dict[int, int], list[tuple[str, int]]]
) -> None:
    """Bytes in are bytes out and bytes here, never more than the capacity; refusals change nothing."""
    capacity_bytes, sizes, actions = case
    pins: Counter[int] = Counter()
    here: set[int] = set()
    bytes_in = bytes_out = 0
    books = Ledger(capacity_bytes, fresh(name, _accesses(case), capacity_bytes, sizes))
    for action, buffer in actions:
        if action == "admit":
            held_bytes = sum(sizes[each] for each in here if pins[each])
            fits = buffer in here or held_bytes + sizes[buffer] <= capacity_bytes
            if not fits:
                with pytest.raises(BudgetExceededError) as refusal:
                    books.admit(buffer, sizes[buffer])
                assert refusal.value.needed_bytes == held_bytes + sizes[buffer]
                continue
            hit, displaced = books.admit(buffer, sizes[buffer])
            assert hit == (buffer in here)
            assert not any(pins[each] for each in displaced)
            bytes_in += 0 if hit else sizes[buffer]
            bytes_out += sum(sizes[each] for each in displaced)
            here = here - set(displaced) | {buffer}
            pins[buffer] += 1
        elif action == "unpin" and pins[buffer]:
            books.unpin(buffer)
            pins[buffer] -= 1
        elif action == "free" and buffer in here:
            books.free(buffer)
            here.remove(buffer)
            bytes_out += sizes[buffer]
            pins[buffer] = 0
        assert books.resident_bytes == sum(sizes[each] for each in here) == bytes_in - bytes_out
        assert books.resident_bytes <= books.stats.peak_bytes <= capacity_bytes
        assert here == {each for each in sizes if each in books}
    assert books.stats.miss_bytes == bytes_in


def _accesses(case: tuple[int, dict[int, int], list[tuple[str, int]]]) -> list[int]:
    """Return the accesses that will be counted, found by a dry run: refusals do not tick."""
    capacity_bytes, sizes, actions = case
    books, counted = Ledger(capacity_bytes, create_policy("lru")), []
    pins: Counter[int] = Counter()
    for action, buffer in actions:
        if action == "admit":
            try:
                books.admit(buffer, sizes[buffer])
            except BudgetExceededError:
                continue
            pins[buffer] += 1
            counted.append(buffer)
        elif action == "unpin" and pins[buffer]:
            books.unpin(buffer)
            pins[buffer] -= 1
        elif action == "free" and buffer in books:
            books.free(buffer)
            pins[buffer] = 0
    return counted


@st.composite
def lives(draw: st.DrawFn) -> tuple[Trace, int]:
    """A trace of accesses and frees, and a capacity that takes its largest buffer."""
    sizes = np.array(draw(st.lists(st.integers(0, 30), min_size=6, max_size=6)))
    event = st.tuples(st.integers(0, 5), st.sampled_from([Kind.READ, Kind.READ, Kind.WRITE, Kind.FREE]))
    events = draw(st.lists(event, max_size=80))
    ids = np.array([buffer for buffer, _ in events], dtype=np.int64)
    trace = Trace.from_arrays(ids, sizes[ids], kinds=[kind for _, kind in events])
    largest = int(trace.size_bytes.max(initial=1))
    return trace, draw(st.integers(max(largest, 1), 90))


def in_the_ledger(trace: Trace, policy: EvictionPolicy, capacity_bytes: int) -> CacheResult:
    """Return what the pool's books make of a trace, each access let go at once."""
    books = Ledger(capacity_bytes, policy)
    for buffer, kind in zip(trace.buffer.tolist(), trace.kind.tolist(), strict=True):
        if kind <= Kind.WRITE:
            books.admit(buffer, int(trace.size_bytes[buffer]), write=kind == Kind.WRITE)
            books.unpin(buffer)
        elif buffer in books:
            books.free(buffer)
        assert books.resident_bytes <= capacity_bytes
        assert books.resident_bytes == sum(
            int(nbytes) for each, nbytes in enumerate(trace.size_bytes) if each in books
        )
    stats = books.stats
    return CacheResult(
        stats.hits, stats.misses, stats.miss_bytes, stats.evictions, stats.evicted_bytes, stats.peak_bytes
    )


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(life=lives())
def test_the_pool_and_the_simulator_agree(name: str, life: tuple[Trace, int]) -> None:
    trace, capacity_bytes = life
    score = np.arange(trace.access_count) % 5.0 if name == "learned" else None
    prepared = prepare(name, trace, capacity_bytes, score=score, seed=3)
    pool = in_the_ledger(trace, prepared.policy(), capacity_bytes)
    assert simulate_cache(trace, capacity_bytes=capacity_bytes, policy=prepared.policy()) == pool
    if name != "lirs":  # The plain cache holds its cool ones to their share, as libCacheSim does.
        assert simulate_cache(trace, capacity_bytes=capacity_bytes, policy=name, score=score, seed=3) == pool


@given(life=lives())
def test_a_plug_in_in_python_is_worth_the_compiled_policy(life: tuple[Trace, int]) -> None:
    trace, capacity_bytes = life
    compiled = simulate_cache(trace, capacity_bytes=capacity_bytes, policy="lru")
    assert simulate_cache(trace, capacity_bytes=capacity_bytes, policy=OrderedLru()) == compiled
    assert in_the_ledger(trace, OrderedLru(), capacity_bytes) == compiled


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(case=busy_traces(), faults=st.lists(st.booleans(), max_size=40))
def test_books_balance_when_victims_cannot_be_saved(
    name: str, case: tuple[int, dict[int, int], list[tuple[str, int]]], faults: list[bool]
) -> None:
    """A victim whose saver fails stays; so do those not reached; nobody is lost or named twice."""
    capacity_bytes, sizes, actions = case
    pending = iter(faults)
    policy = fresh(name, _accesses(case), capacity_bytes, sizes)
    books = Ledger(capacity_bytes, policy)

    def leave(buffer: int) -> None:
        assert buffer in books
        if next(pending, False):
            raise OSError("disk full")

    for action, buffer in actions:
        if action == "admit" and sizes[buffer] <= capacity_bytes:
            with contextlib.suppress(OSError):
                books.admit(buffer, sizes[buffer], leave)
                books.unpin(buffer)
        elif action == "free" and buffer in books:
            books.free(buffer)
        assert books.resident_bytes == sum(sizes[each] for each in sizes if each in books)
        assert books.resident_bytes <= capacity_bytes
    here = {each for each in sizes if each in books}
    left = set()
    while (victim := policy.victim(lambda buffer: True)) is not None:
        policy.evict(victim)
        left.add(victim)
    assert left == here


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(life=lives())
def test_ids_may_come_that_nobody_announced(name: str, life: tuple[Trace, int]) -> None:
    """Fewer buffers, or fewer accesses, were expected than come; and the same run again is equal."""
    trace, capacity_bytes = life
    score = np.arange(trace.access_count) % 5.0 if name == "learned" else None
    known = prepare(name, trace, capacity_bytes, score=score, seed=3)
    unannounced = replace(known, knowledge=replace(known.knowledge, buffers=0))
    expected = in_the_ledger(trace, known.policy(), capacity_bytes)
    assert in_the_ledger(trace, unannounced.policy(), capacity_bytes) == expected
    beginning = Trace.from_arrays([0], 1)
    short = prepare(name, beginning, capacity_bytes, score=None if score is None else [0.0]).policy()
    in_the_ledger(trace, short, capacity_bytes)
