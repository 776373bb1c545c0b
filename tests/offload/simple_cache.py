"""A cache without pool or files: every block is a NumPy array; it counts uses and what stays pinned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from accelera.memory._internal import PoolBlock, Use
from accelera.offload.allocation_scope import AllocationScope
from accelera.offload.block_layout import row_parts


class SimpleCache:
    """Keeps blocks apart from any tensor: bytes are copied in for a use and, when written, back again."""

    watched = False

    def __init__(
        self, block_bytes: int = 1 << 62, least_bytes: int = 1, capacity_bytes: int = 1 << 62
    ) -> None:
        self.block_bytes = block_bytes
        self.least_bytes = least_bytes
        self.capacity_bytes = capacity_bytes
        self.device = torch.device("cpu")
        self.watched = False
        self.scope = AllocationScope(None, None)
        self.bytes: dict[int, np.ndarray] = {}
        self.uses: list[str] = []
        self.pinned = 0
        self.made: list[PoolBlock] = []

    def working_s(self) -> float:
        return 0.0

    def adopt(self, tensor: torch.Tensor, name: str = "", role: str = "weight") -> tuple[PoolBlock, ...]:
        flat = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
        parts = row_parts(tensor.shape, tensor.element_size(), self.block_bytes)
        row_bytes = flat.nbytes // max(1, tensor.shape[0]) if tensor.dim() else flat.nbytes
        blocks = []
        for part in parts:
            block = self.create((part.stop - part.start) * row_bytes, name, role)
            self.bytes[block.id][:] = flat[part.start * row_bytes : part.stop * row_bytes]
            blocks.append(block)
        return tuple(blocks)

    def create(self, nbytes: int, name: str = "", role: str = "") -> PoolBlock:
        block = PoolBlock(len(self.made), nbytes, role, name)
        self.bytes[block.id] = np.full(nbytes, 0xA5, np.uint8)
        self.made.append(block)
        return block

    @contextmanager
    def use(self, uses: Sequence[Use], op: str = "", output_bytes: int = 0) -> Iterator[list[torch.Tensor]]:
        self.uses.append(op)
        flats = [torch.from_numpy(self._given(use)) for use in uses]
        self.pinned += len(uses)
        try:
            yield flats
        finally:
            self.pinned -= len(uses)
            for use, flat in zip(uses, flats, strict=True):
                if use.write:
                    self.bytes[use.block.id][:] = flat.numpy()
                flat.fill_(0x5A)

    def mapped(self, block: PoolBlock) -> torch.Tensor:
        return self.joined([block])

    def joined(self, blocks: Sequence[PoolBlock]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([self.bytes[block.id] for block in blocks]))

    def free(self, block: PoolBlock) -> None:
        del self.bytes[block.id]

    def _given(self, use: Use) -> np.ndarray:
        stored = self.bytes[use.block.id]
        return stored.copy() if use.read else np.full(use.block.nbytes, 0x5A, np.uint8)
