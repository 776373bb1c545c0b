"""Agents of a Ray cluster: one actor on every node that has the requested resources."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final, final

from accelera.devices._internal import split_name
from accelera.errors import ArgumentError, ClusterError
from accelera.execution.cluster.contract import Node
from accelera.execution.cluster.node import Agent, node_gpu
from accelera.execution.cluster.ray_connection import (
    check_amounts,
    check_versions,
    closed_error,
    death_reason,
    import_ray,
    is_memory_shortage,
    own_versions,
    without_auto_init,
)

if TYPE_CHECKING:
    import torch

LOOK_S: Final = 0.5
"""Period of refreshing the list of nodes, in seconds."""
GROUPS: Final = {"leases": 2, "control": 1}
"""Concurrency groups of an agent: two leases at once, and control calls beside them."""

FIRST_PAUSE_S: Final = 0.5
"""Seconds until an agent that was killed while it started is started again."""
LONGEST_PAUSE_S: Final = 8.0
"""Maximum of these seconds; they double with each failure in sequence."""
SILENT_FAILURES: Final = 3
"""Failures in sequence for which a batch waits; afterwards it ends with the reason."""

_LOGGER = logging.getLogger("accelera.execution")


class RayAgent(Agent):
    """An agent that finds functions in Ray's object store.

    Parameters
    ----------
    workers
        Tasks at once on the processors.
    uses_gpu
        Whether a GPU works beside them.
    device
        Which; None: the first that Ray lets the agent see, if any.
    """

    def __init__(self, workers: int, uses_gpu: bool = False, device: str | None = None) -> None:
        super().__init__(workers, node_gpu(device) if uses_gpu else None)

    def versions(self) -> dict[str, str]:
        """Return the versions that run here."""
        return {"Ray": import_ray().__version__, **super().versions()}

    def fetch(self, reference: Any) -> bytes:
        """Return what ``RayCluster.put`` kept."""
        found: bytes = import_ray().get(reference)
        return found


@final
@dataclass(frozen=True, slots=True)
class AgentResources:
    """Resources that every agent reserves on its node."""

    num_cpus: int | None = None
    """Processors to reserve, which is also the number of tasks at once; None: all are used, none reserved."""
    num_gpus: float = 0.0
    """GPUs to reserve; nodes that have less take no part."""
    resources: dict[str, float] = field(default_factory=dict)
    """Other resources to reserve."""
    device: str | torch.device | None = None
    """What computes beside the processors of every node; None: the first GPU that is reserved, if any."""

    def __post_init__(self) -> None:
        if self.num_cpus is not None and not isinstance(self.num_cpus, (int, Integral)):
            raise ArgumentError(
                f"[ray] num_cpus={self.num_cpus!r}: give a whole number of tasks at once, or None"
            )
        check_amounts("ray", self.resources, num_cpus=self.num_cpus or 0, num_gpus=self.num_gpus)
        kind = None if self.device is None else split_name(str(self.device))[0]
        if kind in ("cuda", "xpu") and not self.num_gpus:
            raise ArgumentError(
                f"[ray] device={self.device!r} with num_gpus=0: Ray hides GPUs that are not reserved; give"
                f" num_gpus=1, or a part of one"
            )

    @property
    def uses_gpu(self) -> bool:
        """Whether agents look for a GPU."""
        return self.num_gpus > 0 or self.device is not None

    @property
    def asked(self) -> dict[str, float]:
        """Resources that a node must have, under Ray's names."""
        asked = {"CPU": self.num_cpus or 1, "GPU": self.num_gpus, **self.resources}
        return {name: amount for name, amount in asked.items() if amount}

    def fits(self, has: dict[str, float]) -> bool:
        """Return whether a node with the resources ``has`` takes part."""
        return all(has.get(name, 0.0) >= amount for name, amount in self.asked.items())


@final
@dataclass(eq=False, slots=True)
class StartedAgent:
    """An agent that was started."""

    node: Node
    actor: Any
    workers: int
    memory: int
    """Bytes reserved; 0: none."""
    pending_versions: Any
    """Reference to its versions, pending until it is ready; None once they were checked."""
    killed: bool = False
    """Whether we killed it."""
    replacement: Any = None
    """The actor in its place; None while it lives."""


@final
@dataclass(slots=True)
class NodeRefusal:
    """A node on which no agent could be started: for good, or until a time."""

    error: ClusterError
    failures: int
    """Failures in sequence."""
    until_s: float
    """Time of the monotonic clock; infinite: for good, such as other versions."""

    @property
    def is_due(self) -> bool:
        """Whether an agent should be started again."""
        return time.monotonic() >= self.until_s

    @property
    def is_brief(self) -> bool:
        """Whether a batch should wait for the next start."""
        return self.failures < SILENT_FAILURES and self.until_s != math.inf


@final
class RayAgents:
    """Starts agents, and others in the place of dead ones. Every method may be called from any thread."""

    def __init__(self, ray: Any, wanted: AgentResources) -> None:
        self._ray = ray
        self._wanted = wanted
        self._agents: dict[str, StartedAgent] = {}
        self._refusals: dict[str, NodeRefusal] = {}
        self._refreshed_s = 0.0
        self._closed = False
        self._memory: dict[str, int] = {}
        self._actor = ray.remote(concurrency_groups=GROUPS)(RayAgent)
        self._lock = threading.RLock()

    def ready(self) -> Sequence[Node]:
        """Return the nodes whose agents answer; raises ClusterError after ``close``."""
        with self._lock:
            if self._closed:
                raise closed_error()
            if time.monotonic() - self._refreshed_s > LOOK_S:
                self._refresh_nodes()
            for agent in [each for each in self._agents.values() if each.pending_versions is not None]:
                self._check_started(agent)
            if not self._agents:
                self._refresh_nodes()
            if not self._agents and not any(refusal.is_brief for refusal in self._refusals.values()):
                raise self._no_agent_error()
            return [agent.node for agent in self._agents.values() if agent.pending_versions is None]

    def of(self, node: Node) -> StartedAgent | None:
        """Return the agent on ``node``; None when it is gone."""
        return self._agents.get(node.id)

    def forget(self, agent: StartedAgent) -> None:
        """Have another agent on its node, if that lives."""
        with self._lock:
            if self._agents.get(agent.node.id) is agent:
                del self._agents[agent.node.id]
                self._refreshed_s = 0.0

    def replacement(self, agent: StartedAgent, *, out_of_memory: bool = False) -> Any:
        """Return the actor in the place of a dead agent; None after ``close``, or nobody would end that one.

        After running out of memory that one has half the threads and twice the memory reserved.
        """
        with self._lock:
            if agent.replacement is None and not self._closed:
                workers, memory = agent.workers, agent.memory
                if out_of_memory:
                    workers = max(1, workers // 2)
                    memory = min(self._memory[agent.node.id], 2 * memory or self._memory[agent.node.id] // 4)
                self.forget(agent)
                if agent.node.id not in self._agents:
                    self._agents[agent.node.id] = self._start(agent.node, workers, memory)
                agent.replacement = self._agents[agent.node.id].actor
            return agent.replacement

    def close(self) -> None:
        """End all agents."""
        with self._lock:
            self._closed = True
            agents, self._agents = list(self._agents.values()), {}
        for agent in agents:
            agent.killed = True
        if not self._ray.is_initialized():
            return
        for agent in agents:
            self._ray.kill(agent.actor)

    def _refresh_nodes(self) -> None:
        alive = {each["NodeID"]: each for each in self._ray.nodes() if each["Alive"]}
        for gone in self._agents.keys() - alive.keys():
            del self._agents[gone]
        for gone in self._refusals.keys() - alive.keys():
            del self._refusals[gone]
        refused = {node_id for node_id, refusal in self._refusals.items() if not refusal.is_due}
        for node_id in alive.keys() - self._agents.keys() - refused:
            found = alive[node_id]
            if self._wanted.fits(found["Resources"]):
                self._memory[node_id] = int(found["Resources"].get("memory", 0))
                cpus = self._wanted.num_cpus or int(found["Resources"]["CPU"])
                node = Node(node_id, f"ray:{found['NodeManagerAddress']}/{node_id[:6]}", cpus)
                self._agents[node_id] = self._start(node, cpus, 0)
        self._refreshed_s = time.monotonic()

    def _start(self, node: Node, workers: int, memory: int) -> StartedAgent:
        on_node = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
        actor = self._actor.options(
            num_cpus=self._wanted.num_cpus or 0,
            num_gpus=self._wanted.num_gpus,
            resources=self._wanted.resources,
            memory=memory or None,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=on_node,
        ).remote(workers, self._wanted.uses_gpu, self._wanted.device)
        pending_versions = actor.versions.options(concurrency_group="control").remote()
        return StartedAgent(node, actor, workers, memory, pending_versions)

    def _check_started(self, agent: StartedAgent) -> None:
        """Check without waiting whether an agent has started, and whether its versions match."""
        ready, _ = without_auto_init(self._ray.wait)([agent.pending_versions], timeout=0)
        if not ready:
            return
        try:
            check_versions(
                without_auto_init(self._ray.get)(agent.pending_versions),
                own_versions(self._ray),
                agent.node.name,
            )
        except ClusterError as error:
            self._reject(agent, error)
        except self._ray.exceptions.RayError as error:
            self._refuse_dead_agent(agent, error)
        else:
            agent.pending_versions = None
            self._refusals.pop(agent.node.id, None)

    def _refuse_dead_agent(self, agent: StartedAgent, error: Exception) -> None:
        """Refuse a node for good where the agent itself raised, and for a while where it was killed."""
        if getattr(error, "actor_init_failed", False):
            self._reject(agent, ClusterError(f"[ray] {agent.node.name} could not start an agent: {error}"))
            return
        earlier = self._refusals.get(agent.node.id)
        failures = 1 if earlier is None else earlier.failures + 1
        pause_s = min(FIRST_PAUSE_S * 2 ** (failures - 1), LONGEST_PAUSE_S)
        reason = death_reason(self._ray, error)
        refusal = ClusterError(
            f"[ray] {agent.node.name} could not start an agent: {reason}; free memory there"
        )
        if not is_memory_shortage(self._ray, error):
            refusal = ClusterError(f"[ray] {agent.node.name} could not start an agent: {reason}")
        _LOGGER.warning("%s takes no part for %.1f s: %s", agent.node.name, pause_s, reason)
        self._refusals[agent.node.id] = NodeRefusal(refusal, failures, time.monotonic() + pause_s)
        self.forget(agent)

    def _reject(self, agent: StartedAgent, error: ClusterError) -> None:
        _LOGGER.warning("%s takes no part: %s", agent.node.name, error)
        self._refusals[agent.node.id] = NodeRefusal(error, 1, math.inf)
        self.forget(agent)
        self._ray.kill(agent.actor)

    def _no_agent_error(self) -> ClusterError:
        reasons = [str(refusal.error) for refusal in self._refusals.values()]
        has = [each["Resources"] for each in self._ray.nodes() if each["Alive"]]
        if not reasons:
            reasons = [_missing_resources(self._wanted.asked, has)]
        return ClusterError("; ".join(reasons))


def _missing_resources(asked: Mapping[str, float], has: Sequence[Mapping[str, float]]) -> str:
    wanted = ", ".join(f"{amount:g} {name}" for name, amount in asked.items())
    nodes = "; ".join(", ".join(f"{each.get(name, 0):g} {name}" for name in asked) for each in has)
    return (
        f"[ray] none of {len(has)} nodes has {wanted}; they have {nodes}: ask for less of each node by"
        f" num_cpus=, num_gpus= or resources=, or add nodes with `ray start --address=HOST:6379`"
    )
