"""The policies by name: the compiled ones, and those that are a score with a compiled follower.

Each compiled policy is one file of ``csrc/policy`` and one line of its registry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from accelera._native import Policy, PolicyKnowledge, policy_needs
from accelera.errors import UnknownNameError
from accelera.policy.contract import EvictionPolicy
from accelera.policy.knowledge import Knowledge
from accelera.policy.replay import replay_next_uses
from accelera.policy.scores import heuristic_scores
from accelera.trace import Trace

NEEDS = {name: tuple(needs) for name, needs in policy_needs().items()}
"""Per compiled policy, the fields of ``Knowledge`` that it cannot do without."""

FOLLOWERS = {"iteration_replay": "scored", "learned": "scored"}
"""Policies that are a score: their name, and the compiled policy that follows it."""

SCORES: dict[str, Callable[[Trace], NDArray[np.float64]]] = {
    "scored": heuristic_scores,
    "iteration_replay": replay_next_uses,
}
"""The score that a policy follows when it is given none."""

POLICIES: tuple[str, ...] = tuple(sorted({*NEEDS, *FOLLOWERS}))
"""Names that ``create_policy``, ``prepare``, the simulator and the engine know."""


def native_name(name: str) -> str:
    """Return the compiled policy behind ``name``; raises UnknownNameError with the near names."""
    if name not in POLICIES:
        raise UnknownNameError.among("policy", name, POLICIES)
    return FOLLOWERS.get(name, name)


def needs(name: str) -> tuple[str, ...]:
    """Return the fields of ``Knowledge`` that ``name`` cannot do without; raises UnknownNameError."""
    return NEEDS[native_name(name)]


def create_policy(name: str, known: Knowledge | None = None) -> EvictionPolicy:
    """Return a fresh policy.

    ``known`` is needed by those that look ahead, follow a score or share out the capacity.

    Raises UnknownNameError with the near names, ValueError that says what ``name`` needs to know.
    """
    known = known or Knowledge()
    if known.score is None and known.trace is not None and name in SCORES:
        known = replace(known, score=SCORES[name](known.trace))
    require_needs(name, known, *NEEDS[native_name(name)])
    return Policy(native_name(name), native_knowledge(known))


def require_needs(name: str, known: Knowledge, *needs: str) -> None:
    """Raise ValueError when ``known`` lacks one of ``needs``, saying where it comes from."""
    for need in needs:
        if getattr(known, need) is None or (need == "capacity_bytes" and not known.capacity_bytes):
            raise ValueError(f"[policy] {name} needs {need}, which is not given: {_REMEDIES[need]}")


def native_knowledge(known: Knowledge) -> PolicyKnowledge:
    """Return ``known`` as the compiled half takes it."""
    return PolicyKnowledge(
        known.capacity_bytes, known.buffers, known.next_use, known.next_read, known.score, known.seed
    )


_REMEDIES = {
    "capacity_bytes": "set Knowledge.capacity_bytes to the bytes of its tier",
    "next_use": "build its Knowledge with Knowledge.of(trace, capacity_bytes)",
    "next_read": "build its Knowledge with Knowledge.of(trace, capacity_bytes)",
    "score": "give one number per access as score=, or use prepare(name, trace, capacity_bytes)",
}
