"""An independent, slow replay of a trace: dictionaries, and every rule written down a second time."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from accelera.memory import Hierarchy
from accelera.policy import EvictionPolicy
from accelera.policy._internal import prepare
from accelera.trace import Kind, Trace


@dataclass
class Resident:
    ready_s: float
    dirty: bool
    last: int


@dataclass
class Shelf:
    """One tier above the home."""

    capacity: int
    policy: EvictionPolicy
    here: dict[int, Resident] = field(default_factory=dict)
    pins: Counter[int] = field(default_factory=Counter)
    idle: int = 0
    leaving: list[list[float]] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)


class Slowly:
    """Replays a trace; the figures are in ``shelves``, ``links`` and the attributes."""

    def __init__(
        self, trace: Trace, machine: Hierarchy, policy: str, lookahead: int = 0, recompute: bool = False
    ) -> None:
        self.trace, self.machine, self.window, self.recompute = trace, machine, lookahead + 1, recompute
        self.size = trace.size_bytes.tolist()
        self.seconds = np.nan_to_num(trace.seconds).tolist()
        self.events = [
            (b, Kind(kind)) for b, kind in zip(trace.buffer.tolist(), trace.kind.tolist(), strict=True)
        ]
        self.shelves = [
            Shelf(tier.capacity_bytes, prepare(policy, trace, tier.capacity_bytes).policy())
            for tier in machine.tiers[:-1]
        ]
        for shelf in self.shelves:
            shelf.idle = shelf.capacity
        self.free_s: dict[tuple[int, str], float] = defaultdict(float)
        self.links: Counter[tuple[int, str]] = Counter()
        self.home_ready_s: dict[int, float] = defaultdict(float)
        first = {b: kind for b, kind in reversed(self.events) if kind <= Kind.WRITE}
        self.home_current = {b for b in range(len(self.size)) if first.get(b) != Kind.WRITE}
        self.dropped: set[int] = set()
        self.made: dict[int, int] = {}
        self.now = self.done = self.stall = self.compute = 0.0
        self.oversized = self.recomputed = 0
        self.arrivals = [0.0]
        self.extra = 0.0
        self.streamed: list[tuple[int, int]] = []
        self.passed_by = False
        self.under_way: list[tuple[float, list[tuple[int, Kind]]]] = []
        self.groups = self.grouped()

    def grouped(self) -> list[tuple[int, list[tuple[int, Kind]]]]:
        """Return the events step by step, what follows a step's accesses with it."""
        groups: list[tuple[int, list[tuple[int, Kind]]]] = []
        for (buffer, kind), step in zip(self.events, self.trace.step.tolist(), strict=True):
            starts = kind <= Kind.WRITE and (not groups or groups[-1][0] not in (step, -1))
            if starts or not groups:
                groups.append((-1, []))
            if kind <= Kind.WRITE:
                groups[-1] = (step, groups[-1][1])
            groups[-1][1].append((buffer, kind))
        return groups

    def run(self) -> Slowly:
        if Kind.RELEASE in self.trace.kind:
            self.follow_record()
        else:
            self.follow_window()
        return self

    def follow_window(self) -> None:
        time = 0
        for step, events in self.groups:
            if len(self.under_way) == self.window:
                self.retire()
            so_far: list[tuple[int, Kind]] = []
            for buffer, kind in events:
                if kind <= Kind.WRITE:
                    while self.under_way and any(needs(buffer, kind, each) for _, each in self.under_way):
                        self.retire()
                    if needs(buffer, kind, so_far):
                        while self.under_way:
                            self.retire()
                        self.finish(-1, whole=False)
                        self.under_way.append((self.done, so_far))
                        self.retire()
                        so_far = []
                    self.access(buffer, kind == Kind.WRITE, time)
                    time += 1
                so_far.append((buffer, kind))
            self.finish(step)
            self.under_way.append((self.done, so_far))
        while self.under_way:
            self.retire()

    def follow_record(self) -> None:
        done: dict[int, float] = {}
        steps = self.trace.step.tolist()
        last = {steps[i]: i for i, (_, kind) in enumerate(self.events) if kind <= Kind.WRITE}
        time = 0
        for i, (buffer, kind) in enumerate(self.events):
            step = steps[i]
            if kind <= Kind.WRITE:
                self.access(buffer, kind == Kind.WRITE, time)
                time += 1
                if last[step] == i:
                    self.finish(step)
                    done[step] = self.done
                continue
            self.now = max(self.now, done.get(step, 0.0))
            if kind == Kind.RELEASE:
                self.shelves[0].pins[buffer] -= 1
            else:
                self.happen(buffer, kind)

    def retire(self) -> None:
        done, events = self.under_way.pop(0)
        self.now = max(self.now, done)
        for buffer, kind in events:
            if kind <= Kind.WRITE:
                self.shelves[0].pins[buffer] -= 1
            else:
                self.happen(buffer, kind)

    def happen(self, buffer: int, kind: Kind) -> None:
        top = self.shelves[0]
        if kind == Kind.FREE:
            top.pins[buffer] = 0
            self.dropped.discard(buffer)
            for level in range(len(self.shelves)):
                self.remove(level, buffer)
            self.home_current.discard(buffer)
            self.home_ready_s.pop(buffer, None)
        elif kind == Kind.SAVE and buffer in top.here and top.here[buffer].dirty:
            self.now = max(self.now, self.save(0, buffer))
        elif kind == Kind.EVICT and buffer in top.here and top.pins[buffer] <= 0:
            dirty = top.here[buffer].dirty and not top.policy.dead(buffer)
            self.remove(0, buffer, self.save(0, buffer) if dirty else 0.0)

    def finish(self, step: int, *, whole: bool = True) -> None:
        own = self.seconds[step] if step >= 0 else 0.0
        start = max(self.done, *self.arrivals)
        self.stall += start - self.done
        self.compute += own + self.extra
        self.done = start + own + self.extra
        for buffer, time in self.streamed:
            self.shelves[0].figures["saved_bytes"] += self.size[buffer]
            self.store(1, buffer, time, self.done)
        self.arrivals, self.extra, self.streamed = [0.0], 0.0, []
        if whole:
            self.oversized += self.passed_by
            self.passed_by = False

    def pinned_bytes(self, level: int) -> int:
        shelf = self.shelves[level]
        return sum(self.size[b] for b in shelf.here if shelf.pins[b] > 0)

    def fits(self, level: int, buffer: int) -> bool:
        return bool(self.pinned_bytes(level) + self.size[buffer] <= self.shelves[level].capacity)

    def access(self, buffer: int, write: bool, time: int) -> None:
        top = self.shelves[0]
        if buffer in top.here:
            self.hit(0, buffer, time, write)
            self.arrivals.append(top.here[buffer].ready_s)
            self.extra += self.machine.tiers[0].access_s
            top.pins[buffer] += 1
        else:
            while not self.fits(0, buffer) and self.under_way:
                self.retire()
            self.passed_by |= not self.fits(0, buffer)
            if write or buffer in self.dropped:
                self.make(buffer, write, time)
            else:
                self.arrivals.append(self.obtain(0, buffer, time))
        if write:
            self.made[buffer] = time
            self.outdate(buffer)

    def outdate(self, buffer: int) -> None:
        self.dropped.discard(buffer)
        self.home_current.discard(buffer)
        for level in range(1, len(self.shelves)):
            self.remove(level, buffer)

    def make(self, buffer: int, write: bool, time: int) -> None:
        top = self.shelves[0]
        if not write:
            self.repeat(self.made[buffer])
        top.figures["misses"] += 1
        top.figures["created_bytes"] += self.size[buffer]
        top.pins[buffer] += 1
        if self.fits(0, buffer):
            top.policy.miss(buffer, self.size[buffer], time, write)
            ready = max(self.now, self.make_room(0, self.size[buffer]))
            self.insert(0, buffer, time, write, ready)
            top.here[buffer].dirty = True
            self.dropped.discard(buffer)
            self.arrivals.append(ready)
        elif write:
            self.streamed.append((buffer, time))

    def step_of(self, time: int) -> tuple[int, int, list[tuple[int, Kind]]]:
        """Return the index, the step and the accesses of the group in which access ``time`` is."""
        for index, (step, events) in enumerate(self.groups):
            accesses = [event for event in events if event[1] <= Kind.WRITE]
            if time < len(accesses):
                return index, step, accesses
            time -= len(accesses)
        raise AssertionError(time)

    def repeat(self, made: int) -> None:
        _, step, accesses = self.step_of(made)
        for buffer, kind in accesses:
            if kind == Kind.READ:
                top = self.shelves[0].here
                self.arrivals.append(top[buffer].ready_s if buffer in top else self.carry(buffer))
        self.extra += self.seconds[step]
        self.recomputed += 1

    def carry(self, buffer: int) -> float:
        level = next((i for i, s in enumerate(self.shelves) if i and buffer in s.here), len(self.shelves))
        ready = (
            self.home_ready_s[buffer]
            if level == len(self.shelves)
            else self.shelves[level].here[buffer].ready_s
        )
        for link in reversed(range(level)):
            ready = self.move(link, "towards", buffer, max(ready, self.now))
        self.shelves[0].figures["fetched_bytes"] += self.size[buffer]
        return ready

    def drop_pays(self, buffer: int) -> bool:
        if not self.recompute:
            return False
        last, made = self.shelves[0].here[buffer].last, self.made[buffer]
        born, step, accesses = self.step_of(made)
        reads = {b for b, kind in accesses if kind == Kind.READ}
        writes = {b for b, kind in accesses if kind == Kind.WRITE}
        fate = self.fate(buffer, last)
        if fate is None or reads & writes or not reads <= self.home_current:
            return False
        for index in range(born, fate + 1):
            events = self.groups[index][1]
            first = next(i for i, (_, kind) in enumerate(events) if kind <= Kind.WRITE)
            for other, kind in events[first:]:
                spoilt = other in reads and (
                    (kind == Kind.FREE and index < fate) or (kind == Kind.WRITE and index > born)
                )
                if spoilt or (other == buffer and kind == Kind.SAVE and index < fate):
                    return False
        absent = [b for b, kind in accesses if kind == Kind.READ and b not in self.shelves[0].here]
        tier = self.machine.tiers[1]
        cost = self.seconds[step] + sum(
            tier.latency_s + self.size[b] * tier.towards_s_per_byte for b in absent
        )
        there = tier.latency_s + self.size[buffer] * tier.away_s_per_byte
        back = tier.latency_s + self.size[buffer] * tier.towards_s_per_byte
        return bool(cost < there + back)

    def fate(self, buffer: int, last: int) -> int | None:
        """Return the group of the next read of the same contents after access ``last``, if one comes."""
        time = -1
        for index, (_, events) in enumerate(self.groups):
            for other, kind in events:
                time += kind <= Kind.WRITE
                after = time > last if kind <= Kind.WRITE else time >= last
                if other == buffer and after and kind in (Kind.READ, Kind.WRITE, Kind.FREE):
                    return index if kind == Kind.READ else None
        return None

    def hit(self, level: int, buffer: int, time: int, write: bool) -> None:
        shelf = self.shelves[level]
        shelf.figures["hits"] += 1
        shelf.policy.touch(buffer, time, write)
        shelf.here[buffer].last = time
        shelf.here[buffer].dirty |= write

    def insert(self, level: int, buffer: int, time: int, write: bool, ready: float) -> None:
        shelf = self.shelves[level]
        shelf.policy.insert(buffer, self.size[buffer], time, write)
        shelf.here[buffer] = Resident(ready, write, time)
        used = sum(self.size[b] for b in shelf.here)
        assert used <= shelf.capacity
        shelf.figures["peak_bytes"] = max(shelf.figures["peak_bytes"], used)

    def obtain(self, level: int, buffer: int, time: int) -> float:
        if level == len(self.shelves):
            return self.home_ready_s[buffer]
        shelf = self.shelves[level]
        if buffer in shelf.here:
            self.hit(level, buffer, time, False)
            shelf.pins[buffer] += 1
            return shelf.here[buffer].ready_s
        stays = self.fits(level, buffer)
        shelf.figures["misses"] += 1
        shelf.figures["fetched_bytes"] += self.size[buffer]
        if stays:
            shelf.policy.miss(buffer, self.size[buffer], time, False)
        below = self.obtain(level + 1, buffer, time)
        room = self.make_room(level, self.size[buffer]) if stays else 0.0
        arrival = self.move(level, "towards", buffer, max(self.now, below, room))
        if level + 1 < len(self.shelves):
            self.shelves[level + 1].pins[buffer] -= 1
        if stays:
            self.insert(level, buffer, time, False, arrival)
        shelf.pins[buffer] += 1
        return arrival

    def make_room(self, level: int, nbytes: int) -> float:
        shelf = self.shelves[level]
        while sum(self.size[b] for b in shelf.here) + nbytes > shelf.capacity:
            victim = shelf.policy.victim(lambda b: shelf.pins[b] <= 0)
            assert victim is not None
            assert victim in shelf.here
            shelf.figures["evictions"] += 1
            shelf.figures["evicted_bytes"] += self.size[victim]
            saved = 0.0
            if shelf.here[victim].dirty and not shelf.policy.dead(victim):
                if level == 0 and self.drop_pays(victim):
                    self.dropped.add(victim)
                else:
                    saved = self.save(level, victim)
            shelf.policy.evict(victim)
            self.give_room(level, victim, saved)
        return self.take_room(shelf, nbytes)

    def give_room(self, level: int, buffer: int, saved: float) -> None:
        shelf = self.shelves[level]
        ready = max(saved, shelf.here.pop(buffer).ready_s)
        if ready <= self.now:
            shelf.idle += self.size[buffer]
        else:
            shelf.leaving.append([ready, self.size[buffer]])

    def take_room(self, shelf: Shelf, nbytes: int) -> float:
        ready = 0.0
        for _ in range(nbytes):
            if shelf.idle:
                shelf.idle -= 1
                continue
            while shelf.leaving[0][1] == 0:
                shelf.leaving.pop(0)
            ready = max(ready, shelf.leaving[0][0])
            shelf.leaving[0][1] -= 1
        return ready

    def remove(self, level: int, buffer: int, saved: float = 0.0) -> None:
        if buffer in self.shelves[level].here:
            self.shelves[level].policy.remove(buffer)
            self.give_room(level, buffer, saved)

    def save(self, level: int, buffer: int) -> float:
        shelf = self.shelves[level]
        resident = shelf.here[buffer]
        resident.dirty = False
        shelf.figures["saved_bytes"] += self.size[buffer]
        return self.store(level + 1, buffer, resident.last, max(self.now, resident.ready_s))

    def store(self, level: int, buffer: int, time: int, ready: float) -> float:
        if level == len(self.shelves):
            self.home_ready_s[buffer] = self.move(level - 1, "away", buffer, ready)
            self.home_current.add(buffer)
            return self.home_ready_s[buffer]
        shelf = self.shelves[level]
        if buffer in shelf.here:
            self.hit(level, buffer, time, True)
            shelf.here[buffer].ready_s = self.move(
                level - 1, "away", buffer, max(ready, shelf.here[buffer].ready_s)
            )
            return shelf.here[buffer].ready_s
        if not self.fits(level, buffer):
            shelf.figures["saved_bytes"] += self.size[buffer]
            return self.store(level + 1, buffer, time, self.move(level - 1, "away", buffer, ready))
        shelf.figures["misses"] += 1
        shelf.figures["created_bytes"] += self.size[buffer]
        shelf.policy.miss(buffer, self.size[buffer], time, True)
        room = self.make_room(level, self.size[buffer])
        stored = self.move(level - 1, "away", buffer, max(ready, room))
        self.insert(level, buffer, time, True, stored)
        return stored

    def move(self, link: int, direction: str, buffer: int, ready: float) -> float:
        tier = self.machine.tiers[link + 1]
        rate = tier.towards_s_per_byte if direction == "towards" else tier.away_s_per_byte
        queue = (link, direction if tier.duplex else "both")
        self.free_s[queue] = max(self.free_s[queue], ready) + tier.latency_s + self.size[buffer] * rate
        self.links[link, direction] += self.size[buffer]
        return self.free_s[queue]


def needs(buffer: int, kind: Kind, events: list[tuple[int, Kind]]) -> bool:
    """Return whether an access depends on a free among ``events``, or overwrites what one of them saves."""
    matters = (Kind.FREE, Kind.SAVE) if kind == Kind.WRITE else (Kind.FREE,)
    return any(other == buffer and each in matters for other, each in events)
