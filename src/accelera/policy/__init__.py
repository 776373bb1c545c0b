"""Eviction policies: the compiled ones by name, and the contract for your own."""

from accelera.policy.contract import EvictionPolicy, Knowledge
from accelera.policy.policies import POLICIES, create_policy

__all__ = [
    "POLICIES",
    "EvictionPolicy",
    "Knowledge",
    "create_policy",
]
