"""What came of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final

from accelera.execution.decision import Decision
from accelera.execution.shares import DeviceShare

Ending = Literal["exhausted", "closed", "cancelled", "error"]
"""Every task was done; the caller asked for no more; the token was set; an exception went to the caller."""


@final
@dataclass(frozen=True, slots=True)
class StreamReport:
    """Figures of a stream: tasks, places, and how it ended."""

    decision: Decision
    """Where it ran, and why."""
    execution_time: float
    """Seconds since the first output was asked for; what the caller did between outputs included."""
    task_count: int
    """Tasks that are done, those that failed among them."""
    failed_count: int
    """Tasks whose function raised."""
    fallback_occurred: bool
    """Whether the CPU did what a GPU was to do and failed at."""
    device_errors: tuple[BaseException, ...]
    """The first failures of devices, in the order of their time."""
    per_device: Mapping[str, DeviceShare]
    """What each device did."""
    retries: int
    """Attempts after the first, of tasks and of pieces."""
    oom_splits: int
    """How often a GPU ran out of memory and went on with fewer tasks at once."""
    ended_by: Ending | None = None
    """``"exhausted"``: every task was done; ``"closed"``: the caller asked for no more; ``"cancelled"``: the
    token was set; ``"error"``: the caller got an exception; None while it goes on."""
    error: BaseException | None = None
    """What ended it, where that was an exception."""
