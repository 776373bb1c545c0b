"""What one device did of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(slots=True)
class DeviceShare:
    """What one device did of a batch."""

    tasks: int = 0
    """Tasks it finished; one that two devices finished counts for both."""
    batches: int = 0
    """Pieces in which it did so."""
    busy_s: float = 0.0
    """Seconds in which it worked, summed over its threads."""
