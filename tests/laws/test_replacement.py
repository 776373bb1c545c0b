"""Laws of replacement: occupancy, conservation of bytes, and that nobody beats Belady."""

from __future__ import annotations

import functools
from collections import Counter, OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelera.errors import BudgetExceededError
from accelera.memory import Ledger
from accelera.policy import POLICIES, EvictionPolicy, Knowledge, create_policy

traces = st.lists(st.integers(0, 7), max_size=60)
small_traces = st.lists(st.integers(0, 4), max_size=11)
names = st.sampled_from(sorted(POLICIES))


def replay(trace: list[int], policy: EvictionPolicy, places: int, nbytes: int = 1) -> Ledger:
    """Access each buffer of ``trace`` for a moment, all of one size, in ``places`` places."""
    books = Ledger(places * nbytes, policy)
    for buffer in trace:
        books.admit(buffer, nbytes)
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
    assert replay(
        trace, create_policy("belady", Knowledge.of_sequence(trace)), places
    ).stats.misses == fewest_misses(tuple(trace), places)


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
    best = replay(trace, create_policy("belady", Knowledge.of_sequence(trace)), places).stats
    other = replay(trace, create_policy(name, Knowledge.of_sequence(trace)), places).stats
    assert best.misses <= other.misses
    assert best.misses + best.hits == other.misses + other.hits == len(trace)


@given(trace=traces, name=names)
def test_where_everything_fits_each_buffer_misses_once(trace: list[int], name: str) -> None:
    stats = replay(trace, create_policy(name, Knowledge.of_sequence(trace)), 8).stats
    assert stats.misses == len(set(trace))
    assert stats.evictions == 0


@given(trace=traces, places=st.integers(1, 6))
def test_belady_and_lru_never_get_worse_with_more_room(trace: list[int], places: int) -> None:
    """Both are stack algorithms."""
    for name in ("belady", "lru"):
        less = replay(trace, create_policy(name, Knowledge.of_sequence(trace)), places).stats
        more = replay(trace, create_policy(name, Knowledge.of_sequence(trace)), places + 1).stats
        assert more.misses <= less.misses


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
    books = Ledger(capacity_bytes, create_policy(name, Knowledge.of_sequence(_accesses(case))))
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
