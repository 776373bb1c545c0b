"""Program of a synthetic workload: its steps in order, the buffers they use, and the trace of both.

Models put their forward steps into the program; the backward pass and the optimizer are derived from it.
A buffer is freed after its last access, so nothing is used after it was freed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accelera.errors import ArgumentError
from accelera.trace import Kind, Trace

_BLOCK = 512


class SeededRandom:
    """A seeded random number generator."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._ready: list[float] = []

    def uniform(self) -> float:
        """Return a number in [0, 1)."""
        if not self._ready:
            self._ready = self._generator.random(_BLOCK).tolist()
        return self._ready.pop()

    def uniforms(self, count: int) -> NDArray[np.float64]:
        """Return numbers in [0, 1), shape (count,)."""
        return self._generator.random(count)

    def below(self, bound: int) -> int:
        """Return a random integer from 0 to ``bound - 1``."""
        return int(self.uniform() * bound)


Saved = Literal["inputs", "outputs", "nothing"]
"""The arrays of a forward step that its backward step reads."""
MOST_EXTRA_READS = 2
"""Most further buffers that a forward step reads, each with the probability of reuse."""
_ITEM_BYTES = {"int64": 8, "float32": 4}
"""Of buffers with an element type of their own."""
MOST_BYTES = 1 << 62
"""Of all buffers of a trace together: sums of sizes are counted in 64 bits."""
PERSISTENT_ROLES = frozenset({"weight", "optimizer_state"})
"""Roles of buffers that exist before the first step and after the last one."""


class WorkloadStep(NamedTuple):
    """One operation."""

    op: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    flops: float
    saved: Saved
    extra_reads: tuple[int, ...]
    """Earlier buffers of the iteration that the step reads besides its operands."""


class WorkloadProgram:
    """Buffers and steps, numbered in the order in which they are made."""

    def __init__(self, item_bytes: int, dtype: str, reuse_probability: float, random: SeededRandom) -> None:
        self.item_bytes = item_bytes
        self.dtype = dtype
        self.sizes: list[int] = []
        self.names: list[str] = []
        self.roles: list[str] = []
        self.dtypes: list[str] = []
        self.strides: dict[tuple[int, int], int] = {}
        """Stride in elements by step and buffer, where it is not 1."""
        self.steps: list[WorkloadStep] = []
        self.iteration_starts: list[int] = []
        """Index of the first step of every iteration."""
        self._reuse_probability = reuse_probability
        self._random = random
        self._made_bytes = 0
        self._suffix = ""
        self._history: list[int] = []

    def begin_iteration(self) -> None:
        """Start another batch, optimizer step or token; names of later buffers carry its number."""
        count = len(self.iteration_starts)
        self._suffix = f"@{count}" if count else ""
        self.iteration_starts.append(len(self.steps))
        self._history = []

    def persistent(self, name: str, elements: int, role: str = "weight", dtype: str = "") -> int:
        """Return a new buffer that exists before the first step."""
        return self._buffer(name, elements, role, dtype)

    def temporary(self, name: str, elements: int, role: str = "activation", dtype: str = "") -> int:
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
        made = self.temporary(name, elements)
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
        extra_reads = self._extra_reads(reads) if forward else ()
        self.steps.append(WorkloadStep(op, tuple(reads), tuple(writes), flops, saved, extra_reads))
        if forward:
            self._history += (*extra_reads, *reads, *writes)

    def strided(self, buffer: int, stride: int) -> None:
        """Record that the last step reads ``buffer`` with a stride of ``stride`` elements."""
        self.strides[len(self.steps) - 1, buffer] = stride

    def _buffer(self, name: str, elements: int, role: str, dtype: str) -> int:
        nbytes = elements * _ITEM_BYTES.get(dtype, self.item_bytes)
        self._made_bytes += nbytes
        if self._made_bytes >= MOST_BYTES:
            raise ArgumentError(
                f"[workload] {name} would have {nbytes} bytes, and all buffers {self._made_bytes}, "
                "over 2**62; take a smaller batch_size, seq_length or hidden_size"
            )
        self.sizes.append(nbytes)
        self.names.append(name)
        self.roles.append(role)
        self.dtypes.append(dtype or self.dtype)
        return len(self.sizes) - 1

    def _extra_reads(self, reads: Sequence[int]) -> tuple[int, ...]:
        """Draw earlier buffers of this iteration that the step reads besides ``reads``."""
        if not self._history:
            return ()
        chosen: list[int] = []
        for _ in range(MOST_EXTRA_READS):
            if self._random.uniform() < self._reuse_probability:
                buffer = self._history[self._random.below(len(self._history))]
                if buffer not in reads and buffer not in chosen:
                    chosen.append(buffer)
        return tuple(chosen)


Integers = NDArray[np.int64]


def trace_of_program(
    program: WorkloadProgram, results: tuple[int, ...], *, model_type: str, meta: Mapping[str, Any]
) -> Trace:
    """Return the trace of ``program``; ``results`` are not freed."""
    buffers, kinds, steps = _accesses(program)
    strides = _strides(program, buffers, kinds, steps)
    dead, when = _frees(program, results, buffers, steps)
    order = np.argsort(np.concatenate([steps, when]), kind="stable")
    ids = np.concatenate([buffers, dead])[order]
    used, first = np.unique(ids, return_index=True)
    described = used[np.argsort(first)].tolist()
    sizes = np.array(program.sizes, dtype=np.int64)
    return Trace.from_arrays(
        ids,
        sizes[ids],
        kinds=np.concatenate([kinds, np.full(len(dead), Kind.FREE)])[order],
        steps=np.concatenate([steps, when])[order],
        strides=np.concatenate([strides, np.ones(len(dead), dtype=np.int64)])[order],
        names=[program.names[each] for each in described],
        roles=[program.roles[each] for each in described],
        dtypes=[program.dtypes[each] for each in described],
        ops=[step.op for step in program.steps],
        flops=[step.flops for step in program.steps],
        model_type=model_type,
        meta={**meta, "iterations": program.iteration_starts},
    )


def _accesses(program: WorkloadProgram) -> tuple[Integers, Integers, Integers]:
    """Return buffer, kind and step per access: a step reads, then writes."""
    buffers: list[int] = []
    counts: list[int] = []
    for step in program.steps:
        buffers += (*step.extra_reads, *step.reads, *step.writes)
        counts += (len(step.extra_reads) + len(step.reads), len(step.writes))
    repeats = np.array(counts, dtype=np.int64)
    halves = np.repeat(np.arange(len(repeats), dtype=np.int64), repeats)
    return np.array(buffers, dtype=np.int64), halves % 2, halves // 2


def _strides(program: WorkloadProgram, buffers: Integers, kinds: Integers, steps: Integers) -> Integers:
    """Return the stride of each access."""
    found = np.ones(len(buffers), dtype=np.int64)
    if not program.strides:
        return found
    places = np.array(list(program.strides), dtype=np.int64)
    noted = places[:, 0] * len(program.sizes) + places[:, 1]
    order = np.argsort(noted)
    wanted = steps * len(program.sizes) + buffers
    at = order[np.minimum(np.searchsorted(noted, wanted, sorter=order), len(order) - 1)]
    here = (noted[at] == wanted) & (kinds == Kind.READ)
    found[here] = np.array(list(program.strides.values()), dtype=np.int64)[at[here]]
    return found


def _frees(
    program: WorkloadProgram, results: tuple[int, ...], buffers: Integers, steps: Integers
) -> tuple[Integers, Integers]:
    """Return the buffers to free, and the step after which each is freed."""
    last = np.full(len(program.sizes), -1, dtype=np.int64)
    last[buffers] = steps
    dies = np.array([role not in PERSISTENT_ROLES for role in program.roles]) & (last >= 0)
    dies[list(results)] = False
    dead = np.flatnonzero(dies)
    return dead, last[dead]
