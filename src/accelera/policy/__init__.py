"""Who is evicted: compiled policies by name, and the contract for those of your own."""

from accelera.policy.contract import EvictionPolicy
from accelera.policy.knowledge import KEPT, Knowledge, next_reads
from accelera.policy.names import POLICIES, create_policy, native_knowledge, needs
from accelera.policy.prepared import Prepared, prepare
from accelera.policy.replay import replay_next_uses
from accelera.policy.scores import heuristic_scores
from accelera.policy.signatures import access_signatures, occurrences

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
