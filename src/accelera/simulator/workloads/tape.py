"""The steps of a synthetic program in order, and the buffers they read and write.

Models put their forward steps on the tape; the backward pass and the optimizer are derived from it.
When a buffer dies follows from its last access, so nothing is used after it was freed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from accelera.simulator.workloads.chance import Chance

Saved = Literal["inputs", "outputs", "nothing"]
"""What of a step its backward step reads again."""
CHANCES = 2
"""How many further buffers a forward step may read; each with the probability of reuse."""
_ITEM_BYTES = {"int64": 8, "float32": 4}
"""Of buffers with an element type of their own."""
MOST_BYTES = 1 << 62
"""Of all buffers of a trace together: sums of sizes are counted in 64 bits."""
LASTING = frozenset({"weight", "optimizer_state"})
"""Roles of buffers that exist before the first step and after the last one."""


class Step(NamedTuple):
    """One operation."""

    op: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    flops: float
    saved: Saved
    again: tuple[int, ...]
    """Buffers from further back that the step reads besides its operands."""


class Tape:
    """Buffers and steps, numbered in the order in which they are made."""

    def __init__(self, item_bytes: int, dtype: str, reuse_probability: float, chance: Chance) -> None:
        self.item_bytes = item_bytes
        self.dtype = dtype
        self.sizes: list[int] = []
        self.names: list[str] = []
        self.roles: list[str] = []
        self.dtypes: list[str] = []
        self.strides: dict[tuple[int, int], int] = {}
        """Stride in elements by step and buffer, where it is not 1."""
        self.steps: list[Step] = []
        self.iteration_starts: list[int] = []
        """Index of the first step of every iteration."""
        self._reuse_probability = reuse_probability
        self._chance = chance
        self._made_bytes = 0
        self._suffix = ""
        self._history: list[int] = []

    def begin_iteration(self) -> None:
        """Start another batch, optimizer step or token: what is made from now on bears its number."""
        count = len(self.iteration_starts)
        self._suffix = f"@{count}" if count else ""
        self.iteration_starts.append(len(self.steps))
        self._history = []

    def lasting(self, name: str, elements: int, role: str = "weight", dtype: str = "") -> int:
        """Return a new buffer that is there before the first step."""
        return self._buffer(name, elements, role, dtype)

    def fresh(self, name: str, elements: int, role: str = "activation", dtype: str = "") -> int:
        """Return a new buffer of this iteration."""
        return self._buffer(name + self._suffix, elements, role, dtype)

    def forward(
        self,
        op: str,
        reads: Sequence[int],
        name: str,
        elements: int,
        *,
        flops: float = 0.0,
        saved: Saved = "inputs",
    ) -> int:
        """Add a step that makes one new activation; return it."""
        made = self.fresh(name, elements)
        self.step(op, reads, (made,), flops or float(elements), saved, forward=True)
        return made

    def step(
        self,
        op: str,
        reads: Sequence[int],
        writes: Sequence[int],
        flops: float,
        saved: Saved = "nothing",
        *,
        forward: bool = False,
    ) -> None:
        """Add a step; a buffer in both ``reads`` and ``writes`` is updated in place."""
        again = self._again(reads) if forward else ()
        self.steps.append(Step(op, tuple(reads), tuple(writes), flops, saved, again))
        if forward:
            self._history += (*again, *reads, *writes)

    def strided(self, buffer: int, stride: int) -> None:
        """Note that the last step reads ``buffer`` with neighbours ``stride`` elements apart."""
        self.strides[len(self.steps) - 1, buffer] = stride

    def _buffer(self, name: str, elements: int, role: str, dtype: str) -> int:
        nbytes = elements * _ITEM_BYTES.get(dtype, self.item_bytes)
        self._made_bytes += nbytes
        if self._made_bytes >= MOST_BYTES:
            raise ValueError(
                f"[workload] {name} would have {nbytes} bytes, and all buffers {self._made_bytes}, "
                "over 2**62; take a smaller batch_size, seq_length or hidden_size"
            )
        self.sizes.append(nbytes)
        self.names.append(name)
        self.roles.append(role)
        self.dtypes.append(dtype or self.dtype)
        return len(self.sizes) - 1

    def _again(self, reads: Sequence[int]) -> tuple[int, ...]:
        """Return what the step happens to read of this iteration's past, besides ``reads``."""
        if not self._history:
            return ()
        chosen: list[int] = []
        for _ in range(CHANCES):
            if self._chance.uniform() < self._reuse_probability:
                buffer = self._history[self._chance.below(len(self._history))]
                if buffer not in reads and buffer not in chosen:
                    chosen.append(buffer)
        return tuple(chosen)
