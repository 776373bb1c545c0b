"""What a place must do: hold blocks in memory that operations compute on, and move them to and from homes."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from accelera.offload.homes import Home


class Place(Protocol):
    """The memory that operations compute on."""

    device: torch.device

    def allocate(self, nbytes: int) -> tuple[torch.Tensor, Any]:
        """Return new memory as a uint8 tensor of ``nbytes`` on ``device``, and as the place knows it.

        Its contents are undefined. Raises DeviceMemoryError when there is none.
        """

    def release(self, memory: Any) -> None:
        """Give memory back to the system."""

    def load(self, home: Home, memory: Any, start: int, stop: int) -> int:
        """Fill bytes ``start`` to ``stop`` from ``home``; return how many they are."""

    def save(self, memory: Any, home: Home, start: int, stop: int) -> int:
        """Store bytes ``start`` to ``stop`` in ``home``; return how many they are."""

    def lend(self, memory: Any) -> None:
        """Let operations that are handed over from now on see what is loaded into this memory."""

    def used(self, memory: Any) -> None:
        """Take note that an operation that was handed over by now may still be using this memory."""
