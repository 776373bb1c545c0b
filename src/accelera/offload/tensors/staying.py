"""Modules with offloaded tensors stay on their device: to move them elsewhere is refused."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import torch
from torch import nn

from accelera.errors import DeviceError
from accelera.offload.tensors.tensor import OffloadedTensor

if TYPE_CHECKING:
    from accelera.offload.keeping.keeper import Keeper


def stay(model: nn.Module) -> None:
    """Refuse moves of ``model``, and of every part with offloaded tensors, before anything is moved."""
    for module in model.modules():
        if _keepers_of(module):
            module.__dict__["_apply"] = Staying(module)


def may_leave(model: nn.Module) -> None:
    """Undo ``stay`` for the parts that have no offloaded tensors any more."""
    for module in model.modules():
        if isinstance(module.__dict__.get("_apply"), Staying) and not _keepers_of(module):
            del module.__dict__["_apply"]


@final
class Staying:
    """What a module does to convert itself: other types as ever, other devices never."""

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)

    def __call__(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """Apply ``fn`` to the module's tensors.

        Raises DeviceError, with nothing changed, if they would go to another device or the weights are gone.
        """
        module: Any = self._module()
        for keeper in _keepers_of(module):
            keeper.check_there("to")
            _check(fn, keeper, module)
        return type(module)._apply(module, fn, recurse)

    def __deepcopy__(self, memo: dict[int, Any]) -> Staying:
        """Return the same for the copy of the module."""
        module: Any = self._module()
        return Staying(memo.get(id(module), module))

    def __reduce__(self) -> Any:
        """Pickle as what a module that is not offloaded does."""
        return getattr, (self._module(), "_apply")


def _keepers_of(module: nn.Module) -> list[Keeper]:
    tensors = (*module.parameters(), *module.buffers())
    return list(dict.fromkeys(each.keeper for each in tensors if isinstance(each, OffloadedTensor)))


def _check(fn: Callable[[torch.Tensor], torch.Tensor], keeper: Keeper, module: nn.Module) -> None:
    device = fn(torch.empty(0, device=keeper.device)).device
    if device != torch.empty(0, device=keeper.device).device:
        raise DeviceError(
            f"[to] this {type(module).__name__} is offloaded and computes on {keeper.device}: it "
            f"cannot be moved to {device}, where it would be whole; call accelera.offloaded(model).restore() "
            "first, then move it, or offload it with device="
        )
