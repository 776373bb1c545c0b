"""Keeper of a dry run: it notes what becomes of blocks, which have sizes and no bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from accelera.memory import Block, Use
from accelera.offload.keeping.allocation_scope import AllocationScope
from accelera.offload.keeping.rows import row_parts


class Begin(NamedTuple):
    """An operation begins to use blocks: (number, whether read, whether written)."""

    uses: tuple[tuple[int, bool, bool], ...]
    op: str


class End(NamedTuple):
    """The latest operation that began and has not ended, ends."""


class Create(NamedTuple):
    """A block comes into being."""

    block: int
    nbytes: int
    role: str
    name: str
    filled: bool
    """Whether it has contents from the beginning."""


class Free(NamedTuple):
    """Nothing refers to a block any more."""

    block: int


class Work(NamedTuple):
    """Arithmetic, and bytes of operands and results."""

    flops: float
    touched_bytes: int


class Saved(NamedTuple):
    """The forward pass saves a value of the tape."""

    value: int


class Needed(NamedTuple):
    """The backward pass needs a saved value."""

    value: int


Event = Begin | End | Create | Free | Work | Saved | Needed


class Excerpt(NamedTuple):
    """A part of notes."""

    events: list[Event]
    allocations: list[tuple[int, int]]


class Notes:
    """Everything that a dry run noted, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.positions: list[int] = []
        """For each event, the length of ``allocations`` at its time."""
        self.allocations: list[tuple[int, int]] = []
        """Ordinary tensors: (number, bytes; negative when released)."""
        self.allocation_ops: list[str] = []
        """For each allocation, the operator that made it."""
        self.temporaries: list[tuple[int, int]] = []
        """Positions at which an operator takes so many bytes more for itself."""
        self.most_pinned_bytes = 0
        self.largest_block_bytes = 0
        self.most_block_bytes = 0
        """Most bytes of blocks that exist at once."""
        self._alive_bytes = 0
        self._blocks_bytes: list[int] = []
        self._pinned: list[tuple[int, ...]] = []

    def add(self, event: Event) -> None:
        """Note an event."""
        self.events.append(event)
        self.positions.append(len(self.allocations))

    def create(self, nbytes: int, role: str, name: str, *, filled: bool) -> Block:
        """Note and return a new block."""
        block = Block(len(self._blocks_bytes), nbytes, role, name, filled=filled)
        self._blocks_bytes.append(nbytes)
        self.largest_block_bytes = max(self.largest_block_bytes, nbytes)
        self._alive_bytes += nbytes
        self.most_block_bytes = max(self.most_block_bytes, self._alive_bytes)
        self.add(Create(block.id, nbytes, role, name, filled))
        return block

    def position(self, event: int) -> int:
        """Return the length of ``allocations`` at the time of an event."""
        return self.positions[event] if event < len(self.positions) else len(self.allocations)

    def alive_bytes(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the bytes of ordinary tensors at each position."""
        sizes = np.array([nbytes for _, nbytes in self.allocations], np.int64)
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])

    def alive_at(self, event: int) -> int:
        """Return the bytes of ordinary tensors at the time of an event."""
        return int(self.alive_bytes()[self.position(event)])

    @contextmanager
    def set_aside(self) -> Iterator[Excerpt]:
        """Give an excerpt that has, afterwards, what was noted in this context; here it is forgotten."""
        excerpt = Excerpt([], [])
        events, allocations, temporaries = len(self.events), len(self.allocations), len(self.temporaries)
        alive_bytes = self._alive_bytes
        yield excerpt
        excerpt.events.extend(self.events[events:])
        excerpt.allocations.extend(self.allocations[allocations:])
        del self.events[events:], self.positions[events:], self.temporaries[temporaries:]
        del self.allocations[allocations:], self.allocation_ops[allocations:]
        self._alive_bytes = alive_bytes

    def free(self, block: int) -> None:
        """Note that nothing refers to a block any more."""
        self._alive_bytes -= self._blocks_bytes[block]
        self.add(Free(block))

    def begin(self, uses: tuple[tuple[int, bool, bool], ...], op: str) -> None:
        """Note that an operation begins."""
        self.add(Begin(uses, op))
        self._pinned.append(tuple(block for block, _, _ in uses))
        pinned = {block for each in self._pinned for block in each}
        self.most_pinned_bytes = max(self.most_pinned_bytes, sum(map(self._blocks_bytes.__getitem__, pinned)))

    def end(self) -> None:
        """Note that it ends."""
        self._pinned.pop()
        self.add(End())

    def work(self, flops: float, touched_bytes: int) -> None:
        """Note arithmetic, and bytes of operands and results."""
        self.add(Work(flops, touched_bytes))

    def allocate(self, number: int, nbytes: int, op: str) -> None:
        """Note that an ordinary tensor comes or goes."""
        self.allocations.append((number, nbytes))
        self.allocation_ops.append(op)


@final
class RecordingKeeper:
    """Stands in for the keeper of a run; blocks are numbered in the order in which they are made.

    ``on_slab`` hears of every tensor that stands for the bytes of a block.
    """

    watched = False

    def __init__(
        self,
        mode: FakeTensorMode,
        device: torch.device,
        sizes: tuple[int, int, int],
        notes: Notes,
        on_slab: Callable[[torch.Tensor], None],
    ) -> None:
        self.block_bytes, self.least_bytes, self.capacity_bytes = sizes
        self.device = device
        self.scope = AllocationScope(None, None)
        self._mode = mode
        self._notes = notes
        self._on_slab = on_slab
        self._slabs: dict[int, torch.Tensor] = {}

    def adopt(self, tensor: torch.Tensor, name: str = "", role: str = "weight") -> tuple[Block, ...]:
        """Return the blocks that would hold ``tensor``."""
        parts = row_parts(tensor.shape, tensor.element_size(), self.block_bytes)
        rows = tensor.shape[0] if tensor.ndim else 1
        row_bytes = tensor.nbytes // rows if rows else 0
        return tuple(
            self._notes.create(
                (part.stop - part.start) * row_bytes, role, _part_name(name, part, len(parts)), filled=True
            )
            for part in parts
        )

    def create(self, nbytes: int, name: str = "", role: str = "") -> Block:
        """Return a block without contents."""
        return self._notes.create(nbytes, role, name, filled=False)

    @contextmanager
    def use(self, uses: Sequence[Use], op: str = "", coming_bytes: int = 0) -> Iterator[list[torch.Tensor]]:
        """Note an operation, and give tensors without bytes."""
        self._notes.begin(tuple((use.block.id, use.read, use.write) for use in uses), op)
        try:
            yield [self._slab(use.block) for use in uses]
        finally:
            self._notes.end()

    def free(self, block: Block) -> None:
        """Note the end of a block."""
        self._slabs.pop(block.id, None)
        self._notes.free(block.id)

    def check_there(self, op: str) -> None:
        """It is always there."""

    def working_s(self) -> float:
        """Return no time: none passes on paper."""
        return 0.0

    def _slab(self, block: Block) -> torch.Tensor:
        slab = self._slabs.get(block.id)
        if slab is None:
            with _disable_current_modes():
                shape = torch.empty(block.nbytes, dtype=torch.uint8, device="meta")
                slab = self._slabs[block.id] = FakeTensor(self._mode, shape, self.device)
            self._on_slab(slab)
        return slab


def _part_name(name: str, part: slice, parts: int) -> str:
    return name if parts == 1 else f"{name}[{part.start}:{part.stop}]"
