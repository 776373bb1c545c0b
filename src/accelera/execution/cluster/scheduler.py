"""Lease scheduler: one loop in one thread that hands out a batch's leases and collects their results."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from accelera.errors import ClusterError, PoisonTaskError, TransferError, UnknownOutcomeError
from accelera.execution.cluster.contract import (
    Cause,
    Cluster,
    Event,
    Handle,
    Lease,
    LeaseBroken,
    LeaseLost,
    LeasePart,
    Node,
    Range,
    UnreadableTasksError,
    first_unpicklable,
    node_seconds,
    pack,
    unpack,
)
from accelera.execution.executors.processes.errors import PickledError, unpack_error
from accelera.execution.tasks.balance import IndexSet
from accelera.execution.tasks.queue import DeviceKind, TaskQueue, TaskRange

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
        """Return whether the function's speed on ``node`` has been seen."""
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

    def may_queue_second(self, node: Node, nodes: Sequence[Node], remaining: int) -> bool:
        """Return whether enough tasks remain to queue a second lease on ``node`` while the first one runs."""
        return self.knows(node) and self.next(node, nodes, remaining) > 2 * LEAST_S * self._speeds[node.id]

    def is_short(self, node: Node, task_count: int) -> bool:
        """Return whether so few tasks are done sooner by one thread of ``node`` than by several."""
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


STRIKES: Final = 2
"""A task that killed so many processes is not tried again."""


@final
class PoisonQuarantine:
    """Poison tasks: at first it is unknown which task killed a process, so all in flight get one strike.

    They are run again one after the other, each logged before it begins; the task in flight when a process
    dies again is the guilty one. Not thread-safe.
    """

    def __init__(self) -> None:
        self._strikes: Counter[int] = Counter()
        self._waiting: deque[TaskRange] = deque()

    def take(self) -> TaskRange | None:
        """Return tasks to be run by themselves; None when there are none."""
        return self._waiting.popleft() if self._waiting else None

    def put(self, piece: TaskRange) -> None:
        """Have ``piece`` run by itself."""
        self._waiting.append(piece)

    def strike(self, under_way: Sequence[Range]) -> list[int]:
        """Give the tasks in flight when a process died a strike; return the indices that are guilty."""
        guilty = []
        for start, stop in under_way:
            self._strikes.update(range(start, stop))
            if stop - start == 1 and self._strikes[start] >= STRIKES:
                guilty.append(start)
        return guilty

    def has_strike(self, start: int, stop: int) -> bool:
        """Return whether any index from ``start`` up to ``stop`` has a strike."""
        return any(start <= index < stop for index in self._strikes)

    def __len__(self) -> int:
        """Return the number of pieces that wait to be run alone."""
        return len(self._waiting)


POLL_S: Final = 0.02
"""Seconds between two looks at whether the batch was stopped or more has come."""
GRACE_S: Final = 0.5
"""Seconds that leases of a stopped batch have to end by themselves."""
START_S: Final = 60.0
"""Seconds to wait for the first node."""

_LOGGER = logging.getLogger("accelera.execution")


@final
@dataclass(slots=True)
class _LeaseInFlight:
    """A lease submitted to a node and not ended."""

    node: Node
    piece: TaskRange
    left: IndexSet
    """Indices without a result so far."""
    alone: bool

    def part(self, start: int, stop: int) -> TaskRange:
        """Return the tasks from index ``start`` up to ``stop``."""
        return self.piece.part(start - self.piece.start, stop - self.piece.start)


@final
class LeaseScheduler:
    """Hands the tasks of ``queue`` to the nodes of ``cluster`` and collects their results.

    Parameters
    ----------
    function
        What ``cluster.put`` returned for the function of ``queue``.
    size
        What is known of the function's speed.
    """

    def __init__(self, cluster: Cluster, queue: TaskQueue, function: Any, size: LeaseSize) -> None:
        self._cluster = cluster
        self._queue = queue
        self._function = function
        self._size = size
        self._flights: dict[Handle, _LeaseInFlight] = {}
        self._quarantine = PoisonQuarantine()

    def run(self) -> None:
        """Return when nothing is left for the cluster, or the batch was stopped."""
        try:
            while not self._queue.stopped:
                self._submit_leases()
                if not self._flights and not self._submit_first_lease():
                    return
                self._receive_events(POLL_S)
        finally:
            self._cancel_leases()

    def _submit_leases(self) -> None:
        """Submit a lease to every node that has room, as long as tasks are available without waiting."""
        nodes = self._cluster.nodes()
        for node in nodes:
            busy = [flight for flight in self._flights.values() if flight.node.id == node.id]
            suspect = None if busy else self._quarantine.take()
            if suspect is not None:
                self._submit(node, suspect, alone=True)
                continue
            remaining = self._queue.remaining
            if not remaining or any(flight.alone for flight in busy):
                continue
            if len(busy) >= (2 if self._size.may_queue_second(node, nodes, remaining) else 1):
                continue
            piece = self._queue.take(DeviceKind.CPU, self._size.next(node, nodes, remaining), wait=False)
            if piece is not None:
                self._submit(node, piece)

    def _submit_first_lease(self) -> bool:
        """Wait for a node and for a task to give it; return False when no task is left."""
        nodes = self._awaited_nodes()
        if self._quarantine or not nodes:
            return True
        count = self._size.next(nodes[0], nodes, self._queue.remaining)
        piece = self._queue.take(DeviceKind.CPU, count)
        if piece is None:
            return False
        self._submit(nodes[0], piece)
        return True

    def _awaited_nodes(self) -> Sequence[Node]:
        until_s = time.monotonic() + START_S
        while not (nodes := self._cluster.nodes()) and not self._queue.stopped:
            if time.monotonic() > until_s:
                raise ClusterError(
                    f"[ray] no node took a task within {START_S:.0f} s: all of them are taken by others;"
                    f" look at `ray status`, or ask for less per node"
                )
            time.sleep(POLL_S)
        return nodes

    def _submit(self, node: Node, piece: TaskRange, *, alone: bool = False) -> None:
        piece = self._limit_bytes(piece)
        try:
            tasks = pack(piece.tasks)
        except Exception:
            self._fail_unpicklable(piece, node)
            return
        count = len(piece.tasks)
        if len(tasks) > LEASE_BYTES and count > 1:
            fewer = max(1, count * LEASE_BYTES // len(tasks))
            self._queue.give_back(piece.part(fewer, count))
            self._submit(node, piece.part(0, fewer), alone=alone)
            return
        lease = Lease(
            id=uuid.uuid4().hex,
            start=piece.start,
            count=count,
            tasks=tasks,
            function=self._function,
            limit_s=self._size.limit_s(node),
            retry=self._queue.retry,
            short=self._size.is_short(node, count),
            alone=alone,
            gpu=self._queue.uses_gpu,
            memory_per_task=self._queue.memory_per_task,
            reruns=self._queue.reruns,
        )
        flight = _LeaseInFlight(node, piece, IndexSet((piece.start, piece.stop)), alone)
        self._flights[self._cluster.submit(node, lease)] = flight

    def _limit_bytes(self, piece: TaskRange) -> TaskRange:
        """Return as much of ``piece`` as is not too many bytes, by its first task; the rest is given back."""
        try:
            count = max(1, LEASE_BYTES // len(pack(piece.tasks[0])))
        except Exception:
            count = 1
        if count >= len(piece.tasks):
            return piece
        self._queue.give_back(piece.part(count, len(piece.tasks)))
        return piece.part(0, count)

    def _fail_unpicklable(self, piece: TaskRange, node: Node) -> None:
        """Fail the first task that cannot be sent, and give back the others."""
        found = first_unpicklable(piece.tasks)
        if found is None:
            self._queue.give_back(piece)
            return
        position, error = found
        self._queue.fail(piece.start + position, error, node.name)
        for part in (piece.part(0, position), piece.part(position + 1, len(piece.tasks))):
            if part.tasks:
                self._queue.give_back(part)

    def _receive_events(self, timeout: float) -> None:
        for handle, event in self._cluster.wait_any(tuple(self._flights), timeout):
            if isinstance(event, LeasePart):
                self._deliver(self._flights[handle], event)
            if not isinstance(event, LeasePart) or event.last:
                self._end(self._flights.pop(handle), event)

    def _deliver(self, flight: _LeaseInFlight, part: LeasePart) -> None:
        brought: list[tuple[int, Sequence[Any]]] = []
        for start, outcomes in self._unpack_outcomes(flight, part):
            for low, high in flight.left.remove(start, start + len(outcomes)):
                brought.append((low, outcomes[low - start : high - start]))
        self._count_part(flight, part, brought)
        for low, each in brought:
            self._finish(low, each, flight.node)

    def _count_part(
        self, flight: _LeaseInFlight, part: LeasePart, brought: Sequence[tuple[int, Sequence[Any]]]
    ) -> None:
        """Count a part in telemetry before its outcomes are delivered; failed tasks are counted apart."""
        count = sum(len(outcomes) for _, outcomes in brought)
        done = sum(not isinstance(each, PickledError) for _, outcomes in brought for each in outcomes)
        for index, raised in part.retried:
            self._queue.telemetry.retried(index, unpack_error(raised, index, "ray"), flight.node.name)
        on_cpu = count if part.gpu is None else max(0, count - part.gpu.tasks)
        if count and not flight.alone:
            self._size.ran(flight.node, count, node_seconds(on_cpu, part.seconds, part.gpu))
        on_gpu = 0 if part.gpu is None else min(part.gpu.tasks, done)
        if on_cpu:
            self._queue.telemetry.ran(
                flight.node.name, done - on_gpu, part.seconds, whole=done == count, counted=True
            )
        if part.gpu is not None:
            part.gpu.tell(self._queue.telemetry, flight.node.name, flight.piece.start, on_gpu)

    def _unpack_outcomes(self, flight: _LeaseInFlight, part: LeasePart) -> Iterator[tuple[int, list[Any]]]:
        """Yield what can be unpickled here; have the tasks of the rest done again one by one, if they may."""
        for start, count, packed in part.outcomes:
            try:
                outcomes = unpack(packed)
            except Exception as error:
                for low, high in flight.left.remove(start, start + count):
                    if high - low > 1 and self._queue.reruns:
                        self._quarantine.put(flight.part(low, high))
                    else:
                        self._fail_unreadable(low, high, error, flight.node)
            else:
                yield start, outcomes

    def _fail_unreadable(self, start: int, stop: int, error: Exception, node: Node) -> None:
        for index in range(start, stop):
            why = TransferError(
                f"[ray] the output of task {index} cannot be unpickled here"
                f" ({type(error).__name__}: {error}): what it is made of must be installed as on {node.name}"
            )
            self._queue.fail(index, why, node.name)

    def _finish(self, start: int, outcomes: Sequence[Any], node: Node) -> None:
        if PickledError not in set(map(type, outcomes)):
            self._queue.finish(start, outcomes)
            return
        begin = 0
        for position in [place for place, each in enumerate(outcomes) if isinstance(each, PickledError)]:
            if begin < position:
                self._queue.finish(start + begin, outcomes[begin:position])
            index, begin = start + position, position + 1
            self._queue.fail(index, unpack_error(outcomes[position], index, "ray"), node.name)
        if begin < len(outcomes):
            self._queue.finish(start + begin, outcomes[begin:])

    def _end(self, flight: _LeaseInFlight, event: Event) -> None:
        """Requeue, quarantine or fail the tasks that an ended lease has no results of."""
        if isinstance(event, LeaseBroken) and isinstance(event.error, UnreadableTasksError):
            self._find_unreadable(flight, event.error)
        elif isinstance(event, LeaseBroken):
            error = ClusterError(
                f"[ray] {flight.node.name} cannot carry out a lease: {event.error}; what the function needs"
                f" must be installed on every node, in the same versions"
            )
            error.__cause__ = event.error
            self._queue.abort(error)
        if isinstance(event, LeaseLost):
            level = logging.DEBUG if event.cause is Cause.KILLED else logging.WARNING
            facts = flight.node.name, len(flight.left), event.reason
            _LOGGER.log(level, "%s lost a lease with %d tasks left: %s", *facts)
            self._handle_loss(flight, event)
        for start, stop in flight.left:
            piece = flight.part(start, stop)
            if self._quarantine.has_strike(start, stop):
                self._quarantine.put(piece)
            else:
                self._queue.give_back(piece)

    def _find_unreadable(self, flight: _LeaseInFlight, error: UnreadableTasksError) -> None:
        """Fail a task that its node cannot unpickle; of several find out which."""
        ranges = flight.left.halves()
        for start, stop in ranges:
            flight.left.remove(start, stop)
            if len(ranges) == 1:
                self._queue.fail(start, error, flight.node.name)
            else:
                self._quarantine.put(flight.part(start, stop))

    def _handle_loss(self, flight: _LeaseInFlight, lost: LeaseLost) -> None:
        """Fail tasks that must not run twice; quarantine those that may have killed the process."""
        if not self._queue.reruns:
            for start, stop in tuple(flight.left):
                flight.left.remove(start, stop)
                for index in range(start, stop):
                    self._queue.fail(
                        index, _unknown_outcome_error(index, flight.node, lost), flight.node.name
                    )
            return
        under_way = [each for start, stop in lost.under_way for each in flight.left.within(start, stop)]
        guessed = not under_way and lost.cause in (Cause.PROCESS, Cause.MEMORY)
        if guessed:
            under_way = flight.left.halves()
        certain = not guessed or len(flight.left) == 1
        guilty = self._quarantine.strike(under_way)
        for index in guilty if certain else ():
            flight.left.remove(index, index + 1)
            self._queue.fail(index, _poison_error(index, flight.node, lost), flight.node.name)
        for start, stop in under_way:
            for low, high in flight.left.remove(start, stop):
                self._quarantine.put(flight.part(low, high))

    def _cancel_leases(self) -> None:
        """Cancel the leases in flight, after ``GRACE_S`` by force, and requeue what is left of them."""
        for handle in self._flights:
            self._cluster.cancel(handle)
        until_s = time.monotonic() + GRACE_S
        while self._flights and time.monotonic() < until_s:
            self._receive_events(POLL_S)
        for handle in self._flights:
            self._cluster.cancel(handle, force=True)
        for flight in self._flights.values():
            for start, stop in flight.left:
                self._queue.give_back(flight.part(start, stop))
        for piece in iter(self._quarantine.take, None):
            self._queue.give_back(piece)


def _unknown_outcome_error(index: int, node: Node, lost: LeaseLost) -> UnknownOutcomeError:
    return UnknownOutcomeError(
        f"[ray] whether task {index} was done is not known: {node.name} was lost ({lost.reason}), and"
        f' rerun="never" lets nothing be begun twice'
    )


def _poison_error(index: int, node: Node, lost: LeaseLost) -> PoisonTaskError:
    what = "ran out of memory and was killed" if lost.cause is Cause.MEMORY else "died"
    return PoisonTaskError(
        f"[ray] task {index}: the process that ran it {what}, twice, the second time with no other task under"
        f" way (last on {node.name}: {lost.reason}); it is not tried again, the other tasks go on"
    )
