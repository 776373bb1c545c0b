"""How many tasks a lease has: long enough to be worth shipping, short enough to share the rest evenly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, final

from accelera.execution.cluster.contract import Node

LEAST_S: Final = 0.1
"""Seconds of work in a lease, at least; only the last ones are shorter."""
SHORT_S: Final = 0.005
"""A lease that takes one thread so many seconds is not worth more of them."""
SHORTEST_S: Final = 0.02
"""Seconds of work in the last leases, about ten times what it takes to hand one out."""
MOST_S: Final = 0.5
"""Seconds of work in a lease, at most, as far as is foreseen."""
TRIAL_S: Final = 0.25
"""A lease of tasks whose length is not known is given back after so many seconds."""
LIMIT_S: Final = 1.0
"""Any other lease is given back after so many."""
LEASE_BYTES: Final = 32 << 20
"""Bytes of tasks in a lease, at most; a single task may be larger."""
SMOOTHING: Final = 0.5
"""Weight of the newest figure in a node's speed."""


@final
class LeaseSize:
    """Guided self-scheduling: half of a node's share of what remains, between two lengths of time.

    What is learned of a function's speed on each node stays for the next batch. Not thread-safe.
    """

    def __init__(self) -> None:
        self._speeds: dict[str, float] = {}

    def knows(self, node: Node) -> bool:
        """Whether the function's speed on ``node`` has been seen."""
        return node.id in self._speeds

    def next(self, node: Node, nodes: Sequence[Node], remaining: int) -> int:
        """Return how many of the ``remaining`` tasks ``node`` takes, at least 1."""
        share = remaining * self._speed(node) / max(sum(self._speed(each) for each in nodes), 1e-30)
        guided = math.ceil(share / 2)
        if self.knows(node):
            speed = self._speeds[node.id]
            least = max(min(int(LEAST_S * speed), math.ceil(share)), int(SHORTEST_S * speed))
            guided = min(max(guided, least), int(MOST_S * speed))
        return max(guided, min(node.cpus, math.ceil(share)), 1)

    def is_ahead(self, node: Node, nodes: Sequence[Node], remaining: int) -> bool:
        """Whether so much remains that ``node`` may have a second lease waiting while it is at the first."""
        return self.knows(node) and self.next(node, nodes, remaining) > 2 * LEAST_S * self._speeds[node.id]

    def is_short(self, node: Node, task_count: int) -> bool:
        """Whether one thread of ``node`` does so many tasks sooner than several could share them."""
        return self.knows(node) and task_count < SHORT_S * self._speeds[node.id] / node.cpus

    def limit_s(self, node: Node) -> float:
        """Return the seconds after which a lease is given back."""
        return LIMIT_S if self.knows(node) else TRIAL_S

    def ran(self, node: Node, task_count: int, seconds: float) -> None:
        """Learn from a part of a lease."""
        speed = task_count / max(seconds, 1e-6)
        known = self._speeds.get(node.id, speed)
        self._speeds[node.id] = known + SMOOTHING * (speed - known)

    def _speed(self, node: Node) -> float:
        """Return tasks per second; for a node not seen yet that of the others, by the number of cores."""
        if self.knows(node) or not self._speeds:
            return self._speeds.get(node.id, float(node.cpus))
        return sum(self._speeds.values()) / len(self._speeds)
