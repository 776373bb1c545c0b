"""What became of a task whose function raised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class TaskFailure:
    """The user's own exception, and which task it belongs to."""

    index: int
    """Position of the task in the batch."""
    error: BaseException
    """What the function raised, unchanged."""
    device: str
    """Where it ran: ``"cpu"``, ``"cuda:0"`` …"""

    @property
    def note(self) -> str:
        """Where it happened, for people."""
        return f"task {self.index} on {self.device}"

    def __str__(self) -> str:
        return f"{self.note}: {type(self.error).__name__}: {self.error}"
