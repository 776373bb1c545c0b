"""A recording in progress: every operator that torch runs here becomes a step of the trace."""

from __future__ import annotations

import weakref
from array import array
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from accelera.interceptor.flops import flops_of
from accelera.interceptor.operands import Effect, effect_of, tensors_in
from accelera.interceptor.scope import Scope
from accelera.interceptor.storages import NOTHING, Storages
from accelera.trace import Kind, Trace

_READ, _WRITE, _FREE = int(Kind.READ), int(Kind.WRITE), int(Kind.FREE)


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
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
    """

    supports_higher_order_operators = True

    def __init__(self, *, names: bool = True, follow_optimizer: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages = Storages(self._free)
        self.scope = Scope(self.storages, self._after_step if follow_optimizer else lambda _: None)
        self._names = names
        self._effects: dict[Any, Effect] = {}
        self._plain: dict[Any, bool] = {}
        self._buffer, self._kind = array("i"), array("B")
        self._step, self._stride = array("i"), array("q")
        self._ops: list[str] = []
        self._flops = array("d")
        self._touched: set[int] = set()
        self._iterations: list[int] = []
        self._leader: Any = None

    def __enter__(self) -> Recording:
        self.scope.open(follow_modules=self._names)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        self.scope.close()
        self.storages.close()

    def begin_iteration(self) -> None:
        """Note that the next step is the first of an iteration."""
        self._iterations.append(len(self._ops))

    def idle_bytes(self) -> int:
        """Return the bytes that were described beforehand and never accessed."""
        sizes = self.storages.sizes_bytes
        return sum(sizes[each] for each in range(len(sizes)) if each not in self._touched)

    def trace(self, *, model_type: str = "", **meta: Any) -> Trace:
        """Return what was recorded so far."""
        ids = np.frombuffer(self._buffer, np.int32) if self._buffer else np.zeros(0, np.int32)
        values, first = np.unique(ids, return_index=True)
        order = values[np.argsort(first, kind="stable")]
        sizes = np.array(self.storages.sizes_bytes, dtype=np.int64)
        return Trace.from_arrays(
            ids,
            sizes[ids] if len(ids) else sizes[:0],
            kinds=np.array(self._kind, np.int64),
            steps=np.array(self._step, np.int64),
            strides=np.array(self._stride, np.int64),
            names=[self.storages.names[each] for each in order],
            roles=[self.storages.roles[each] for each in order],
            dtypes=[self.storages.dtypes[each] for each in order],
            ops=self._ops,
            flops=np.array(self._flops),
            model_type=model_type,
            meta={"iterations": self._iterations or [0], "torch": torch.__version__, **meta},
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func`` and record what it did; called by torch."""
        if types and not self._are_plain(types):
            return NotImplemented
        effect = self._effects.get(func)
        if effect is None:
            effect = self._effects[func] = effect_of(func)
        if effect.silent:
            return func(*args, **(kwargs or {}))
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self._record(func, effect, args, kwargs, result)
        return result

    def _are_plain(self, types: Any) -> bool:
        """Whether no type wraps other tensors; those are taken apart first, then recorded."""
        key = tuple(types)
        known = self._plain.get(key)
        if known is None:
            known = self._plain[key] = not any(hasattr(each, "__tensor_flatten__") for each in key)
        return known

    def _record(self, func: Any, effect: Effect, args: Any, kwargs: Any, result: Any) -> None:
        number = self.storages.number
        operands = {number(each): each for value in (args, kwargs) for each in tensors_in(value)}
        made = {number(each): each for each in tensors_in(result)}
        aliases = made.keys() & operands.keys()
        changed = {number(each): each for each in self._changed(effect, args, kwargs)}
        made = {buffer: each for buffer, each in made.items() if buffer not in operands}
        if effect.name.startswith("lift"):
            operands, made = {}, {**operands, **made}
        for unwanted in (operands, made, changed):
            unwanted.pop(NOTHING, None)
        if (aliases and not made and not changed) or not (operands or made):
            return
        self._append_step(func, effect, operands, changed, made)
        largest = max((t.numel() for t in (*operands.values(), *made.values())), default=0)
        self._flops.append(flops_of(func, effect.name, args, kwargs, result, largest))

    def _changed(self, effect: Effect, args: Any, kwargs: Any) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for where in effect.changed:
            if isinstance(where, str):
                found += tensors_in(kwargs.get(where))
            elif where < len(args):
                found += tensors_in(args[where])
        return found

    def _append_step(self, func: Any, effect: Effect, operands: Any, changed: Any, made: Any) -> None:
        step = len(self._ops)
        self._ops.append(effect.name)
        for buffer, tensor in operands.items():
            if (
                buffer in changed
                and effect.fills
                and _covers(changed[buffer], self.storages.sizes_bytes[buffer])
            ):
                continue
            if buffer not in self._touched:
                self._describe_outsider(buffer, tensor)
            self._append(buffer, _READ, step, tensor)
        role = self.scope.role() if made else ""
        for buffer, tensor in made.items():
            self._describe_made(buffer, effect.name, role)
            self._append(buffer, _WRITE, step, tensor)
        for buffer, tensor in changed.items():
            self._append(buffer, _WRITE, step, tensor)

    def _append(self, buffer: int, kind: int, step: int, tensor: torch.Tensor) -> None:
        self._touched.add(buffer)
        self._buffer.append(buffer)
        self._kind.append(kind)
        self._step.append(step)
        self._stride.append(tensor.stride(-1) if tensor.dim() else 1)

    def _describe_outsider(self, buffer: int, tensor: torch.Tensor) -> None:
        if not self.storages.roles[buffer]:
            weight = isinstance(tensor, torch.nn.Parameter)
            self.storages.roles[buffer] = "weight" if weight else "input"
            self.storages.names[buffer] = self.storages.names[buffer] or ("weight" if weight else "input")

    def _describe_made(self, buffer: int, op: str, role: str) -> None:
        if not self.storages.roles[buffer]:
            self.storages.roles[buffer] = role
            self.storages.names[buffer] = self.scope.name(op, role)

    def _free(self, buffer: int) -> None:
        if buffer in self._touched:
            self._buffer.append(buffer)
            self._kind.append(_FREE)
            self._step.append(max(0, len(self._ops) - 1))
            self._stride.append(1)

    def _after_step(self, optimizer: Any) -> None:
        if not self._iterations:
            self._iterations.append(0)
            self._leader = weakref.ref(optimizer)
        if self._leader() is optimizer:
            self.begin_iteration()


def _covers(tensor: torch.Tensor, nbytes: int) -> bool:
    return tensor.numel() * tensor.element_size() == nbytes
