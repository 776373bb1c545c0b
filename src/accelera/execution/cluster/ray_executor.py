"""``RayExecutor``: batches of work on the nodes of a Ray cluster."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, final

from accelera.execution.cluster.contract import Cluster
from accelera.execution.cluster.futures import LaneExecutor
from accelera.execution.cluster.ray_cluster import RayCluster
from accelera.execution.cluster.ray_connection import closed_error
from accelera.execution.cluster.scheduler import LeaseScheduler, LeaseSize
from accelera.execution.cluster.serialization import pack_function
from accelera.execution.executors.contract import Closeable
from accelera.execution.executors.lanes import outputs_of
from accelera.execution.kernel import name_of
from accelera.execution.tasks.queue import TaskQueue
from accelera.execution.tasks.run import run_lane

FUNCTIONS_KEPT: Final = 16
"""Functions of earlier batches that need not be shipped again."""


@final
class RayExecutor(Closeable):
    """Runs tasks on a Ray cluster that runs already: ``StrategyManager(cpu=RayExecutor())``.

    Every node has one agent, which runs as many tasks at once as the node has processors, on threads; where
    GPUs are reserved, the first of them takes from the same tasks, and the processors do what it fails at.
    Agents stay until ``close``. Tasks, outputs and functions travel pickled; a function is shipped to a node
    once.

    Parameters
    ----------
    address
        ``"HOST:6379"``, a ``Cluster``, or None: the cluster that the program is connected to, that
        RAY_ADDRESS names, or that this machine is part of. None is ever started.
    num_cpus
        Tasks at once on every node, and processors to reserve for them; None: as many as the node has, and
        none reserved.
    num_gpus
        GPUs to reserve on every node, or a fraction of one; nodes that have less take no part.
    resources
        Other resources of Ray to reserve on every node.
    device
        What computes beside the processors of every node, such as ``"cuda:0"``, counted among the GPUs that
        are reserved, or ``"sim:256MiB"``; ``"cpu"``: nothing. None: the first GPU that is reserved, if any.

    Raises
    ------
    BackendMissingError
        When Ray is not installed.
    ClusterError
        When no cluster answers, or its versions are others.
    UnknownNameError
        When no device is called so.
    TypeError, ValueError
        For what is no cluster or no amount, when a GPU is named and none reserved, or when something is
        asked of a ``Cluster`` that is there already.
    """

    name = "ray"

    def __init__(
        self,
        address: str | Cluster | None = None,
        *,
        num_cpus: int | None = None,
        num_gpus: float = 0.0,
        resources: dict[str, float] | None = None,
        device: str | None = None,
    ) -> None:
        asked = {"num_cpus": num_cpus, "num_gpus": num_gpus, "resources": resources, "device": device}
        if address is None or isinstance(address, str):
            address = RayCluster(
                address, num_cpus=num_cpus, num_gpus=num_gpus, resources=resources, device=device
            )
        elif not callable(getattr(address, "nodes", None)):
            raise TypeError(f"[ray] {address!r} is no cluster: give 'HOST:6379', a RayCluster, or None")
        elif given := [f"{name}={value!r}" for name, value in asked.items() if value]:
            raise ValueError(
                f"[ray] {', '.join(given)} beside {address!r}: what nodes give is settled when the cluster is"
                f" made; ask for it there"
            )
        self.cluster: Cluster = address
        self._closed = False
        self._shipped: OrderedDict[bytes, Any] = OrderedDict()
        self._sizes: dict[str, LeaseSize] = {}
        self._lock = threading.Lock()

    @property
    def node_device(self) -> str | None:
        """Name of what nodes compute on: ``"cpu"`` without GPUs; None: the first that is reserved, if any."""
        device: str | None = getattr(self.cluster, "node_device", "cpu")
        return device

    def __repr__(self) -> str:
        return f"RayExecutor({type(self.cluster).__name__}{', closed' if self._closed else ''})"

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        """Return the outputs of all tasks, in their order; raises what the first that failed raised."""
        return outputs_of(self, tasks, process_fn)

    def work(self, queue: TaskQueue, *, caller: bool) -> None:
        """Hand the queue's tasks out in leases, and collect their results."""
        run_lane(queue, self._drive, "ray", caller=caller)

    def as_futures(self, *, reruns: bool = True) -> LaneExecutor:
        """Return the cluster as an ``Executor`` of ``concurrent.futures``.

        Without ``reruns`` a call that is lost with its node fails with ``UnknownOutcomeError``.
        Raises ClusterError after ``close``.
        """
        if self._closed:
            raise closed_error()
        return LaneExecutor(self, reruns=reruns)

    def close(self) -> None:
        """Let go of the nodes, and of the connection if it was made here; nothing runs afterwards."""
        self._closed = True
        self.cluster.close()

    def _drive(self, queue: TaskQueue) -> None:
        try:
            if self._closed:
                raise closed_error()
            size = self._sizes.setdefault(name_of(queue.function), LeaseSize())
            LeaseScheduler(self.cluster, queue, self._ship(queue.function), size).run()
        except Exception as error:
            queue.break_down(error)

    def _ship(self, function: Callable[..., Any]) -> Any:
        """Return what stands for ``function`` in the cluster."""
        packed = pack_function(function)
        with self._lock:
            if packed not in self._shipped:
                self._shipped[packed] = self.cluster.put(packed)
                if len(self._shipped) > FUNCTIONS_KEPT:
                    self._shipped.popitem(last=False)
            return self._shipped[packed]
