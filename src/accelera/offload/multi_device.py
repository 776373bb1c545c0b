"""One model over several devices: units assigned to them, and tensors transferred between them."""

from __future__ import annotations

import copy
import itertools
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn

from accelera.offload.allocation_scope import JointScope, ScopeEntry
from accelera.offload.block_cache import BlockCache
from accelera.offload.module import storage_key, tensors_of
from accelera.offload.tensor import not_compiled

_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
"""Opened where they are exactly these: a subclass may do anything with its children."""


@dataclass(frozen=True)
class Assignment:
    """The devices, by number, of what a model consists of."""

    units: tuple[tuple[nn.Module, int], ...]
    tensors: dict[str, int]
    """Of each parameter and buffer, by its first name."""

    @property
    def devices(self) -> tuple[int, ...]:
        """Numbers of the devices that have anything, in order."""
        return tuple(sorted(set(self.tensors.values())))


def assigned(model: nn.Module, budgets: Sequence[int]) -> Assignment:
    """Assign the units of ``model`` to devices with ``budgets`` in bytes.

    Each device gets a row of units, of bytes in proportion to its budget. Units that share a weight are on
    one device, that of the first of them. What belongs to no unit is on the first device in use.
    """
    units = units_of(model)
    owner: dict[int, int] = {}
    roots, sizes = list(range(len(units))), [0] * len(units)
    for number, unit in enumerate(units):
        shared = set()
        for _, tensor in tensors_of(unit):
            first = owner.setdefault(storage_key(tensor), number)
            shared.add(_root(roots, first))
        for other in shared:
            roots[other] = min(shared)
        roots[number] = min(shared)
    for key, nbytes in _storages(model).items():
        if key in owner:
            sizes[_root(roots, owner[key])] += nbytes
    devices = _split_by_budget(sizes, budgets)
    of_unit = [devices[_root(roots, number)] for number in range(len(units))]
    return Assignment(
        tuple(zip(units, of_unit, strict=True)),
        {name: of_unit[owner.get(storage_key(tensor), 0)] for name, tensor in tensors_of(model)},
    )


def units_of(model: nn.Module) -> list[nn.Module]:
    """Return what stays whole: the elements of lists and sequences, and other modules without lists in them.

    A model that is one unit but for what surrounds it is opened further.
    """
    units = list(dict.fromkeys(_units(model)))
    while len(units) == 1 and (parts := list(dict.fromkeys(_units(units[0])))):
        units = parts
    return units or [model]


def _units(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if next(child.parameters(), None) is None:
            continue
        if type(child) in _LISTS or (type(module) not in _LISTS and _has_list(child)):
            yield from _units(child)
        else:
            yield child


def _has_list(module: nn.Module) -> bool:
    return any(
        type(part) in _LISTS and next(part.parameters(), None) is not None for part in module.modules()
    )


def _root(roots: list[int], number: int) -> int:
    while roots[number] != number:
        number = roots[number]
    return number


def _storages(model: nn.Module) -> dict[int, int]:
    """Return the bytes of each storage, under its key."""
    sizes: dict[int, int] = {}
    for _, tensor in tensors_of(model):
        key = storage_key(tensor)
        sizes[key] = max(sizes.get(key, 0), tensor.nbytes)
    return sizes


def _split_by_budget(sizes: Sequence[int], budgets: Sequence[int]) -> list[int]:
    """Return a device for each size: the one whose share of the total contains the size's midpoint."""
    ends = list(itertools.accumulate(budgets))
    devices, start = [], 0
    for size in sizes:
        middle = (2 * start + size) * ends[-1]
        devices.append(next(i for i, end in enumerate(ends) if middle <= 2 * sum(sizes) * end))
        start += size
    return devices


_UNCOUNTED_BYTES = 1024
"""Smaller tensors come from no arena: they are taken to be on every simulated device."""

_Boundary = tuple[int | None, int]
"""Numbers of the devices that a tensor left and reached; None: the host."""


@final
class DeviceTransfers:
    """The devices of one model, each with its cache, and what goes between them.

    At every time, each thread works on one of them: there its tensors are made and count.
    """

    def __init__(self, caches: Sequence[BlockCache]) -> None:
        self.caches = tuple(caches)
        self.scope = JointScope([cache.scope for cache in caches])
        names = [cache.name for cache in caches]
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

    def here(self) -> BlockCache:
        """Return the cache of the device on which this thread works."""
        return self.caches[self.scope.current]

    def bring(self, value: Any, target: int) -> Any:
        """Return a tensor, or tuples, lists and dictionaries of such, on the device ``target``.

        What is there already, and what is of another kind, is returned as it is.
        """
        if type(value) in (torch.Tensor, nn.Parameter):
            return value if self._is_on(value, target) else self._transfer(value, target)
        if isinstance(value, dict):
            return self._with_values(value, {key: self.bring(part, target) for key, part in value.items()})
        if isinstance(value, (tuple, list)):
            parts = [self.bring(part, target) for part in value]
            if all(part is known for part, known in zip(parts, value, strict=True)):
                return value
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        return value

    @not_compiled
    def bring_back(self, result: Any) -> Any:
        """Return the result of the model on the first device."""
        return self.bring(result, 0)

    def copied(self, tensor: torch.Tensor, source: int | None, target: int) -> torch.Tensor:
        """Return a copy on ``target`` of a tensor on ``source``."""
        with self._lock:
            self._moved[source, target] += tensor.nbytes
        cache = self.caches[target]
        entry = cache.scope.open_for_use()
        try:
            return tensor.to(cache.device, copy=True)
        finally:
            if entry is not None:
                entry.close()

    def _with_values(self, known: dict[Any, Any], parts: dict[Any, Any]) -> dict[Any, Any]:
        """Return a dictionary of the kind of ``known``, such as a model's output, with other values."""
        changed = {key: part for key, part in parts.items() if part is not known[key]}
        if not changed:
            return known
        made = copy.copy(known)
        for key, part in changed.items():
            made[key] = part
        return made

    def _is_on(self, tensor: torch.Tensor, target: int) -> bool:
        cache = self.caches[target]
        arena = cache.scope.arena
        if tensor.device != cache.device:
            return False
        if arena is None or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return True
        storage = tensor.untyped_storage()
        return storage.nbytes() < _UNCOUNTED_BYTES or arena.block_at(storage.data_ptr()) >= 0

    def _transfer(self, tensor: torch.Tensor, target: int) -> torch.Tensor:
        known = (number for number in range(len(self.caches)) if self._is_on(tensor, number))
        source = next(known, None)
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return self.copied(tensor, source, target)
        carried: torch.Tensor = _TransferFunction.apply(tensor, self, source, target)  # type: ignore[no-untyped-call]
        return carried

    def __deepcopy__(self, memo: dict[int, Any]) -> DeviceTransfers:
        """Return itself: a copied model is on the same devices."""
        return self


class _TransferFunction(torch.autograd.Function):
    """Transfer of a tensor to another device; the backward pass returns the thread to the source."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, transfers: DeviceTransfers, source: int | None, target: int
    ) -> torch.Tensor:
        ctx.transfers, ctx.source, ctx.target, ctx.device = transfers, source, target, tensor.device
        ctx.set_materialize_grads(False)
        return transfers.copied(tensor, source, target)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        (gradient,) = gradients
        transfers, source = ctx.transfers, ctx.source
        if source is not None:
            transfers.scope.charge(source)
        if gradient is None:
            return None, None, None, None
        if source is None:
            back = gradient.to(ctx.device)
        elif gradient.requires_grad and torch.is_grad_enabled():
            back = _TransferFunction.apply(gradient, transfers, ctx.target, source)  # type: ignore[no-untyped-call]
        else:
            back = transfers.copied(gradient, ctx.target, source)
        return back, None, None, None


@final
class UnitHooks:
    """Hooks of a unit: its arguments come to its device, and what it makes is made there."""

    def __init__(self, transfers: DeviceTransfers | None, device: int) -> None:
        self._transfers = transfers
        self._device = device
        self._threads = threading.local()

    def put_on(self, unit: nn.Module) -> list[Any]:
        """Register them; return the handles."""
        return [
            unit.register_forward_pre_hook(self.begin, prepend=True, with_kwargs=True),
            unit.register_forward_hook(self.end, always_call=True),
        ]

    @not_compiled
    def begin(self, unit: nn.Module, args: Any, kwargs: Any) -> Any:
        """Work on the unit's device, with its arguments there."""
        if self._transfers is None:
            return None
        scope = self._transfers.scope
        entry = scope.open_for_use()
        self._open().append((entry, scope.charge(self._device)))
        return self._transfers.bring(args, self._device), self._transfers.bring(kwargs, self._device)

    @not_compiled
    def end(self, unit: nn.Module, args: Any, result: Any) -> None:
        """Return the thread to the device it worked on before."""
        if self._transfers is None or not self._open():
            return
        entry, before = self._open().pop()
        self._transfers.scope.charge(before)
        if entry is not None:
            entry.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> UnitHooks:
        """Return the hooks of a copied unit, on the same device."""
        return UnitHooks(self._transfers, self._device)

    def __reduce__(self) -> Any:
        """Pickle as hooks that do nothing."""
        return UnitHooks, (None, self._device)

    def _open(self) -> list[tuple[ScopeEntry | None, int]]:
        opened: list[tuple[ScopeEntry | None, int]] = self._threads.__dict__.setdefault("open", [])
        return opened
