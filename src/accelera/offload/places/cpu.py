"""RAM as the place of resident blocks: slabs of the arena that the model's tensors come from as well."""

from __future__ import annotations

from typing import final

import torch

from accelera._native import Arena
from accelera.errors import DeviceMemoryError
from accelera.memory import host_memory
from accelera.offload.homes import Bytes, Home
from accelera.units import format_bytes


@final
class CpuPlace:
    """Page-aligned host memory."""

    def __init__(self, arena: Arena) -> None:
        self.device = torch.device("cpu")
        self.arena = arena

    def allocate(self, nbytes: int) -> tuple[torch.Tensor, Bytes]:
        """Return pages of their own; raises DeviceMemoryError when RAM is short."""
        arena = self.arena
        unused = arena.touched_bytes - arena.committed_bytes - arena.ordinary_bytes
        if nbytes > unused and nbytes > (available := host_memory().available_bytes):
            raise DeviceMemoryError(
                f"[allocate] {format_bytes(nbytes)} on cpu: {format_bytes(available)} are available; "
                "work in smaller blocks, or free memory"
            )
        memory = arena.slab(nbytes)
        return torch.from_numpy(memory), memory

    def promise(self, nbytes: int) -> None:
        """Count so many more bytes (or fewer) as the pool's."""
        self.arena.commit(nbytes)

    def release(self, memory: Bytes) -> None:
        """The bytes go back to the arena with the last reference to them."""

    def load(self, home: Home, memory: Bytes, start: int, stop: int) -> int:
        """Read a part of ``home``."""
        return home.read(start, memory[start:stop])

    def save(self, memory: Bytes, home: Home, start: int, stop: int) -> int:
        """Write a part to ``home``."""
        return home.write(start, memory[start:stop])

    def lend(self, memory: Bytes) -> None:
        """What is loaded is here."""

    def used(self, memory: Bytes) -> None:
        """Operations here are done when they return."""
