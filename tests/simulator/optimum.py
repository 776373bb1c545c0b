"""The least traffic of a tiny trace, by trying every schedule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

from accelera.simulator.time_steps import TimeSteps
from accelera.trace import Kind, Trace

State = frozenset[tuple[int, bool]]
"""Resident buffers, and whether each is dirty."""


def least_moved_bytes(trace: Trace, capacity_bytes: int) -> int:
    """Return the bytes of the best of all schedules; every moment must fit."""
    moments = TimeSteps.of(trace)
    costs: dict[State, int] = {frozenset(): 0}
    access = 0
    for event in range(len(trace)):
        if trace.kind[event] > Kind.WRITE:
            costs = _merged(_after(trace, event, *item) for item in costs.items())
            continue
        moment = moments.of_access[access]
        if access == 0 or moments.of_access[access - 1] != moment:
            operands = {int(each) for each in trace.accessed[access:][moments.of_access[access:] == moment]}
            room = capacity_bytes - int(moments.held_bytes[moment])
            costs = _merged(
                pair for item in costs.items() for pair in _choices(trace, event, *item, operands, room)
            )
        costs = _merged(_accessed(trace, event, *item) for item in costs.items())
        access += 1
    return min(costs.values())


def _merged(pairs: Iterable[tuple[State, int]]) -> dict[State, int]:
    found: dict[State, int] = {}
    for state, cost in pairs:
        found[state] = min(cost, found.get(state, cost))
    return found


def _choices(
    trace: Trace, event: int, state: State, cost: int, operands: set[int], room: int
) -> Iterator[tuple[State, int]]:
    """Yield every way to keep some of the others in the room that operands leave."""
    staying = [each for each in state if each[0] in operands]
    others = [each for each in state if each[0] not in operands]
    for count in range(len(others) + 1):
        for kept in combinations(others, count):
            if sum(int(trace.size_bytes[buffer]) for buffer, _ in kept) <= room:
                dropped = set(others) - set(kept)
                written = sum(_write_back(trace, event, *each) for each in dropped)
                yield frozenset([*staying, *kept]), cost + written


def _write_back(trace: Trace, event: int, buffer: int, dirty: bool) -> int:
    """Return the bytes written when ``buffer`` is dropped before ``event``."""
    following = trace.kind[event:][trace.buffer[event:] == buffer]
    following = following[following != Kind.RELEASE]
    dead = len(following) and following[0] in (Kind.WRITE, Kind.FREE)
    return int(trace.size_bytes[buffer]) if dirty and not dead else 0


def _accessed(trace: Trace, event: int, state: State, cost: int) -> tuple[State, int]:
    buffer, write = int(trace.buffer[event]), trace.kind[event] == Kind.WRITE
    here = dict(state)
    fetched = 0 if buffer in here or write else int(trace.size_bytes[buffer])
    here[buffer] = write or here.get(buffer, False)
    return frozenset(here.items()), cost + fetched


def _after(trace: Trace, event: int, state: State, cost: int) -> tuple[State, int]:
    here, buffer = dict(state), int(trace.buffer[event])
    if trace.kind[event] == Kind.FREE:
        here.pop(buffer, None)
    if trace.kind[event] == Kind.SAVE and here.get(buffer):
        here[buffer] = False
        cost += int(trace.size_bytes[buffer])
    return frozenset(here.items()), cost
