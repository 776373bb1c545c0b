"""Storages seen while recording (number, name, role, moment of death), and the scope that names them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from accelera.capture.dispatch_mode import tensors_in

NOTHING = -1
"""Number of a storage of no bytes: it is left out."""


class _StorageRef(weakref.ref[Any]):
    """A weak reference that knows which buffer it stands for."""

    __slots__ = ("buffer", "key", "nbytes")

    buffer: int
    key: int
    nbytes: int


class Storages:
    """Numbers storages from 0 and tells when each dies.

    Views share their storage, hence their number. A storage that is resized gets a new number, since a
    buffer of a trace keeps its size. Nothing is kept alive.

    Parameters
    ----------
    on_death
        Called with a buffer's number when its storage is given back.
    """

    def __init__(self, on_death: Callable[[int], None]) -> None:
        self._on_death = on_death
        self._watches: dict[int, _StorageRef] = {}
        self.sizes_bytes: list[int] = []
        self.dtypes: list[str] = []
        self.names: list[str] = []
        self.roles: list[str] = []

    def __len__(self) -> int:
        return len(self.sizes_bytes)

    def number(self, tensor: torch.Tensor) -> int:
        """Return the number of the storage under ``tensor``, a new one when it was not seen before."""
        storage = tensor.untyped_storage()
        watch = self._watches.get(storage._cdata)
        nbytes = storage.nbytes()
        if watch is not None:
            if watch.nbytes == nbytes:
                return watch.buffer
            self._forget(watch)
        if not nbytes:
            return NOTHING
        return self._watch(storage, nbytes, tensor.dtype)

    def describe(self, tensor: torch.Tensor, name: str, role: str) -> None:
        """Say what the storage under ``tensor`` is."""
        buffer = self.number(tensor)
        if buffer != NOTHING:
            self.names[buffer] = name
            self.roles[buffer] = role

    def name_of(self, tensor: torch.Tensor) -> str:
        """Return the name of the storage under ``tensor``; ``""`` when it has none."""
        buffer = self.number(tensor)
        return "" if buffer == NOTHING else self.names[buffer]

    def role_of(self, tensor: torch.Tensor) -> str:
        """Return the role of the storage under ``tensor``; ``""`` when it is not known."""
        buffer = self.number(tensor)
        return "" if buffer == NOTHING else self.roles[buffer]

    def rename(self, buffer: int, other: int) -> None:
        """Let the storage of ``buffer``, one of the last that were seen, stand for ``other``."""
        for watch in reversed(self._watches.values()):
            if watch.buffer == buffer:
                watch.buffer = other
                return

    def close(self) -> None:
        """Watch no more: later deaths are not reported."""
        self._watches.clear()

    def add(self, nbytes: int, dtype: str) -> int:
        """Return the number of a new buffer that no tensor shows."""
        self.sizes_bytes.append(nbytes)
        self.dtypes.append(dtype)
        self.names.append("")
        self.roles.append("")
        return len(self.sizes_bytes) - 1

    def _watch(self, storage: Any, nbytes: int, dtype: torch.dtype) -> int:
        watch = _StorageRef(storage, self._forget)
        watch.key, watch.nbytes = storage._cdata, nbytes
        watch.buffer = self.add(nbytes, str(dtype).removeprefix("torch."))
        self._watches[watch.key] = watch
        return watch.buffer

    def _forget(self, watch: _StorageRef) -> None:
        if self._watches.get(watch.key) is watch:
            del self._watches[watch.key]
            self._on_death(watch.buffer)


_GRADIENT_SUMS = (
    "add",
    "index_put",
    "scatter",
    "scatter_add",
    "index_add",
    "masked_scatter",
    "select_scatter",
)
"""Operators that accumulate gradients, or scatter a gradient into zeros."""

_LINEAR = (torch.nn.Linear, torch.nn.RNNBase)
"""Modules that multiply and add a bias by ``torch.nn.functional.linear``."""


class Scope:
    """Follows modules and optimizers by torch's global hooks, and describes their storages.

    Parameters
    ----------
    storages
        Told which storages are weights, gradients and optimizer state, and their names.
    on_step
        Called after each optimizer's step with the optimizer.
    """

    def __init__(self, storages: Storages, on_step: Callable[[Any], None]) -> None:
        self._storages = storages
        self._on_step = on_step
        self._paths: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._stack: list[str] = []
        self._kinds: list[type] = []
        self._optimizing = False
        self._hooks = ExitStack()

    def open(self, *, follow_modules: bool) -> None:
        """Put the hooks in place; ``follow_modules`` gives activations the path of their module."""
        handles = [
            optimizers.register_optimizer_step_pre_hook(self._before_step),
            optimizers.register_optimizer_step_post_hook(self._after_step),
        ]
        if follow_modules:
            handles += [
                modules.register_module_forward_pre_hook(self._enter),
                modules.register_module_forward_hook(self._leave, always_call=True),
            ]
        for handle in handles:
            self._hooks.callback(handle.remove)

    def close(self) -> None:
        """Take the hooks away."""
        self._hooks.close()

    def add_module(self, root: Any) -> None:
        """Name the parts of ``root``: paths of modules, weights and buffers."""
        prefix = type(root).__name__ if len(self._paths) else ""
        for path, part in root.named_modules(prefix=prefix):
            self._paths.setdefault(part, path)
        named = [*root.named_parameters(prefix=prefix), *root.named_buffers(prefix=prefix)]
        for name, tensor in named:
            self._describe_weight(tensor, name)

    def add_gradients(self, named: Any) -> None:
        """Name the gradients of ``named`` parameters, pairs of name and tensor."""
        for name, parameter in named:
            for plain in tensors_in(parameter.grad):
                self._storages.describe(plain, f"{name}.grad", "gradient")

    def works_in_place(self, op: str) -> bool:
        """Return whether torch, unobserved, writes the result of ``op`` into an operand no longer needed.

        While operators are observed it does not. The cases are sums of gradients, gradients scattered into
        zeros, and the bias of a linear layer whose rows are not contiguous.
        """
        if torch._C._current_graph_task_id() != -1:
            is_python = isinstance(
                torch._C._current_autograd_node(), torch.autograd.function.BackwardCFunction
            )
            return op in _GRADIENT_SUMS and not is_python
        return op == "add" and bool(self._kinds) and issubclass(self._kinds[-1], _LINEAR)

    @property
    def path(self) -> str:
        """Path of the innermost module that runs; ``""`` outside."""
        return self._stack[-1] if self._stack else ""

    def role(self) -> str:
        """Return what a buffer made now is."""
        if self._optimizing:
            return "workspace"
        in_backward = torch._C._current_graph_task_id() != -1
        recomputing = bool(self._stack) or torch.is_grad_enabled()
        return "gradient" if in_backward and not recomputing else "activation"

    def name(self, op: str, role: str) -> str:
        """Return a name for a buffer that ``op`` makes now."""
        where = {"gradient": "backward", "workspace": "optimizer"}.get(role, self.path)
        return f"{where}.{op}" if where else op

    def _enter(self, module: Any, _args: Any) -> None:
        if not self._stack:
            self._optimizing = False
            if module not in self._paths:
                self.add_module(module)
        self._stack.append(self._paths.get(module, self.path))
        self._kinds.append(type(module))

    def _leave(self, _module: Any, _args: Any, _output: Any) -> None:
        self._stack.pop()
        self._kinds.pop()

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._optimizing = True
        parameters = _parameters(optimizer)
        for each in parameters:
            self._describe_weight(each, "parameter")
        self.add_gradients((self._name_of(each), each) for each in parameters)

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._optimizing = False
        for parameter in _parameters(optimizer):
            for key, value in optimizer.state.get(parameter, {}).items():
                for plain in tensors_in(value):
                    self._storages.describe(plain, f"{self._name_of(parameter)}.{key}", "optimizer_state")
        self._on_step(optimizer)

    def _describe_weight(self, tensor: Any, name: str) -> None:
        """Name a weight that no other module named first."""
        for plain in tensors_in(tensor):
            if self._storages.role_of(plain) != "weight":
                self._storages.describe(plain, name, "weight")

    def _name_of(self, parameter: Any) -> str:
        first = next(tensors_in(parameter), None)
        known = "" if first is None else self._storages.name_of(first)
        return known or "parameter"


def _parameters(optimizer: Any) -> list[Any]:
    return [each for group in optimizer.param_groups for each in group["params"]]
