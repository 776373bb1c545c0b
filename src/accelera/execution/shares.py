"""What one device did of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(slots=True)
class DeviceShare:
    """Part of a batch that one device did."""

    tasks: int = 0
    """Tasks that came to an end there, done or failed; one that two devices finished counts for both."""
    batches: int = 0
    """Pieces in which it did so."""
    busy_s: float = 0.0
    """Seconds in which it worked, summed over its threads."""
