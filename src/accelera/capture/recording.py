"""Recording in progress: every operator that torch runs here becomes a step of the trace."""

from __future__ import annotations

import gc
import weakref
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from accelera.capture.dispatch_mode import Effect, Listener, tensors_in
from accelera.capture.flops import flops_of
from accelera.capture.storages import NOTHING, Scope, Storages
from accelera.capture.workspaces import workspace_bytes
from accelera.trace import Kind, Trace

_READ, _WRITE = int(Kind.READ), int(Kind.WRITE)
_Tensors = dict[int, torch.Tensor]
"""Tensors by the number of their storage."""


class OperatorRecording:
    """Records the operators that run inside its ``with`` block, in this thread and in autograd's.

    Every operator that touches contents is one step: its operands are read, what it changes in place is
    read and then written, what it makes is written. Views are no steps; they stand for their storage. A
    buffer is freed when its storage is.

    Parameters
    ----------
    names
        Whether activations are named after the module that makes them; without, recording is quicker.
    follow_optimizer
        Whether an iteration begins after each step of the first optimizer that steps.
    workspaces
        Whether what kernels of the CPU allocate for themselves counts, as buffers of one step.
    """

    def __init__(
        self, *, names: bool = True, follow_optimizer: bool = False, workspaces: bool = False
    ) -> None:
        self._columns = Columns()
        self.storages = Storages(on_death=self._end_buffer)
        self.scope = Scope(self.storages, self._after_step if follow_optimizer else lambda _: None)
        self._reusable: tuple[int, int] | None = None
        """The present step's result, and the operand it replaces if that operand's storage ends now."""
        self._births: dict[int, int] = {}
        """The step in which each buffer was made."""
        self._names, self._workspaces = names, workspaces
        self._listener = Listener(self._record)
        self._iterations: list[int] = []
        self.outputs_bytes = 0
        """Bytes of what the model returned, of the iteration with the most."""
        self._first_optimizer: Any = None
        self._preexisting = 0

    def __enter__(self) -> OperatorRecording:
        self._preexisting = len(self.storages)
        self.scope.open(follow_modules=self._names)
        try:
            self._listener.__enter__()  # type: ignore[no-untyped-call]
        except BaseException:
            self.scope.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        self.scope.close()
        self.storages.close()

    def begin_iteration(self) -> None:
        """Note that the next step is the first of an iteration."""
        self._iterations.append(len(self._columns.ops))

    @contextmanager
    def outputs_given_back(self) -> Iterator[None]:
        """Count what is freed in the block as the model's outputs, for ``outputs_bytes``."""
        begun = self._columns.events
        yield
        gc.collect()
        freed = self._columns.freed_since(begun)
        self.outputs_bytes = max(self.outputs_bytes, sum(self.storages.sizes_bytes[each] for each in freed))

    def idle_bytes(self) -> int:
        """Return the bytes that were described beforehand and never accessed."""
        idle = set(range(self._preexisting)) - self._columns.touched
        return sum(self.storages.sizes_bytes[each] for each in idle)

    def trace(self, *, model_type: str = "", **meta: Any) -> Trace:
        """Return what was recorded so far."""
        facts = {"iterations": self._iteration_starts() or [0], "torch": str(torch.__version__), **meta}
        return self._columns.trace(self.storages, model_type=model_type, meta=facts)

    def _iteration_starts(self) -> list[int]:
        """Return the first step of each iteration; steps after the last optimizer step begin no iteration."""
        if self._first_optimizer is not None:
            return self._iterations[:-1]
        return [each for each in self._iterations if each < len(self._columns.ops)]

    def _record(self, func: Any, effect: Effect, args: Any, kwargs: Any, result: Any) -> None:
        operands = {} if effect.creates else self._numbered((args, kwargs) if kwargs else args)
        results = self._numbered(result)
        changed = self._numbered(effect.changed_of(args, kwargs)) if effect.changed else {}
        made = {buffer: each for buffer, each in results.items() if buffer not in operands}
        only_views = results and not made and not changed
        if only_views or not (operands or made):
            return
        elements = max(each.numel() for each in (*operands.values(), *made.values()))
        self._columns.begin_step(effect.name, flops_of(func, effect.name, args, kwargs, result, elements))
        self._reusable = self._find_reusable(effect.name, args, made)
        filled = self._overwritten(changed) if effect.fills else {}
        self._record_reads({buffer: each for buffer, each in operands.items() if buffer not in filled})
        self._record_writes({**made, **filled}, effect.name)
        for buffer, tensor in changed.items():
            if buffer not in filled:
                self._columns.access(buffer, _WRITE, _stride(tensor))
        if self._workspaces:
            self._record_workspace(effect.name, workspace_bytes(func, args, kwargs))

    def _find_reusable(self, op: str, args: Any, made: _Tensors) -> tuple[int, int] | None:
        """Return the result, and the operand into which torch would have written it unobserved."""
        if len(made) != 1 or not args or not self.scope.works_in_place(op):
            return None
        ((result, tensor),) = made.items()
        first = args[0]
        if not isinstance(first, torch.Tensor) or first._is_view() or first.dtype != tensor.dtype:
            return None
        operand = self.storages.number(first)
        same_size = self.storages.sizes_bytes[operand] == self.storages.sizes_bytes[result]
        return (result, operand) if same_size and not self._come_from_one_step(args) else None

    def _come_from_one_step(self, args: Any) -> bool:
        """Return whether one step made both operands: torch's engine then still holds the first one."""
        births = [self._births.get(self.storages.number(each)) for each in tensors_in(args[:2])]
        return len(births) == 2 and births[0] is not None and births[0] == births[1]

    def _end_buffer(self, buffer: int) -> None:
        """End the buffer of a freed storage, unless the present step's result is written into that buffer."""
        if self._reusable is not None and buffer == self._reusable[1]:
            result, self._reusable = self._reusable[0], None
            self._births[buffer] = len(self._columns.ops)
            self._columns.write_into(buffer, result)
            self.storages.rename(result, buffer)
        else:
            self._columns.free(buffer)

    def _record_workspace(self, op: str, nbytes: int) -> None:
        """Record memory that the kernel of this step allocates and frees."""
        if nbytes:
            buffer = self.storages.add(nbytes, "uint8")
            self._describe(buffer, f"{op}.workspace", "workspace")
            self._columns.access(buffer, _WRITE, 1)
            self._columns.free(buffer)

    def _numbered(self, values: Any) -> _Tensors:
        number = self.storages.number
        found = {number(each): each for each in tensors_in(values)}
        found.pop(NOTHING, None)
        return found

    def _overwritten(self, changed: _Tensors) -> _Tensors:
        """Return the tensors that cover all of their storage, so that no old contents are left."""
        sizes = self.storages.sizes_bytes
        return {buffer: each for buffer, each in changed.items() if _covers(each, sizes[buffer])}

    def _record_reads(self, operands: _Tensors) -> None:
        for buffer, tensor in operands.items():
            if buffer not in self._columns.touched:
                self._describe(buffer, *_preexisting_name_and_role(tensor))
            self._columns.access(buffer, _READ, _stride(tensor))

    def _record_writes(self, made: _Tensors, op: str) -> None:
        if made:
            role = self.scope.role()
            name = self.scope.name(op, role)
        for buffer, tensor in made.items():
            self._describe(buffer, name, role)
            self._births[buffer] = len(self._columns.ops)
            self._columns.access(buffer, _WRITE, _stride(tensor))

    def _describe(self, buffer: int, name: str, role: str) -> None:
        storages = self.storages
        if not storages.roles[buffer]:
            storages.names[buffer], storages.roles[buffer] = name, role

    def _after_step(self, optimizer: Any) -> None:
        if not self._iterations:
            self._iterations.append(0)
            self._first_optimizer = weakref.ref(optimizer)
        if self._first_optimizer() is optimizer:
            self.begin_iteration()


def _preexisting_name_and_role(tensor: torch.Tensor) -> tuple[str, str]:
    """Return name and role of a buffer that existed before it was first read."""
    learned = tensor.requires_grad and tensor.is_leaf
    return ("weight", "weight") if learned else ("input", "input")


def _stride(tensor: torch.Tensor) -> int:
    return tensor.stride(-1) if tensor.dim() else 1


def _covers(tensor: torch.Tensor, nbytes: int) -> bool:
    return tensor.numel() * tensor.element_size() == nbytes


_FREE = int(Kind.FREE)


class Columns:
    """Grows by steps and events, and becomes a trace."""

    def __init__(self) -> None:
        self.ops: list[str] = []
        self.touched: set[int] = set()
        """Buffers that were accessed."""
        self._flops = array("d")
        self._buffer, self._kind = array("i"), array("B")
        self._step, self._stride = array("i"), array("q")

    def begin_step(self, op: str, flops: float) -> None:
        """Begin a step; later events are its own."""
        self.ops.append(op)
        self._flops.append(flops)

    def access(self, buffer: int, kind: int, stride: int) -> None:
        """Append a read or a write of the present step."""
        self.touched.add(buffer)
        self._append(buffer, kind, stride)

    def write_into(self, buffer: int, result: int) -> None:
        """Say that the present step wrote its ``result`` into ``buffer``."""
        place = len(self._buffer) - 1
        while place >= 0 and self._step[place] == len(self.ops) - 1:
            if self._buffer[place] == result:
                self._buffer[place] = buffer
            place -= 1

    def free(self, buffer: int) -> None:
        """Append the end of a buffer, unless nothing ever used it."""
        if buffer in self.touched:
            self._append(buffer, _FREE, 1)

    @property
    def events(self) -> int:
        """Number of events so far."""
        return len(self._buffer)

    def freed_since(self, begun: int) -> list[int]:
        """Return the buffers that ended after the first ``begun`` events."""
        ended = zip(self._buffer[begun:], self._kind[begun:], strict=True)
        return [buffer for buffer, kind in ended if kind == _FREE]

    def trace(self, storages: Storages, **more: Any) -> Trace:
        """Return the trace of what was recorded so far; ``more`` goes to ``Trace.from_arrays``."""
        buffer, order = self._numbered()
        sizes = np.array(storages.sizes_bytes, dtype=np.int64)
        return Trace.from_arrays(
            buffer,
            sizes[buffer],
            kinds=np.array(self._kind, np.int64),
            steps=np.array(self._step, np.int64),
            strides=np.array(self._stride, np.int64),
            names=[storages.names[each] for each in order],
            roles=[storages.roles[each] for each in order],
            dtypes=[storages.dtypes[each] for each in order],
            ops=self.ops,
            flops=np.array(self._flops),
            **more,
        )

    def _append(self, buffer: int, kind: int, stride: int) -> None:
        self._buffer.append(buffer)
        self._kind.append(kind)
        self._step.append(max(0, len(self.ops) - 1))
        self._stride.append(stride)

    def _numbered(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the buffer per event, and the distinct ones in the order of first use."""
        buffer = np.array(self._buffer, dtype=np.int64)
        values, first = np.unique(buffer, return_index=True)
        return buffer, values[np.argsort(first, kind="stable")]
