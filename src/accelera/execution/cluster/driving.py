"""One batch on a cluster, from the side that hands out leases: one loop in one thread."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from accelera.errors import ClusterError, PoisonTaskError, TransferError, UnknownOutcomeError
from accelera.execution.cluster.contract import (
    Broken,
    Cause,
    Cluster,
    Event,
    Handle,
    Lease,
    Lost,
    Node,
    Part,
    UnreadableTasksError,
)
from accelera.execution.cluster.on_gpu import together_s
from accelera.execution.cluster.packing import first_that_cannot, pack, unpack
from accelera.execution.cluster.ranges import Ranges
from accelera.execution.cluster.sizing import LEASE_BYTES, LeaseSize
from accelera.execution.cluster.suspects import Suspects
from accelera.execution.executors.workers.raised import Raised, unpack_error
from accelera.execution.work.contract import Work
from accelera.execution.work.cpu_only import CpuOnlyWork
from accelera.execution.work.pieces import Piece, Side

POLL_S: Final = 0.02
"""Seconds between two looks at whether the batch was stopped or more has come."""
GRACE_S: Final = 0.5
"""Seconds that leases of a stopped batch have to end by themselves."""
START_S: Final = 60.0
"""Seconds to wait for the first node."""

_LOGGER = logging.getLogger("accelera.execution")


@final
@dataclass(slots=True)
class _Flight:
    """A lease on its way."""

    node: Node
    piece: Piece
    left: Ranges
    """What has not been brought back."""
    alone: bool

    def part(self, start: int, stop: int) -> Piece:
        """Return the tasks from index ``start`` up to ``stop``."""
        return self.piece.part(start - self.piece.start, stop - self.piece.start)


@final
class Drive:
    """Hands the tasks of ``work`` to the nodes of ``cluster`` and brings back what comes of them.

    Parameters
    ----------
    function
        What ``cluster.put`` returned for the function of ``work``.
    size
        What is known of the function's speed.
    """

    def __init__(self, cluster: Cluster, work: Work, function: Any, size: LeaseSize) -> None:
        self._cluster = cluster
        self._work = work
        self._function = function
        self._size = size
        self._flights: dict[Handle, _Flight] = {}
        self._suspects = Suspects()

    def run(self) -> None:
        """Return when nothing is left for the cluster, or the batch was stopped."""
        try:
            while not self._work.stopped:
                self._hand_out()
                if not self._flights and not self._hand_out_first():
                    return
                self._hear(POLL_S)
        finally:
            self._recall()

    def _hand_out(self) -> None:
        """Give every node that has room a lease, as far as there is something to take now."""
        nodes = self._cluster.nodes()
        for node in nodes:
            busy = [flight for flight in self._flights.values() if flight.node.id == node.id]
            suspect = None if busy else self._suspects.take()
            if suspect is not None:
                self._submit(node, suspect, alone=True)
                continue
            remaining = self._work.remaining
            if not remaining or any(flight.alone for flight in busy):
                continue
            if len(busy) >= (2 if self._size.is_ahead(node, nodes, remaining) else 1):
                continue
            piece = self._work.take(Side.CPU, self._size.next(node, nodes, remaining), wait=False)
            if piece is not None:
                self._submit(node, piece)

    def _hand_out_first(self) -> bool:
        """Wait for something to take and for a node to give it to; return whether there was both."""
        nodes = self._awaited_nodes()
        if self._suspects or not nodes:
            return True
        count = self._size.next(nodes[0], nodes, self._work.remaining)
        piece = self._work.take(Side.CPU, count)
        if piece is None:
            return False
        self._submit(nodes[0], piece)
        return True

    def _awaited_nodes(self) -> Sequence[Node]:
        until_s = time.monotonic() + START_S
        while not (nodes := self._cluster.nodes()) and not self._work.stopped:
            if time.monotonic() > until_s:
                raise ClusterError(
                    f"[ray] no node took a task within {START_S:.0f} s: all of them are taken by others;"
                    f" look at `ray status`, or ask for less per node"
                )
            time.sleep(POLL_S)
        return nodes

    def _submit(self, node: Node, piece: Piece, *, alone: bool = False) -> None:
        piece = self._fitting(piece)
        try:
            tasks = pack(piece.tasks)
        except Exception:
            self._refuse(piece, node)
            return
        count = len(piece.tasks)
        if len(tasks) > LEASE_BYTES and count > 1:
            fewer = max(1, count * LEASE_BYTES // len(tasks))
            self._work.give_back(piece.part(fewer, count))
            self._submit(node, piece.part(0, fewer), alone=alone)
            return
        lease = Lease(
            id=uuid.uuid4().hex,
            start=piece.start,
            count=count,
            tasks=tasks,
            function=self._function,
            limit_s=self._size.limit_s(node),
            retry=self._work.retry,
            short=self._size.is_short(node, count),
            alone=alone,
            gpu=not isinstance(self._work, CpuOnlyWork),
            memory_per_task=self._work.memory_per_task,
            reruns=self._work.reruns,
        )
        flight = _Flight(node, piece, Ranges((piece.start, piece.stop)), alone)
        self._flights[self._cluster.submit(node, lease)] = flight

    def _fitting(self, piece: Piece) -> Piece:
        """Return as much of ``piece`` as is not too many bytes, by its first task; the rest is given back."""
        try:
            count = max(1, LEASE_BYTES // len(pack(piece.tasks[0])))
        except Exception:
            count = 1
        if count >= len(piece.tasks):
            return piece
        self._work.give_back(piece.part(count, len(piece.tasks)))
        return piece.part(0, count)

    def _refuse(self, piece: Piece, node: Node) -> None:
        """Fail the first task that cannot be sent, and give back the others."""
        found = first_that_cannot(piece.tasks)
        if found is None:
            self._work.give_back(piece)
            return
        position, error = found
        self._work.fail(piece.start + position, error, node.name)
        for part in (piece.part(0, position), piece.part(position + 1, len(piece.tasks))):
            if part.tasks:
                self._work.give_back(part)

    def _hear(self, timeout_s: float) -> None:
        for handle, event in self._cluster.wait_any(tuple(self._flights), timeout_s):
            if isinstance(event, Part):
                self._bring(self._flights[handle], event)
            if not isinstance(event, Part) or event.last:
                self._end(self._flights.pop(handle), event)

    def _bring(self, flight: _Flight, part: Part) -> None:
        brought: list[tuple[int, Sequence[Any]]] = []
        for start, outcomes in self._unpacked(flight, part):
            for low, high in flight.left.remove(start, start + len(outcomes)):
                brought.append((low, outcomes[low - start : high - start]))
        self._tell(flight, part, brought)
        for low, each in brought:
            self._finish(low, each, flight.node)

    def _tell(self, flight: _Flight, part: Part, brought: Sequence[tuple[int, Sequence[Any]]]) -> None:
        """Let whoever watches know what is brought next; what failed counts for the node by itself."""
        count = sum(len(outcomes) for _, outcomes in brought)
        done = sum(not isinstance(each, Raised) for _, outcomes in brought for each in outcomes)
        for index, raised in part.retried:
            self._work.watch.retried(index, unpack_error(raised, index, "ray"), flight.node.name)
        on_cpu = count if part.gpu is None else max(0, count - part.gpu.tasks)
        if count and not flight.alone:
            self._size.ran(flight.node, count, together_s(on_cpu, part.seconds, part.gpu))
        on_gpu = 0 if part.gpu is None else min(part.gpu.tasks, done)
        if on_cpu:
            self._work.watch.ran(flight.node.name, done - on_gpu, part.seconds, whole=done == count)
        if part.gpu is not None:
            part.gpu.tell(self._work.watch, flight.node.name, flight.piece.start, on_gpu)

    def _unpacked(self, flight: _Flight, part: Part) -> Iterator[tuple[int, list[Any]]]:
        """Yield what can be unpickled here; have the tasks of the rest done again one by one, if they may."""
        for start, count, packed in part.outcomes:
            try:
                outcomes = unpack(packed)
            except Exception as error:
                for low, high in flight.left.remove(start, start + count):
                    if high - low > 1 and self._work.reruns:
                        self._suspects.put(flight.part(low, high))
                    else:
                        self._unreadable(low, high, error, flight.node)
            else:
                yield start, outcomes

    def _unreadable(self, start: int, stop: int, error: Exception, node: Node) -> None:
        for index in range(start, stop):
            why = TransferError(
                f"[ray] the output of task {index} cannot be unpickled here"
                f" ({type(error).__name__}: {error}): what it is made of must be installed as on {node.name}"
            )
            self._work.fail(index, why, node.name)

    def _finish(self, start: int, outcomes: Sequence[Any], node: Node) -> None:
        if Raised not in set(map(type, outcomes)):
            self._work.finish(start, outcomes)
            return
        begin = 0
        for position in [place for place, each in enumerate(outcomes) if isinstance(each, Raised)]:
            if begin < position:
                self._work.finish(start + begin, outcomes[begin:position])
            index, begin = start + position, position + 1
            self._work.fail(index, unpack_error(outcomes[position], index, "ray"), node.name)
        if begin < len(outcomes):
            self._work.finish(start + begin, outcomes[begin:])

    def _end(self, flight: _Flight, event: Event) -> None:
        """See to what a lease that is over has not brought back."""
        if isinstance(event, Broken) and isinstance(event.error, UnreadableTasksError):
            self._find_unreadable(flight, event.error)
        elif isinstance(event, Broken):
            error = ClusterError(
                f"[ray] {flight.node.name} cannot carry out a lease: {event.error}; what the function needs"
                f" must be installed on every node, in the same versions"
            )
            error.__cause__ = event.error
            self._work.break_down(error)
        if isinstance(event, Lost):
            level = logging.DEBUG if event.cause is Cause.KILLED else logging.WARNING
            facts = flight.node.name, len(flight.left), event.reason
            _LOGGER.log(level, "%s lost a lease with %d tasks left: %s", *facts)
            self._lost(flight, event)
        for start, stop in flight.left:
            piece = flight.part(start, stop)
            if self._suspects.is_one(start, stop):
                self._suspects.put(piece)
            else:
                self._work.give_back(piece)

    def _find_unreadable(self, flight: _Flight, error: UnreadableTasksError) -> None:
        """Fail a task that its node cannot unpickle; of several find out which."""
        ranges = flight.left.halves()
        for start, stop in ranges:
            flight.left.remove(start, stop)
            if len(ranges) == 1:
                self._work.fail(start, error, flight.node.name)
            else:
                self._suspects.put(flight.part(start, stop))

    def _lost(self, flight: _Flight, lost: Lost) -> None:
        """Fail what must not be begun again, and set suspects apart."""
        if not self._work.reruns:
            for start, stop in tuple(flight.left):
                flight.left.remove(start, stop)
                for index in range(start, stop):
                    self._work.fail(index, _unknown(index, flight.node, lost), flight.node.name)
            return
        under_way = [each for start, stop in lost.under_way for each in flight.left.within(start, stop)]
        guessed = not under_way and lost.cause in (Cause.PROCESS, Cause.MEMORY)
        if guessed:
            under_way = flight.left.halves()
        certain = not guessed or len(flight.left) == 1
        guilty = self._suspects.strike(under_way)
        for index in guilty if certain else ():
            flight.left.remove(index, index + 1)
            self._work.fail(index, _poison(index, flight.node, lost), flight.node.name)
        for start, stop in under_way:
            for low, high in flight.left.remove(start, stop):
                self._suspects.put(flight.part(low, high))

    def _recall(self) -> None:
        """End what is still under way, when the batch was stopped."""
        for handle in self._flights:
            self._cluster.cancel(handle)
        until_s = time.monotonic() + GRACE_S
        while self._flights and time.monotonic() < until_s:
            self._hear(POLL_S)
        for handle in self._flights:
            self._cluster.cancel(handle, force=True)
        for flight in self._flights.values():
            for start, stop in flight.left:
                self._work.give_back(flight.part(start, stop))
        for piece in iter(self._suspects.take, None):
            self._work.give_back(piece)


def _unknown(index: int, node: Node, lost: Lost) -> UnknownOutcomeError:
    return UnknownOutcomeError(
        f"[ray] whether task {index} was done is not known: {node.name} was lost ({lost.reason}), and"
        f' rerun="never" lets nothing be begun twice'
    )


def _poison(index: int, node: Node, lost: Lost) -> PoisonTaskError:
    what = "ran out of memory and was killed" if lost.cause is Cause.MEMORY else "died"
    return PoisonTaskError(
        f"[ray] task {index}: the process that ran it {what}, twice, the second time with no other task under"
        f" way (last on {node.name}: {lost.reason}); it is not tried again, the other tasks go on"
    )
