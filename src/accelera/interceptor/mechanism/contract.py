"""What a way to intercept must do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Tier(Protocol):
    """One way to put kernels before torch's."""

    name: str
    """What people call it."""

    def set_thresholds(self, least_bytes: int, least_size: int) -> None:
        """Hand over calls from so many bytes and so long a dimension on."""

    def register(self, names: Sequence[str]) -> None:
        """Put kernels before torch's for operators that have none of ours yet."""

    def unregister(self) -> None:
        """Put torch's kernels back."""
