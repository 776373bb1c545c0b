"""What results call the executors that others speak of as well."""

from __future__ import annotations

from typing import Final

PROCESSES: Final = "processes"
"""Worker processes, also where the default executor has sent a batch to them."""
