"""The policies by name. Each is one file of ``csrc/policy`` and one line of its registry."""

from __future__ import annotations

from accelera._native import Policy, PolicyKnowledge, policy_names
from accelera.errors import UnknownNameError
from accelera.policy.contract import EvictionPolicy
from accelera.policy.knowledge import Knowledge

POLICIES: tuple[str, ...] = tuple(sorted(policy_names()))
"""Names that ``create_policy`` and the simulator know."""


def create_policy(name: str, known: Knowledge | None = None) -> EvictionPolicy:
    """Return a fresh policy.

    ``known`` is needed by those that look ahead. Raises UnknownNameError with the near names.
    """
    if name not in POLICIES:
        raise UnknownNameError.among("policy", name, POLICIES)
    return Policy(name, native_knowledge(known or Knowledge()))


def native_knowledge(known: Knowledge) -> PolicyKnowledge:
    """Return ``known`` as the compiled half takes it."""
    return PolicyKnowledge(
        known.capacity_bytes, known.buffers, known.next_use, known.next_read, known.score, known.seed
    )
