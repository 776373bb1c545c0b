"""What a place must do beyond that of any pool: its memory is tensors that operations compute on."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from accelera._native import Arena
from accelera.memory import Place


class TensorPlace(Place, Protocol):
    """The memory that operations compute on."""

    device: torch.device

    @property
    def arena(self) -> Arena | None:
        """Memory of the tensors beside blocks, where they are counted one by one."""

    def allocate(self, nbytes: int) -> tuple[torch.Tensor, Any]:
        """Return new memory as a uint8 tensor of ``nbytes`` on ``device``, and as the place knows it.

        Its contents are undefined. Raises DeviceMemoryError when there is none.
        """

    def lend(self, memory: Any) -> None:
        """Let operations that are handed over from now on see what is loaded into this memory."""

    def used(self, memory: Any) -> None:
        """Take note that an operation that was handed over by now may still be using this memory."""
