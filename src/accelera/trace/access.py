"""One access: who was pinned, when, how large, and what for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Access:
    """A buffer being pinned, or freed for good, at one step of an operation."""

    buffer: int
    """Dense id of the buffer within its trace, from 0."""
    nbytes: int
    """Size of the buffer in its tier, in bytes."""
    step: int
    """Index of the step that needs it, from 0."""
    write: bool = False
    """True when the step writes the buffer (it becomes dirty)."""
    free: bool = False
    """True for the end of a buffer's life: it is never used again and needs no place."""
    op: str = ""
    """Name of the operation: ``"matmul"``, ``"add"`` …"""
    role: str = ""
    """What the bytes are: ``"tile"``, ``"weight"``, ``"activation"`` …"""
    dtype: str = ""
    """Element type held in the buffer, by its NumPy name."""


class Recorder(Protocol):
    """Anything that wants to hear of accesses as they happen."""

    def record(self, access: Access) -> None:
        """Take note of ``access``; called in order, from one thread at a time."""
