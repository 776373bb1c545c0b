"""Cluster protocol: nodes that take leases, report what they have done, and may die; and how these travel."""

from __future__ import annotations

import enum
import pickle
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import cloudpickle

from accelera.errors import TransferError
from accelera.execution.executors.processes.errors import PickledError, pack_error, unpack_error
from accelera.execution.kernel import name_of
from accelera.execution.observability.telemetry import Telemetry
from accelera.execution.tasks.retry import Retry

DeviceIncident = tuple[int, PickledError]
"""How many tasks an error of the device met, and the error."""


@final
class GpuReport(NamedTuple):
    """Work of a node's GPU since the previous part."""

    device: str
    """Its name on the node."""
    tasks: int
    """How many of the part's outcomes are its own."""
    seconds: float
    """In which it worked at them."""
    splits: Sequence[DeviceIncident] = ()
    """It ran out of memory, and went on with fewer tasks at once."""
    fallbacks: Sequence[DeviceIncident] = ()
    """Tasks that the node's processors took over."""

    def tell(self, telemetry: Telemetry, node: str, index: int, done: int) -> None:
        """Report to ``telemetry``, under the names of ``node`` and the device.

        ``index`` is a task of the lease; ``done``: how many of the GPU's tasks did not fail.
        """
        name = f"{node} {self.device}"
        if self.tasks:
            telemetry.ran(name, done, self.seconds, whole=done == self.tasks, counted=True)
        for count, raised in self.splits:
            telemetry.split(name, count, unpack_error(raised, index, "ray"))
        for count, raised in self.fallbacks:
            telemetry.fell_back(name, count, unpack_error(raised, index, "ray"))


def node_seconds(cpu_tasks: int, cpu_s: float, gpu: GpuReport | None) -> float:
    """Return the seconds in which a node does a part when both sides are as fast as they were, at once."""
    if gpu is None or not gpu.tasks:
        return cpu_s
    if not cpu_tasks:
        return gpu.seconds
    speed = cpu_tasks / max(cpu_s, 1e-9) + gpu.tasks / max(gpu.seconds, 1e-9)
    return (cpu_tasks + gpu.tasks) / speed


Range = tuple[int, int]
"""Indices from the first up to the second."""
Outcomes = Sequence[tuple[int, int, bytes]]
"""By first index: how many there are, and these outcomes as one pickled list."""
Handle = Hashable
"""Handle of a submitted lease."""


@final
@dataclass(frozen=True, slots=True)
class Node:
    """A machine that takes leases."""

    id: str
    name: str
    """As results and logs call it."""
    cpus: int
    """Tasks that it runs at once."""


@final
@dataclass(frozen=True, slots=True)
class Lease:
    """Tasks that follow one another, for one node and for a while."""

    id: str
    """No two leases ever have the same."""
    start: int
    """Index of the first task."""
    count: int
    tasks: bytes
    """The list of tasks, pickled."""
    function: Any
    """What ``Cluster.put`` returned for the pickled function."""
    limit_s: float
    """Seconds after which the node begins nothing more of it; the rest is given back."""
    retry: Retry | None = None
    """When a task that raised is tried again."""
    short: bool = False
    """Whether it is over before other threads would have begun."""
    alone: bool = False
    """Whether its tasks run one after the other, each noted before it begins: one of them may be poison."""
    gpu: bool = True
    """Whether the node's GPU may take part, if it has one."""
    memory_per_task: int = 0
    """Bytes that a task takes on a GPU; 0: not known."""
    reruns: bool = True
    """Whether a task at which a GPU failed may be begun again."""


@final
class UnreadableTasksError(TransferError):
    """The tasks of a lease cannot be unpickled on its node, or one of them; none was begun."""


@final
class LeasePart(NamedTuple):
    """Some of a lease is done."""

    outcomes: Outcomes
    """Outputs, or what was raised in their place."""
    seconds: float
    """That it took the node's processors, all of whose threads at work count as one."""
    retried: Sequence[tuple[int, PickledError]] = ()
    """Attempts that were followed by another: the index, and what was raised."""
    last: bool = False
    """Whether the lease is over with it; what no part brought was not begun."""
    gpu: GpuReport | None = None
    """What the node's GPU did of it; None where it has none."""


@final
class LeaseEnded(NamedTuple):
    """A lease is over without a last part."""


class Cause(enum.Enum):
    """Cause of a lost lease."""

    PROCESS = "process"
    """The process that worked on it died."""
    MEMORY = "memory"
    """It was killed because the node ran out of memory."""
    NODE = "node"
    """The node died, or cannot be reached."""
    KILLED = "killed"
    """It was killed by ``Cluster.cancel``, perhaps for the sake of another lease."""


@final
class LeaseLost(NamedTuple):
    """A lease ended, and it is not known what became of the rest."""

    cause: Cause
    reason: str
    under_way: Sequence[Range] = ()
    """Tasks that were being run when the process died; known only where its node is alive."""


@final
class LeaseBroken(NamedTuple):
    """The agent itself failed: it cannot load the function or the tasks, for one."""

    error: BaseException


Event = LeasePart | LeaseEnded | LeaseLost | LeaseBroken


@runtime_checkable
class Cluster(Protocol):
    """Nodes that take leases. Every method may be called from any thread."""

    def nodes(self) -> Sequence[Node]:
        """Return the nodes that take leases now; others may be on their way.

        Raises
        ------
        ClusterError
            When there is none, and none is on its way.
        """

    def submit(self, node: Node, lease: Lease) -> Handle:
        """Give ``node`` a lease; it is carried out once at most."""

    def wait_any(self, handles: Sequence[Handle], timeout: float) -> Sequence[tuple[Handle, Event]]:
        """Return what has come of some of the leases; nothing when the time is over.

        A last part, ``LeaseEnded``, ``LeaseLost`` or ``LeaseBroken`` is the last that is heard of a lease.
        """

    def cancel(self, handle: Handle, *, force: bool = False) -> None:
        """Begin no further task of a lease; with ``force`` kill the process that works on it."""

    def put(self, value: bytes) -> Any:
        """Keep ``value`` where every node finds it; return what stands for it."""

    def get(self, reference: Any) -> bytes:
        """Return what ``put`` kept."""

    def close(self) -> None:
        """Let go of the nodes."""


Done = list[tuple[int, list[Any]]]
"""Pairs of a first index and the outcomes from there on: outputs, or ``PickledError``."""


def pack(value: Any) -> bytes:
    """Return ``value`` pickled; functions of a notebook or a script go along by value."""
    packed: bytes = cloudpickle.dumps(value)
    return packed


def unpack(packed: bytes) -> Any:
    """Return what was packed."""
    return pickle.loads(packed)


def unpack_tasks(lease: Lease) -> Sequence[Any]:
    """Return the tasks of ``lease``.

    Raises
    ------
    UnreadableTasksError
        When one of them cannot be unpickled.
    """
    try:
        tasks: Sequence[Any] = unpack(lease.tasks)
    except Exception as error:
        raise UnreadableTasksError(
            f"[ray] a task cannot be unpickled on its node ({type(error).__name__}: {error}): what it is made"
            f" of must be installed there as here"
        ) from error
    return tasks


def last_line(error: object) -> str:
    """Return the last line of ``error``, without causes that Ray guesses; its type where it has no text."""
    lines = str(error).strip().splitlines()
    return lines[-1].partition(" Some common causes")[0].strip() if lines else type(error).__name__


def pack_function(function: Callable[..., Any]) -> bytes:
    """Return ``function`` pickled.

    Raises
    ------
    TransferError
        When it cannot be.
    """
    try:
        return pack(function)
    except Exception as error:
        raise TransferError(
            f"[ray] {name_of(function)} cannot be sent to other machines ({type(error).__name__}: {error}):"
            f" whatever it refers to must be picklable; open files, locks and connections inside the function"
        ) from error


def pack_outcomes(done: Done) -> list[tuple[int, int, bytes]]:
    """Return outcomes pickled; one that cannot be is replaced by an error that says why."""
    return [(start, len(outcomes), _pack_outcomes(outcomes)) for start, outcomes in done]


def _pack_outcomes(outcomes: list[Any]) -> bytes:
    try:
        return pack(outcomes)
    except Exception:
        return pack([_or_pickling_error(each) for each in outcomes])


def first_unpicklable(tasks: Sequence[Any]) -> tuple[int, TransferError] | None:
    """Return the position of the first task that cannot be pickled, and why."""
    for position, task in enumerate(tasks):
        why = _pickling_fault(task)
        if why is not None:
            return position, TransferError(f"[ray] a task cannot be sent to another machine: {why}")
    return None


def _or_pickling_error(outcome: Any) -> Any:
    why = _pickling_fault(outcome)
    if why is None:
        return outcome
    return pack_error(TransferError(f"[ray] the output of a task cannot be sent back: {why}"))


def _pickling_fault(value: Any) -> str | None:
    try:
        pack(value)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
