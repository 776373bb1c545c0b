"""Dataflow of a trace: each write makes a value, each step reads values; phases separate the graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from accelera.simulator.compiling.operations import OpKind, base_name, kind_of
from accelera.trace import Kind, Trace

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"

_ITEMSIZES = {"bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "bool": 1}


@dataclass
class TracedValue:
    """The contents of a buffer between two writes."""

    buffer: int
    nbytes: int
    elements: int
    producer: int
    """Step that wrote it; -1 when it existed before the trace."""
    born: int = 0
    """Event that wrote it."""
    consumers: list[int] = field(default_factory=list)
    """Steps that read it, in order."""
    stays: bool = False
    """Whether it is the buffer's last contents and is never freed: a result."""
    dies: int = 0
    """Event of the trace that frees or overwrites its buffer; the number of events if none does."""


@dataclass
class TracedOperation:
    """One step of the trace, as a compiler sees it."""

    index: int
    op: str
    kind: OpKind
    phase: str
    flops: float
    reads: list[int] = field(default_factory=list)
    """Values read."""
    writes: list[int] = field(default_factory=list)
    """Values made."""
    read_bytes: int = 0
    written_bytes: int = 0
    domain: int = 0
    """Elements of the loop that computes it: of its largest result, of its largest operand if it reduces."""
    outer: int = 0
    """Elements of its largest result."""

    @property
    def nbytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes

    @property
    def runs(self) -> bool:
        """Whether it is launched when the program runs as traced."""
        return self.kind is not OpKind.VIEW and self.nbytes > 0


@dataclass(frozen=True)
class Dataflow:
    """Operations and the values between them."""

    operations: Sequence[TracedOperation]
    values: Sequence[TracedValue]

    def producers(self, operation: TracedOperation) -> Iterator[int]:
        """Yield the steps whose results ``operation`` reads."""
        for value in operation.reads:
            if self.values[value].producer >= 0:
                yield self.values[value].producer


def dataflow_of(trace: Trace) -> Dataflow:
    """Return the dataflow of a trace."""
    phases = phases_of(trace)
    operations = [
        TracedOperation(index, op, kind_of(op), phase, flops)
        for index, (op, phase, flops) in enumerate(zip(trace.ops, phases, trace.flops.tolist(), strict=True))
    ]
    values = _Values(trace)
    events = zip(trace.buffer.tolist(), trace.kind.tolist(), trace.step.tolist(), strict=True)
    for event, (buffer, kind, step) in enumerate(events):
        if kind == Kind.READ:
            values.read(buffer, operations[step])
        elif kind in (Kind.WRITE, Kind.FREE):
            values.end(buffer, event)
            if kind == Kind.WRITE:
                values.write(buffer, operations[step], event)
    values.close(len(trace))
    for operation in operations:
        _describe(operation, values.made)
    return Dataflow(operations, values.made)


def phases_of(trace: Trace) -> list[str]:
    """Return per step ``forward``, ``backward`` or ``optimizer``.

    Backward begins with the first step that writes a gradient or is named ``…_backward``, the optimizer with
    the first that touches its state; after it the next iteration's forward begins.
    """
    roles = np.array(trace.roles, dtype=object)
    touched = roles[trace.buffer] if len(trace) else roles
    state = _steps_where(trace, (touched == "optimizer_state") & trace.is_access)
    gradient = _steps_where(trace, (touched == "gradient") & (trace.kind == Kind.WRITE))
    starts = set(trace.meta.get("iterations", ()))
    phase, phases = FORWARD, []
    for step, op in enumerate(trace.ops):
        if step in starts:
            phase = FORWARD
        if step in state:
            phase = OPTIMIZER
        elif phase == FORWARD and (step in gradient or base_name(op).endswith("_backward")):
            phase = BACKWARD
        phases.append(phase)
    return phases


def _steps_where(trace: Trace, chosen: NDArray[np.bool_]) -> set[int]:
    return set(trace.step[chosen].tolist())


class _Values:
    """The values made so far and which of them each buffer holds."""

    def __init__(self, trace: Trace) -> None:
        self.made: list[TracedValue] = []
        self.current: dict[int, int] = {}
        self._sizes = trace.size_bytes.tolist()
        self._elements = [
            size // _itemsize(dtype) for size, dtype in zip(self._sizes, trace.dtypes, strict=True)
        ]

    def read(self, buffer: int, operation: TracedOperation) -> None:
        value = self.current.get(buffer)
        if value is None:
            value = self._make(buffer, -1)
        if value not in operation.reads:
            operation.reads.append(value)
            self.made[value].consumers.append(operation.index)

    def write(self, buffer: int, operation: TracedOperation, event: int) -> None:
        operation.writes.append(self._make(buffer, operation.index, event))

    def end(self, buffer: int, event: int) -> None:
        value = self.current.pop(buffer, None)
        if value is not None:
            self.made[value].dies = event

    def close(self, event: int) -> None:
        for value in self.current.values():
            self.made[value].stays, self.made[value].dies = True, event

    def _make(self, buffer: int, producer: int, event: int = 0) -> int:
        self.made.append(TracedValue(buffer, self._sizes[buffer], self._elements[buffer], producer, event))
        self.current[buffer] = len(self.made) - 1
        return len(self.made) - 1


def _itemsize(dtype: str) -> int:
    if dtype in _ITEMSIZES:
        return _ITEMSIZES[dtype]
    try:
        return np.dtype(dtype).itemsize if dtype else 1
    except TypeError:
        return 1


def _describe(operation: TracedOperation, values: Sequence[TracedValue]) -> None:
    """Fill in sizes, and what only they can tell of the operation's kind."""
    reads, writes = [values[v] for v in operation.reads], [values[v] for v in operation.writes]
    operation.read_bytes = sum(value.nbytes for value in reads)
    operation.written_bytes = sum(value.nbytes for value in writes)
    operation.outer = max((value.elements for value in writes), default=0)
    largest = max((value.elements for value in reads), default=0)
    changed = {value.buffer for value in reads}
    made = sum(value.nbytes > 0 and value.buffer not in changed for value in writes)
    operation.kind = _kind_by_size(operation, largest, made)
    loops = operation.kind in (OpKind.POINTWISE, OpKind.CONSTANT)
    operation.domain = operation.outer if loops else max(largest, operation.outer)


def _kind_by_size(operation: TracedOperation, largest: int, made: int) -> OpKind:
    if operation.kind is OpKind.ROW_REDUCTION and operation.outer < largest:
        if operation.outer == 1:
            return OpKind.FULL_REDUCTION
        # A sum that makes something smaller on the way back is a gradient of what was broadcast.
        return OpKind.COLUMN_REDUCTION if operation.phase == BACKWARD else operation.kind
    if operation.kind is OpKind.COLUMN_THEN_POINTWISE and made == 1:
        return OpKind.POINTWISE
    return operation.kind
