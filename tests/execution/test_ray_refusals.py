"""Nodes of Ray whose agents were killed while they started: simulated clusters and clocks."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from accelera.errors import ClusterError
from accelera.execution.cluster import ray_agents
from accelera.execution.cluster.contract import Node
from accelera.execution.cluster.ray_agents import LONGEST_PAUSE_S, AgentResources, RayAgents
from accelera.execution.cluster.ray_connection import death_reason, is_memory_shortage, own_versions

SHORTAGE = (
    "1 worker(s) were killed due to the node running low on memory.\n"
    "Memory on the node (IP: 10.0.0.7, ID: 0af1) where the task was running was 7.60GB / 8.00GB (0.95).\n"
    "Refer to the documentation on how to address the out of memory issue: https://docs.ray.io/oom."
)
MEMORY = ray.exceptions.OutOfMemoryError(SHORTAGE)
KILLED = ray.exceptions.ActorDiedError()
LEFT = ray.exceptions.ActorUnschedulableError("the node is dead")


class SimulatedRay:
    """Takes the place of the module ``ray``; each start of an agent ends with the next of ``outcomes``."""

    def __init__(self, outcomes: dict[str, list[Exception | None]]) -> None:
        self.now_s = 1000.0
        self.outcomes = outcomes
        self.alive = set(outcomes)
        self.starts: list[tuple[float, str]] = []
        self.__version__ = ray.__version__
        self.exceptions = ray.exceptions
        self.util = SimpleNamespace(
            scheduling_strategies=SimpleNamespace(NodeAffinitySchedulingStrategy=_node)
        )

    def remote(self, **options: Any) -> Any:
        return lambda agent_class: SimpleNamespace(options=self._actor_options)

    def _actor_options(self, *, scheduling_strategy: str, **options: Any) -> Any:
        def start(*arguments: Any) -> Any:
            self.starts.append((self.now_s, scheduling_strategy))
            outcomes = self.outcomes[scheduling_strategy]
            outcome = outcomes.pop(0) if outcomes else None
            remote = SimpleNamespace(remote=lambda: SimpleNamespace(error=outcome))
            return SimpleNamespace(versions=SimpleNamespace(options=lambda **options: remote))

        return SimpleNamespace(remote=start)

    def nodes(self) -> list[dict[str, Any]]:
        resources = {"CPU": 2.0, "memory": 8e9}
        return [
            {"NodeID": node, "Alive": True, "Resources": resources, "NodeManagerAddress": "10.0.0.7"}
            for node in sorted(self.alive)
        ]

    def wait(self, references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return references, []

    def get(self, reference: Any) -> dict[str, str]:
        if reference.error is not None:
            raise reference.error
        return own_versions(self)

    def kill(self, actor: Any) -> None:
        pass

    def is_initialized(self) -> bool:
        return True


def _node(node_id: str, *, soft: bool) -> str:
    return node_id


def agents_of(simulated: SimulatedRay, monkeypatch: pytest.MonkeyPatch) -> RayAgents:
    monkeypatch.setattr(ray_agents, "time", SimpleNamespace(monotonic=lambda: simulated.now_s))
    return RayAgents(simulated, AgentResources())


def seconds_until_nodes(simulated: SimulatedRay, agents: RayAgents, count: int) -> float:
    """Return the simulated seconds until ``count`` nodes are ready, requested every 0.1 s."""
    began_s = simulated.now_s
    while simulated.now_s < began_s + 600:
        try:
            nodes = agents.ready()
        except ClusterError:
            nodes = []
        if len(nodes) == count:
            return simulated.now_s - began_s
        simulated.now_s += 0.1
    pytest.fail("the node was not tried again")


@pytest.mark.parametrize("error", [MEMORY, KILLED, LEFT])
@pytest.mark.parametrize("failures", [1, 2, 5, 12])
def test_killed_agent_is_started_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception, failures: int
) -> None:
    simulated = SimulatedRay({"a": [error] * failures})
    agents = agents_of(simulated, monkeypatch)
    seconds_until_nodes(simulated, agents, 1)
    times_s = [time_s for time_s, _ in simulated.starts]
    pauses_s = [later - earlier for earlier, later in itertools.pairwise(times_s)]
    assert len(times_s) == failures + 1
    assert all(0.4 < pause_s <= LONGEST_PAUSE_S + 1 for pause_s in pauses_s)
    assert pauses_s == sorted(pauses_s)


def test_killed_agent_leaves_other_nodes_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = SimulatedRay({"a": [MEMORY] * 4, "b": []})
    agents = agents_of(simulated, monkeypatch)
    assert seconds_until_nodes(simulated, agents, 1) == 0
    assert [node.id for node in agents.ready()] == ["b"]
    seconds_until_nodes(simulated, agents, 2)


def test_killed_agent_ends_the_batch_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = SimulatedRay({"a": [MEMORY] * 9})
    agents = agents_of(simulated, monkeypatch)
    with pytest.raises(ClusterError, match=r"memory of the node was short \(7\.60GB / 8\.00GB used\)"):
        for _ in range(100):
            assert agents.ready() == []
            simulated.now_s += 0.1


def test_node_that_left_is_not_refused_when_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = SimulatedRay({"a": [KILLED], "b": []})
    agents = agents_of(simulated, monkeypatch)
    agents.ready()
    for alive in ({"b"}, {"a", "b"}):
        simulated.alive = alive
        simulated.now_s += 1
        agents.ready()
    assert {node.id for node in agents.ready()} == {"a", "b"}


def test_started_agent_resets_the_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = SimulatedRay({"a": [MEMORY] * 5 + [None, KILLED]})
    agents = agents_of(simulated, monkeypatch)
    seconds_until_nodes(simulated, agents, 1)
    agent: Any = agents.of(Node("a", "ray:a", 2))
    agents.replacement(agent)
    assert seconds_until_nodes(simulated, agents, 1) < 1


def test_agent_that_raises_is_refused_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    no_cause: Any = None
    raised = ray.exceptions.RayActorError(no_cause, "no such device", actor_init_failed=True)
    simulated = SimulatedRay({"a": [raised]})
    agents = agents_of(simulated, monkeypatch)
    for _ in range(3):
        with pytest.raises(ClusterError, match="could not start an agent"):
            agents.ready()
        simulated.now_s += 100
    assert len(simulated.starts) == 1


@pytest.mark.parametrize(
    ("error", "is_short"),
    [(MEMORY, True), (KILLED, False), (ray.exceptions.RayError(SHORTAGE), True), (LEFT, False)],
)
def test_death_reason_names_a_shortage(error: Exception, is_short: bool) -> None:
    reason = death_reason(ray, error)
    assert is_memory_shortage(ray, error) is is_short
    assert ("memory of the node was short" in reason) is is_short
    assert "Refer to the documentation" not in reason
    assert reason
    assert "\n" not in reason
