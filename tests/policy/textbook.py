"""Replacement policies as their papers describe them, in ordered dictionaries: slow, and easy to check.

Each is told of hits, misses and insertions and names victims; queues map buffers to bytes, the oldest first.
"""

from __future__ import annotations

import abc
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

Queue = OrderedDict[int, int]


def misses(policy: Textbook, accesses: Sequence[int], sizes: Sequence[int], capacity: int) -> int:
    """Return the misses of a cache of ``capacity`` bytes; what is larger passes by."""
    resident: dict[int, int] = {}
    missed = 0
    for buffer in accesses:
        if buffer in resident:
            policy.hit(buffer)
            continue
        missed += 1
        if sizes[buffer] > capacity:
            continue
        policy.miss(buffer)
        while sum(resident.values()) + sizes[buffer] > capacity:
            del resident[policy.victim()]
        policy.insert(buffer, sizes[buffer])
        resident[buffer] = sizes[buffer]
    return missed


def total(queue: Queue) -> int:
    """Return the bytes of a queue."""
    return sum(queue.values())


def oldest(queue: Queue) -> tuple[int, int]:
    """Take the oldest of a queue."""
    return queue.popitem(last=False)


class Textbook(abc.ABC):
    """What the policies have in common."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.is_back = False

    @abc.abstractmethod
    def hit(self, buffer: int) -> None:
        """Take note of a use of a resident buffer."""

    def miss(self, buffer: int) -> None:
        pass

    @abc.abstractmethod
    def victim(self) -> int:
        """Name who leaves, and forget it."""

    @abc.abstractmethod
    def insert(self, buffer: int, nbytes: int) -> None:
        """Take note of an arrival."""


class Mru(Textbook):
    """Chou and DeWitt, VLDB 1985."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.queue: Queue = OrderedDict()

    def hit(self, buffer: int) -> None:
        self.queue.move_to_end(buffer)

    def victim(self) -> int:
        return self.queue.popitem()[0]

    def insert(self, buffer: int, nbytes: int) -> None:
        self.queue[buffer] = nbytes


class Clock(Mru):
    """Corbató 1968: whoever was touched gets a second chance."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.touched: set[int] = set()

    def hit(self, buffer: int) -> None:
        self.touched.add(buffer)

    def victim(self) -> int:
        while True:
            buffer, nbytes = oldest(self.queue)
            if buffer not in self.touched:
                return buffer
            self.touched.remove(buffer)
            self.queue[buffer] = nbytes


class Loop(Textbook):
    """Belady's rule on the order of last time, told in plain lists; see csrc/policy/loop.h."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.history: list[int] = []
        self.place: int | None = None
        self.due: dict[int, float] = {}

    def hit(self, buffer: int) -> None:
        self.insert(buffer, 0)

    def victim(self) -> int:
        latest = {each: position for position, each in enumerate(self.history)}
        found = max(self.due, key=lambda each: (self.due[each], -latest[each]))
        del self.due[found]
        return found

    def insert(self, buffer: int, nbytes: int) -> None:
        expected = None if self.place is None else self.place + 1
        self.history.append(buffer)
        latest = len(self.history) - 1
        if expected is None or expected == latest or self.history[expected] != buffer:
            self.place = self._counterpart()
        else:
            self.place = expected
        self.due[buffer] = latest if self.place is None else self._next(self.place)
        for each, due in self.due.items():
            while self.place is not None and due <= self.place:
                due = self._next(int(due))
            self.due[each] = due

    def _next(self, position: int) -> float:
        """Return where the buffer of ``position`` comes next."""
        later = (
            i for i in range(position + 1, len(self.history)) if self.history[i] == self.history[position]
        )
        return next(later, float("inf"))

    def _counterpart(self) -> int | None:
        """Return the place most like the present, among the sixteen latest of this buffer."""
        latest = len(self.history) - 1
        same = [i for i in range(latest - 1, -1, -1) if self.history[i] == self.history[latest]][:16]
        return max(same, key=self._alike, default=None)

    def _alike(self, position: int) -> int:
        pairs = zip(self.history[:position][::-1], self.history[:-1][::-1][:8], strict=False)
        alike = 0
        for before, now in pairs:
            if before != now:
                break
            alike += 1
        return alike


class TwoQ(Textbook):
    """Johnson and Shasha, VLDB 1994: A1in a quarter, A1out a half, Am."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.a1in: Queue = OrderedDict()
        self.a1out: Queue = OrderedDict()
        self.am: Queue = OrderedDict()

    def hit(self, buffer: int) -> None:
        if buffer in self.am:
            self.am.move_to_end(buffer)

    def miss(self, buffer: int) -> None:
        self.is_back = self.a1out.pop(buffer, None) is not None

    def victim(self) -> int:
        if total(self.a1in) <= self.capacity // 4 and self.am:
            return oldest(self.am)[0]
        buffer, self.a1out[buffer] = oldest(self.a1in)
        while total(self.a1out) > self.capacity // 2:
            oldest(self.a1out)
        return buffer

    def insert(self, buffer: int, nbytes: int) -> None:
        (self.am if self.is_back else self.a1in)[buffer] = nbytes


class Slru(Textbook):
    """Karedla, Love and Wherry 1994: four fifths are protected."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.protected_share = capacity // 5 * 4
        self.probation: Queue = OrderedDict()
        self.protected: Queue = OrderedDict()

    def hit(self, buffer: int) -> None:
        queue = self.probation if buffer in self.probation else self.protected
        self.protected[buffer] = queue.pop(buffer)
        while total(self.protected) > self.protected_share:
            demoted, nbytes = oldest(self.protected)
            self.probation[demoted] = nbytes

    def victim(self) -> int:
        return oldest(self.probation or self.protected)[0]

    def insert(self, buffer: int, nbytes: int) -> None:
        self.probation[buffer] = nbytes


class S3Fifo(Textbook):
    """Yang et al., SOSP 2023, algorithm 1; until the first eviction the main queue fills up, too."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.small: Queue = OrderedDict()
        self.main: Queue = OrderedDict()
        self.ghost: Queue = OrderedDict()
        self.frequency: dict[int, int] = {}
        self.has_evicted = False

    def hit(self, buffer: int) -> None:
        self.frequency[buffer] = min(self.frequency[buffer] + 1, 3)

    def miss(self, buffer: int) -> None:
        self.is_back = self.ghost.pop(buffer, None) is not None

    def victim(self) -> int:
        self.has_evicted = True
        while self.small and (total(self.small) > self.capacity // 10 or not self.main):
            victim = self._from_small()
            if victim is not None:
                return victim
        while True:
            buffer, nbytes = oldest(self.main)
            if not self.frequency[buffer]:
                return buffer
            self.frequency[buffer] -= 1
            self.main[buffer] = nbytes

    def _from_small(self) -> int | None:
        """Evict from the small queue, as far as it has anybody to evict."""
        while self.small:
            buffer, nbytes = oldest(self.small)
            if self.frequency[buffer] < 2:
                self.ghost[buffer] = nbytes
                while total(self.ghost) > self.capacity - self.capacity // 10:
                    oldest(self.ghost)
                return buffer
            self.main[buffer], self.frequency[buffer] = nbytes, 0
        return None

    def insert(self, buffer: int, nbytes: int) -> None:
        self.frequency[buffer] = 0
        fills_main = not self.has_evicted and total(self.small) >= self.capacity // 10
        (self.main if self.is_back or fills_main else self.small)[buffer] = nbytes


class WTinyLfu(Slru):
    """Einziger, Friedman and Manes 2017: a window of a hundredth, an SLRU behind it, counts that age."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.window_share = capacity // 100
        self.main_share = capacity - self.window_share
        self.protected_share = self.main_share // 5 * 4
        self.window: Queue = OrderedDict()
        self.counts: Counter[int] = Counter()
        self.accesses = 0

    def count(self, buffer: int) -> None:
        self.counts[buffer] += 1
        self.accesses += 1
        if self.accesses >= 10 * (len(self.window) + len(self.probation) + len(self.protected) + 1):
            self.counts = Counter({each: count // 2 for each, count in self.counts.items()})
            self.accesses //= 2

    def hit(self, buffer: int) -> None:
        self.count(buffer)
        if buffer in self.window:
            self.window.move_to_end(buffer)
        else:
            super().hit(buffer)

    def miss(self, buffer: int) -> None:
        self.count(buffer)

    def victim(self) -> int:
        if total(self.window) > self.window_share:
            newcomer, nbytes = oldest(self.window)
            if not self.probation or self.counts[newcomer] <= self.counts[next(iter(self.probation))]:
                return newcomer
            settled, _ = oldest(self.probation)
            self.probation[newcomer] = nbytes
            return settled
        return oldest(self.probation or self.protected or self.window)[0]

    def insert(self, buffer: int, nbytes: int) -> None:
        self.window[buffer] = nbytes
        while total(self.window) > self.window_share:
            first = next(iter(self.window))
            if total(self.probation) + total(self.protected) + self.window[first] > self.main_share:
                return
            self.probation[first] = self.window.pop(first)


class Gdsf(Textbook):
    """Cherkasova 1998: clock + accesses / bytes."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.clock = 0.0
        self.sizes: Queue = OrderedDict()
        self.uses: Counter[int] = Counter()
        self.priority: dict[int, float] = {}

    def hit(self, buffer: int) -> None:
        self.insert(buffer, self.sizes[buffer])

    def victim(self) -> int:
        buffer = min(self.sizes, key=self.priority.__getitem__)
        self.clock = self.priority[buffer]
        del self.sizes[buffer], self.uses[buffer]
        return buffer

    def insert(self, buffer: int, nbytes: int) -> None:
        self.sizes[buffer] = nbytes
        self.sizes.move_to_end(buffer)
        self.uses[buffer] += 1
        self.priority[buffer] = self.clock + self.uses[buffer] / nbytes


class Arc(Textbook):
    """Megiddo and Modha, FAST 2003, figure 4: for buffers of one byte."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.t1, self.t2, self.b1, self.b2 = (OrderedDict[int, int]() for _ in range(4))
        self.target = 0.0
        self.from_b2 = False
        self.drops_without_ghost = False

    def hit(self, buffer: int) -> None:
        (self.t1 if buffer in self.t1 else self.t2).pop(buffer)
        self.t2[buffer] = 1

    def miss(self, buffer: int) -> None:
        self.from_b2, self.is_back = buffer in self.b2, buffer in self.b1 or buffer in self.b2
        self.drops_without_ghost = False
        if buffer in self.b1:
            self.target = min(self.capacity, self.target + max(len(self.b2) / len(self.b1), 1))
        elif buffer in self.b2:
            self.target = max(0, self.target - max(len(self.b1) / len(self.b2), 1))
        elif len(self.t1) + len(self.b1) == self.capacity:
            self.drops_without_ghost = not self.b1
            if self.b1:
                oldest(self.b1)
        elif len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2) >= 2 * self.capacity and self.b2:
            oldest(self.b2)
        self.b1.pop(buffer, None)
        self.b2.pop(buffer, None)

    def victim(self) -> int:
        if self.drops_without_ghost:
            return oldest(self.t1)[0]
        exceeds = len(self.t1) > self.target or (self.from_b2 and len(self.t1) == self.target)
        queue, ghosts = (self.t1, self.b1) if self.t1 and exceeds else (self.t2, self.b2)
        buffer, ghosts[buffer] = oldest(queue)
        return buffer

    def insert(self, buffer: int, nbytes: int) -> None:
        (self.t2 if self.is_back else self.t1)[buffer] = nbytes


TEXTBOOK: dict[str, Callable[[int], Textbook]] = {
    "loop": Loop,
    "mru": Mru,
    "clock": Clock,
    "two_q": TwoQ,
    "slru": Slru,
    "s3fifo": S3Fifo,
    "wtinylfu": WTinyLfu,
    "gdsf": Gdsf,
}
