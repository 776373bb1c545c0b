"""Access: one event of a buffer (read, write, release, save, evict, free) and the recorders that take it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol, runtime_checkable

ROLES = (
    "",
    "weight",
    "activation",
    "gradient",
    "optimizer_state",
    "tile",
    "kv_cache",
    "input",
    "workspace",
)
"""Roles that the bytes of a buffer may have; ``""`` when unknown."""


class Kind(IntEnum):
    """Kind of an event: what happens to a buffer."""

    READ = 0
    """An access that needs the contents: absent ones are fetched."""
    WRITE = 1
    """An access that overwrites the contents: nothing is fetched, and the buffer becomes dirty. A step that
    updates a buffer in place reads it and then writes it: two accesses."""
    RELEASE = 2
    """One pin is dropped. Traces without releases hold a buffer until its step is over."""
    SAVE = 3
    """The contents are written to the next tier; the buffer stays and is clean."""
    EVICT = 4
    """The buffer is given up on request, not by the policy: written back if dirty."""
    FREE = 5
    """The end of a life: needed no more, so neither kept nor written back."""


@dataclass(frozen=True)
class Access:
    """One event, as a recorder is told of it."""

    buffer: int
    """Dense id of the buffer within its trace, from 0."""
    nbytes: int
    """Size of the buffer in its tier, in bytes."""
    step: int
    """Index of the step that needs it, from 0."""
    kind: Kind = Kind.READ
    op: str = ""
    """Name of the operation: ``"matmul"``, ``"add"`` …"""
    role: str = ""
    """What the bytes are, one of ``ROLES``."""
    dtype: str = ""
    """Element type held in the buffer, by its NumPy name."""
    name: str = ""
    """How people call the buffer."""

    @property
    def counts(self) -> bool:
        """Whether this is an access, a hit or a miss: a read or a write."""
        return self.kind <= Kind.WRITE


class Recorder(Protocol):
    """Receiver of events as they happen."""

    def record(self, access: Access) -> None:
        """Record ``access``; called in order, from one thread at a time."""


@runtime_checkable
class RunRecorder(Recorder, Protocol):
    """A recorder that is also told of the run as a whole."""

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Record that a run begins, with facts for a replay: capacity, policy … (again if replanned)."""

    def took(self, step: int, seconds: float, flops: float) -> None:
        """Record that ``step`` took ``seconds`` for ``flops``; called from the thread that computes."""
