"""``RayCluster``: the nodes of a Ray cluster as they take leases."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from accelera.execution.cluster.contract import (
    Cause,
    Event,
    Handle,
    Lease,
    LeaseBroken,
    LeaseEnded,
    LeaseLost,
    Node,
)
from accelera.execution.cluster.ray_agents import AgentResources, RayAgents, StartedAgent
from accelera.execution.cluster.ray_connection import (
    UseCount,
    check_connected,
    closed_error,
    connect,
    death_reason,
    import_ray,
    is_memory_shortage,
    without_auto_init,
)
from accelera.execution.executors.lanes import Closeable

if TYPE_CHECKING:
    from accelera.execution.cluster.training.rank import Rank
    from accelera.execution.cluster.training.trainer import TrainingRun


@final
@dataclass(eq=False, slots=True)
class _SubmittedLease:
    """A lease submitted to an agent."""

    agent: StartedAgent | None
    lease: Lease
    awaited: Any
    """Ray reference to wait for: the stream of parts, or the tasks in flight when the agent died."""
    over: LeaseLost | LeaseEnded | None = None
    """Set when the agent is dead, or there was none."""


@final
class RayCluster(Closeable):
    """A connection to a Ray cluster that runs already.

    Parameters
    ----------
    address
        ``"HOST:6379"``; None: the cluster that the program is connected to, that RAY_ADDRESS names, or that
        this machine is part of.
    num_cpus
        Tasks at once on every node, and processors to reserve for them; None: as many as the node has, and
        none reserved.
    num_gpus
        GPUs to reserve on every node, or a fraction of one; nodes that have less take no part.
    resources
        Other resources of Ray to reserve on every node.
    device
        What computes beside the processors of every node: see ``RayExecutor``.

    Raises
    ------
    BackendMissingError
        When Ray is not installed.
    ClusterError
        When no cluster answers, or its versions are others.
    UnknownNameError
        When no device is called so.
    TypeError, ValueError
        For what is no amount, or when a GPU is named and none reserved.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        num_cpus: int | None = None,
        num_gpus: float = 0.0,
        resources: dict[str, float] | None = None,
        device: str | None = None,
    ) -> None:
        wanted = AgentResources(num_cpus, num_gpus, {} if resources is None else resources, device)
        self.node_device = device if wanted.uses_gpu else "cpu"
        """Name of what nodes compute on; None: the first GPU that is reserved, if any."""
        self._ray = import_ray()
        self._connected = connect(self._ray, address)
        self._agents = RayAgents(self._ray, wanted)
        self._connection = UseCount()
        self._disconnected: Sequence[_SubmittedLease] = ()
        """Kept, as Ray ends a process that drops a stream of parts while the connection is being closed."""
        self._closed = False

    def nodes(self) -> Sequence[Node]:
        """Return the nodes whose agents answer; agents are started on those that have none.

        Raises
        ------
        ClusterError
            When no node has what is asked for, or runs the same versions.
        """
        with self._connection.using():
            self._check_open()
            return self._agents.ready()

    def submit(self, node: Node, lease: Lease) -> Handle:
        """Give ``node`` a lease; Ray never begins it again."""
        agent = self._agents.of(node)
        if agent is None:
            return _SubmittedLease(None, lease, None, LeaseEnded())
        with self._connection.using():
            check_connected(self._ray)
            return self._submit_to(agent, lease)

    def _submit_to(self, agent: StartedAgent, lease: Lease) -> _SubmittedLease:
        run = agent.actor.run.options(num_returns="streaming", concurrency_group="leases", max_task_retries=0)
        return _SubmittedLease(agent, lease, run.remote(lease))

    def wait_any(self, handles: Sequence[Handle], timeout: float) -> Sequence[tuple[Handle, Event]]:
        """Return what has come of some of the leases; nothing when the time is over."""
        sent = [each for each in handles if isinstance(each, _SubmittedLease)]
        try:
            with self._connection.using():
                heard = self._collect_events(sent, timeout) if self._ray.is_initialized() else ()
        except (self._ray.exceptions.RayError, SystemExit):  # which Ray raises in threads of whoever lets go
            if self._ray.is_initialized():
                raise
        if self._ray.is_initialized():
            return heard
        self._disconnected = (*self._disconnected, *sent)
        return [(each, LeaseLost(Cause.NODE, "the connection to the cluster was closed")) for each in sent]

    def _collect_events(
        self, sent: Sequence[_SubmittedLease], timeout: float
    ) -> Sequence[tuple[Handle, Event]]:
        gone: list[tuple[Handle, Event]] = [
            (each, each.over) for each in sent if each.awaited is None and each.over is not None
        ]
        if gone or not sent:
            time.sleep(0 if gone else timeout)
            return gone
        awaited = list(dict.fromkeys(each.awaited for each in sent))
        wait = without_auto_init(self._ray.wait)
        ready, others = wait(awaited, num_returns=1, timeout=timeout)
        if ready and others:
            ready += wait(others, num_returns=len(others), timeout=0)[0]
        if not self._ray.is_initialized():
            return ()
        heard = [(each, self._event(each)) for each in sent if each.awaited in ready]
        return [(each, event) for each, event in heard if event is not None]

    def cancel(self, handle: Handle, *, force: bool = False) -> None:
        """Begin no further task of a lease; with ``force`` kill the agent that works on it."""
        assert isinstance(handle, _SubmittedLease), "a handle of this cluster"
        if handle.agent is None or handle.over is not None:
            return
        with self._connection.using():
            if self._ray.is_initialized():
                self._stop_lease(handle.agent, handle.lease, force=force)

    def _stop_lease(self, agent: StartedAgent, lease: Lease, *, force: bool) -> None:
        if force:
            agent.killed = True
            self._ray.kill(agent.actor)
            self._ask_in_flight(agent, lease)
        else:
            agent.actor.stop.options(concurrency_group="control").remote(lease.id)

    def put(self, value: bytes) -> Any:
        """Keep ``value`` in the object store."""
        self._check_open()
        return self._ray.put(value)

    def get(self, reference: Any) -> bytes:
        """Return what ``put`` kept."""
        self._check_open()
        found: bytes = self._ray.get(reference)
        return found

    def train(
        self,
        function: Callable[[Rank], None],
        *,
        ranks: int = 2,
        storage: str | os.PathLike[str],
        name: str | None = None,
        max_failures: int = 3,
        keep: int = 2,
        num_cpus: float = 1,
        num_gpus: float = 0,
        resources: dict[str, float] | None = None,
    ) -> TrainingRun:
        """Train a model in several processes, and go on with the same bits when one of them dies.

        ``function`` is called in each with its ``Rank``: it makes the model, loops over ``rank.steps(...)``
        and averages gradients. Ray Train starts the processes, and all of them again when one was lost.

        Parameters
        ----------
        function
            Sent to the ranks by value; what it imports must be installed there.
        ranks
            How many processes.
        storage
            A directory that all machines of the cluster see, made where only its last folder is missing;
            checkpoints are kept in ``storage/name``.
        name
            Of the training: where there is one of this name, it is gone on with. None: a new one by the time.
        max_failures
            How often the ranks are started again, whether a process died or ``function`` raised.
        keep
            Checkpoints that are kept, the last ones.
        num_cpus, num_gpus, resources
            What each rank reserves of its node; as many threads of PyTorch as processors.

        Raises
        ------
        BackendMissingError
            When Ray Train is not there.
        ClusterError
            When the connection was closed, the cluster has no room for the ranks, or ranks died more often
            than ``max_failures``.
        StoreError
            When ``storage`` cannot be written, or a rank does not see it.
        TransferError
            When ``function`` cannot be sent.
        TypeError
            For what is no function, no number, no path, or no name.
        ValueError
            For numbers or a name that make no sense, ranks that reserve nothing, another number of ranks than
            the training of this name has, or a function without steps.
        Exception
            What ``function`` raised, with the rank and the traceback in a note.
        """
        from accelera.execution.cluster.training.trainer import Ranks, train

        self._check_open()
        wanted = Ranks(ranks, num_cpus, num_gpus, {} if resources is None else resources)
        return train(
            self._ray,
            function,
            wanted,
            storage=storage,
            name=name,
            max_failures=max_failures,
            keep=keep,
        )

    def close(self) -> None:
        """End the agents, and the connection if it was made here."""
        self._closed = True
        self._agents.close()
        with self._connection.ending():
            if self._connected and self._ray.is_initialized():
                self._ray.shutdown()

    def _check_open(self) -> None:
        if self._closed:
            raise closed_error()
        check_connected(self._ray)

    def _event(self, sent: _SubmittedLease) -> Event | None:
        """Return the next event of a lease whose reference is ready; None when there is more to wait for."""
        if isinstance(sent.over, LeaseLost):
            return self._with_in_flight(sent, sent.over)
        try:
            event: Event = without_auto_init(self._ray.get)(next(sent.awaited))
            return event
        except StopIteration:
            return LeaseEnded()
        except self._ray.exceptions.RayTaskError as error:
            return LeaseBroken(error.cause or error)
        except self._ray.exceptions.RayError as error:
            return self._diagnose(sent, error)

    def _diagnose(self, sent: _SubmittedLease, error: Exception) -> Event | None:
        """Return why a lease was lost, or None after asking the node's new agent for the tasks in flight."""
        agent = sent.agent
        if not self._ray.is_initialized():
            return None
        assert agent is not None, "a lease with a stream of parts has an agent"
        reason = death_reason(self._ray, error)
        if agent.killed:
            return LeaseLost(Cause.KILLED, "it was killed to stop it")
        if "node has died" in str(error) or isinstance(error, self._ray.exceptions.NodeDiedError):
            self._agents.forget(agent)
            return LeaseLost(Cause.NODE, reason)
        out_of_memory = is_memory_shortage(self._ray, error)
        sent.over = LeaseLost(Cause.MEMORY if out_of_memory else Cause.PROCESS, reason)
        sent.awaited = self._ask_in_flight(agent, sent.lease, out_of_memory=out_of_memory)
        return None

    def _ask_in_flight(self, agent: StartedAgent, lease: Lease, *, out_of_memory: bool = False) -> Any:
        """Return a reference to the tasks in flight when a lease's agent died; None if nobody can answer."""
        replacement = self._agents.replacement(agent, out_of_memory=out_of_memory)
        return (
            None
            if replacement is None
            else replacement.in_flight_of.options(concurrency_group="control").remote(lease.id)
        )

    def _with_in_flight(self, sent: _SubmittedLease, lost: LeaseLost) -> LeaseLost:
        try:
            return lost._replace(under_way=tuple(without_auto_init(self._ray.get)(sent.awaited)))
        except self._ray.exceptions.RayError:
            return lost._replace(cause=Cause.NODE)
