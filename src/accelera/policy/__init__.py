"""Who is evicted: compiled policies by name, and the contract for those of your own."""

from accelera.policy.contract import EvictionPolicy
from accelera.policy.knowledge import KEPT, Knowledge, next_reads
from accelera.policy.names import POLICIES, create_policy, native_knowledge

__all__ = [
    "KEPT",
    "POLICIES",
    "EvictionPolicy",
    "Knowledge",
    "create_policy",
    "native_knowledge",
    "next_reads",
]
