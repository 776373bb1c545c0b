"""Who is evicted: one policy per file, one line here to add one."""

from collections.abc import Sequence

from accelera.errors import UnknownNameError
from accelera.policy.belady import Belady
from accelera.policy.contract import EvictionPolicy
from accelera.policy.lru import LRU

__all__ = ["LRU", "POLICIES", "Belady", "EvictionPolicy", "create_policy"]

POLICIES: dict[str, type[LRU] | type[Belady]] = {"lru": LRU, "belady": Belady}
"""Policies by name. ``belady`` needs the whole access sequence."""


def create_policy(name: str, sequence: Sequence[int] = ()) -> EvictionPolicy:
    """Return a fresh policy; ``sequence`` is the future, for those that use it.

    Raises UnknownNameError with the near names.
    """
    if name not in POLICIES:
        raise UnknownNameError.among("policy", name, POLICIES)
    kind = POLICIES[name]
    return kind(sequence) if issubclass(kind, Belady) else kind()
