"""Tensors between the devices of one model: arguments follow its units, gradients go back."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import nn

from accelera.offload.keeping.allocation_scope import JointScope, ScopeEntry
from accelera.offload.keeping.keeper import Keeper

_EVERYWHERE_BYTES = 1024
"""Smaller tensors come from no arena: they are on every simulated device."""

_Boundary = tuple[int | None, int]
"""Numbers of the devices that a tensor left and reached; None: the host."""


@final
class Crossings:
    """The devices of one model, each with its keeper, and what goes between them.

    At every time, each thread works on one of them: there its tensors are made and count.
    """

    def __init__(self, keepers: Sequence[Keeper]) -> None:
        self.keepers = tuple(keepers)
        self.scope = JointScope([keeper.scope for keeper in keepers])
        names = [keeper.name for keeper in keepers]
        alike = len(set(names)) < len(names)
        self._names = [f"{name} ({number})" if alike else name for number, name in enumerate(names)]
        self.handles: list[Any] = []
        """Of the hooks on the units."""
        self._moved: Counter[_Boundary] = Counter()
        self._lock = threading.Lock()

    @property
    def moved_bytes(self) -> Mapping[tuple[str, str], int]:
        """Bytes of tensors that went from one device, or the host, to another, by the names of both."""
        with self._lock:
            return {
                ("host" if source is None else self._names[source], self._names[target]): count
                for (source, target), count in self._moved.items()
            }

    def here(self) -> Keeper:
        """Return the keeper of the device on which this thread works."""
        return self.keepers[self.scope.current]

    def bring(self, value: Any, target: int) -> Any:
        """Return a tensor, or tuples, lists and dictionaries of such, on the device ``target``.

        What is there already, and what is of another kind, is returned as it is.
        """
        if type(value) in (torch.Tensor, nn.Parameter):
            return value if self._lies_on(value, target) else self._carried(value, target)
        if isinstance(value, dict):
            return self._with_parts(value, {key: self.bring(part, target) for key, part in value.items()})
        if isinstance(value, (tuple, list)):
            parts = [self.bring(part, target) for part in value]
            if all(part is known for part, known in zip(parts, value, strict=True)):
                return value
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        return value

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def bring_back(self, result: Any) -> Any:
        """Return the result of the model on the first device."""
        return self.bring(result, 0)

    def copied(self, tensor: torch.Tensor, source: int | None, target: int) -> torch.Tensor:
        """Return a copy on ``target`` of a tensor on ``source``."""
        with self._lock:
            self._moved[source, target] += tensor.nbytes
        keeper = self.keepers[target]
        entry = keeper.scope.open_for_use()
        try:
            return tensor.to(keeper.device, copy=True)
        finally:
            if entry is not None:
                entry.close()

    def _with_parts(self, known: dict[Any, Any], parts: dict[Any, Any]) -> dict[Any, Any]:
        """Return a dictionary of the kind of ``known``, such as a model's output, with other values."""
        changed = {key: part for key, part in parts.items() if part is not known[key]}
        if not changed:
            return known
        made = copy.copy(known)
        for key, part in changed.items():
            made[key] = part
        return made

    def _lies_on(self, tensor: torch.Tensor, target: int) -> bool:
        keeper = self.keepers[target]
        arena = keeper.scope.arena
        if tensor.device != keeper.device:
            return False
        if arena is None or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return True
        storage = tensor.untyped_storage()
        return storage.nbytes() < _EVERYWHERE_BYTES or arena.block_at(storage.data_ptr()) >= 0

    def _carried(self, tensor: torch.Tensor, target: int) -> torch.Tensor:
        known = (number for number in range(len(self.keepers)) if self._lies_on(tensor, number))
        source = next(known, None)
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return self.copied(tensor, source, target)
        carried: torch.Tensor = _Crossing.apply(tensor, self, source, target)  # type: ignore[no-untyped-call]
        return carried

    def __deepcopy__(self, memo: dict[int, Any]) -> Crossings:
        """Return itself: a copied model is on the same devices."""
        return self


class _Crossing(torch.autograd.Function):
    """A tensor goes to another device; the thread of its gradient works on the first one from there on."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, crossings: Crossings, source: int | None, target: int
    ) -> torch.Tensor:
        ctx.crossings, ctx.source, ctx.target, ctx.device = crossings, source, target, tensor.device
        ctx.set_materialize_grads(False)
        return crossings.copied(tensor, source, target)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        (gradient,) = gradients
        crossings, source = ctx.crossings, ctx.source
        if source is not None:
            crossings.scope.charge(source)
        if gradient is None:
            return None, None, None, None
        if source is None:
            back = gradient.to(ctx.device)
        elif gradient.requires_grad and torch.is_grad_enabled():
            back = _Crossing.apply(gradient, crossings, ctx.target, source)  # type: ignore[no-untyped-call]
        else:
            back = crossings.copied(gradient, ctx.target, source)
        return back, None, None, None


@final
class UnitHooks:
    """Hooks of a unit: its arguments come to its device, and what it makes is made there."""

    def __init__(self, crossings: Crossings | None, device: int) -> None:
        self._crossings = crossings
        self._device = device
        self._threads = threading.local()

    def put_on(self, unit: nn.Module) -> list[Any]:
        """Register them; return the handles."""
        return [
            unit.register_forward_pre_hook(self.begin, prepend=True, with_kwargs=True),
            unit.register_forward_hook(self.end, always_call=True),
        ]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def begin(self, unit: nn.Module, args: Any, kwargs: Any) -> Any:
        """Work on the unit's device, with its arguments there."""
        if self._crossings is None:
            return None
        scope = self._crossings.scope
        entry = scope.open_for_use()
        self._open().append((entry, scope.charge(self._device)))
        return self._crossings.bring(args, self._device), self._crossings.bring(kwargs, self._device)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def end(self, unit: nn.Module, args: Any, result: Any) -> None:
        """Work where the thread did before."""
        if self._crossings is None or not self._open():
            return
        entry, before = self._open().pop()
        self._crossings.scope.charge(before)
        if entry is not None:
            entry.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> UnitHooks:
        """Return the hooks of a copied unit, on the same device."""
        return UnitHooks(self._crossings, self._device)

    def __reduce__(self) -> Any:
        """Pickle as hooks that do nothing."""
        return UnitHooks, (None, self._device)

    def _open(self) -> list[tuple[ScopeEntry | None, int]]:
        opened: list[tuple[ScopeEntry | None, int]] = self._threads.__dict__.setdefault("open", [])
        return opened
