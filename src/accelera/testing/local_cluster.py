"""Cluster of agents in this process, for tests of leases without Ray."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from accelera.execution._internal import Agent, Event, Lease, LeaseBroken, LeaseEnded, LeaseLost, Node

LeaseFault = Callable[[int, Lease], LeaseLost | None]
"""Function of a lease's number and the lease: returns how it is lost; None: it is carried out."""


class LocalCluster:
    """A ``Cluster`` whose nodes are agents in this process.

    Parameters
    ----------
    count
        Number of nodes, of two processors each.
    dies
        Called with the number of a lease, from 1, and the lease; what it returns is how the lease is lost.
    """

    def __init__(self, count: int = 2, dies: LeaseFault = lambda number, lease: None) -> None:
        self._nodes = [Node(f"n{number}", f"node {number}", 2) for number in range(count)]
        self._agents = {node.id: Agent(2) for node in self._nodes}
        self._events: queue.Queue[tuple[Any, Event]] = queue.Queue()
        self._dies = dies
        self.leases: list[Lease] = []
        """All leases that were submitted."""
        self.kept: list[bytes] = []
        """All that was put into the cluster."""

    def nodes(self) -> Sequence[Node]:
        """Return the nodes."""
        return self._nodes

    def submit(self, node: Node, lease: Lease) -> Any:
        """Give ``node`` a lease, or lose it."""
        self.leases.append(lease)
        lost = self._dies(len(self.leases), lease)
        threading.Thread(target=self._run, args=(node, lease, lost), daemon=True).start()
        return lease.id

    def wait_any(self, handles: Sequence[Any], timeout: float) -> list[tuple[Any, Event]]:
        """Return the next event."""
        try:
            return [self._events.get(timeout=timeout)]
        except queue.Empty:
            return []

    def cancel(self, handle: Any, *, force: bool = False) -> None:
        """Begin nothing more of a lease."""
        for agent in self._agents.values():
            agent.stop(handle)

    def put(self, value: bytes) -> bytes:
        """Keep ``value``."""
        self.kept.append(value)
        return value

    def get(self, reference: Any) -> bytes:
        """Return what ``put`` kept."""
        return bytes(reference)

    def close(self) -> None:
        """Let go of the nodes."""
        self._nodes = []

    def _run(self, node: Node, lease: Lease, lost: LeaseLost | None) -> None:
        if lost is not None:
            self._events.put((lease.id, lost))
            return
        try:
            last = False
            for part in self._agents[node.id].run(lease):
                self._events.put((lease.id, part))
                last = part.last
            if not last:
                self._events.put((lease.id, LeaseEnded()))
        except Exception as error:
            self._events.put((lease.id, LeaseBroken(error)))
