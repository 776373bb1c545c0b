"""Eviction policies: the compiled ones by name, and the contract for your own."""

from accelera.policy.contract import KEPT, EvictionPolicy, Knowledge, next_reads
from accelera.policy.iteration_replay import access_signatures, occurrences, replay_next_uses
from accelera.policy.policies import (
    POLICIES,
    Prepared,
    create_policy,
    heuristic_scores,
    native_knowledge,
    needs,
    prepare,
)

__all__ = [
    "KEPT",
    "POLICIES",
    "EvictionPolicy",
    "Knowledge",
    "Prepared",
    "access_signatures",
    "create_policy",
    "heuristic_scores",
    "native_knowledge",
    "needs",
    "next_reads",
    "occurrences",
    "prepare",
    "replay_next_uses",
]
