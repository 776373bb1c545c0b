"""Dry run of a plan: the trace that its run will leave, before there is a run."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelera.plan.eviction import Eviction
from accelera.plan.types import Operand, OperandBlock, PlanStep
from accelera.plan.walk import Pass, walk
from accelera.policy import EvictionPolicy
from accelera.trace import Kind, Trace


class BufferNumbers(dict[int, int]):
    """Gives each block the number of its first access, from 0, as traces number buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.following = 0
        """The next number."""

    def __missing__(self, block: int) -> int:
        self[block] = self.following
        self.following += 1
        return self[block]

    def keep(self, held: Collection[int], *, again: bool) -> None:
        """Forget all blocks but ``held``, as a pass ends; with ``again`` give their numbers once more."""
        kept = {block: number for block, number in self.items() if block in held}
        self.clear()
        self.update(kept)
        if again:
            self.following = max(kept.values(), default=-1) + 1


class _TraceWriter:
    """Notes what a walk does, in columns, exactly as the pool's recorder hears it in a run."""

    def __init__(self, operands: Sequence[Operand], *, described: bool, accesses_only: bool) -> None:
        self._operands = operands
        self._described = described
        self._accesses_only = accesses_only
        self._numbers = BufferNumbers()
        self.buffer, self.kind, self.step = array("i"), array("B"), array("i")
        self.size_bytes = array("q")
        self.dtypes: list[str] = []
        self.names: list[str] = []
        self._dtype_of = [str(operand.held_dtype) for operand in operands]

    def begin(self, following: Pass, held: Collection[int], step: int) -> None:
        """Free what the pass before leaves."""
        for block, number in self._numbers.items():
            if block not in held:
                self._note(number, Kind.FREE, step)
        self._numbers.keep(held, again=False)

    def wait(self, step: int) -> None:
        """On paper every step is done at once."""

    def admit(self, block: OperandBlock, step: int, *, write: bool) -> None:
        number = self._numbers[block.id]
        if number == len(self.size_bytes):
            self.size_bytes.append(block.held_bytes)
            self.dtypes.append(self._dtype_of[block.operand])
            self.names.append(block.name(self._operands) if self._described else "")
        self._note(number, Kind.WRITE if write else Kind.READ, step)

    def unpin(self, block: OperandBlock, step: int) -> None:
        self._note(self._numbers[block.id], Kind.RELEASE, step)

    def free(self, block: OperandBlock, step: int) -> None:
        number = self._numbers.pop(block.id)
        self._note(number, Kind.SAVE, step)
        self._note(number, Kind.FREE, step)

    def _note(self, number: int, kind: int, step: int) -> None:
        if kind <= Kind.WRITE or not self._accesses_only:
            self.buffer.append(number)
        if not self._accesses_only:
            self.kind.append(kind)
            self.step.append(step)


def trace_of(
    steps: Iterable[PlanStep],
    operands: Sequence[Operand],
    window: int,
    *,
    operation: str = "",
    accesses_only: bool = False,
) -> Trace:
    """Return the trace of running ``steps`` as one pass, ``window`` of them under way at once.

    ``accesses_only`` keeps the order of the accesses and nothing else: all are reads of one step.
    """
    one = (Pass(lambda: iter(steps)),)
    return trace_of_passes(one, operands, window, operation=operation, accesses_only=accesses_only)


def trace_of_passes(
    passes: Iterable[Pass],
    operands: Sequence[Operand],
    window: int,
    *,
    operation: str = "",
    described: bool = False,
    accesses_only: bool = False,
) -> Trace:
    """Return the trace of running ``passes``, ``window`` steps under way at once.

    What a pass reads are buffers of its own, freed when it ends. ``described`` gives each buffer the name of
    its block, which takes time and memory; ``accesses_only`` keeps the order of the accesses and nothing
    else: all are reads of one step.
    """
    writer = _TraceWriter(operands, described=described, accesses_only=accesses_only)
    seconds, flops = array("d"), array("d")
    for _, step in walk(passes, window, writer):
        if not accesses_only:
            seconds.append(step.compute_s)
            flops.append(step.flops)
    if accesses_only:
        return _order_of(writer)
    count, buffers = len(seconds), len(writer.size_bytes)
    return Trace(
        buffer=_column(writer.buffer, np.int32),
        kind=_column(writer.kind, np.uint8),
        step=_column(writer.step, np.int32),
        stride=np.broadcast_to(np.int64(1), len(writer.buffer)),
        size_bytes=_column(writer.size_bytes, np.int64),
        names=tuple(writer.names),
        roles=("tile",) * buffers,
        dtypes=tuple(writer.dtypes),
        ops=(operation,) * count,
        flops=_column(flops, np.float64),
        seconds=_column(seconds, np.float64),
        model_type=operation,
    )


def policy_of(
    steps: Iterable[PlanStep],
    operands: Sequence[Operand],
    window: int,
    eviction: Eviction,
    capacity_bytes: int,
    operation: str = "",
) -> EvictionPolicy:
    """Return a fresh policy that knows the accesses of ``steps``, which are one pass."""
    only_order = eviction.needs_only_order
    to_come = trace_of(steps, operands, window, operation=operation, accesses_only=only_order)
    return eviction.create(to_come, capacity_bytes)


def _order_of(writer: _TraceWriter) -> Trace:
    """Return the order of the accesses, four bytes for each."""
    count, buffers = len(writer.buffer), len(writer.size_bytes)
    return Trace(
        buffer=_column(writer.buffer, np.int32),
        kind=np.broadcast_to(np.uint8(Kind.READ), count),
        step=np.broadcast_to(np.int32(0), count),
        stride=np.broadcast_to(np.int64(1), count),
        size_bytes=_column(writer.size_bytes, np.int64),
        names=tuple(writer.names),
        roles=("tile",) * buffers,
        dtypes=tuple(writer.dtypes),
        ops=("",),
        flops=np.zeros(1),
        seconds=np.full(1, np.nan),
    )


def _column(values: array[int] | array[float], dtype: type[np.generic]) -> NDArray[Any]:
    return np.frombuffer(values, dtype) if values else np.empty(0, dtype)
