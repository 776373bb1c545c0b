"""Tensors of a module swapped for offloaded ones and back; moves to other devices are refused meanwhile."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import nn

import accelera.offload.dispatch  # noqa: F401  (registers the rules of OffloadedTensor)
from accelera.errors import DeviceError
from accelera.offload.derived_weights import keep_in_memory, keep_in_pool, release_graphs
from accelera.offload.tensor import (
    BlockStorage,
    OffloadedTensor,
    can_be_offloaded,
    over,
    wrap,
    wrap_sharing,
)

if TYPE_CHECKING:
    from accelera.offload.block_cache import BlockCache


def check_free(tensor: torch.Tensor, name: str) -> None:
    """Raise DeviceError when a graph of autograd still holds ``tensor``: it cannot be swapped."""
    if tensor._use_count() > 1:  # type: ignore[attr-defined]
        raise DeviceError(
            f"[offload] {name} {tuple(tensor.shape)} is held by a graph of autograd or by a compiled model; "
            "do this before the forward pass, or after its results are gone"
        )


def swap_tensor(tensor: torch.Tensor, other: torch.Tensor, name: str) -> None:
    """Make ``tensor`` what ``other`` is, for everything that refers to it.

    Gradient and hooks stay. ``other`` is of no use afterwards. Raises DeviceError when a graph of autograd
    still holds the tensor.
    """
    check_free(tensor, name)
    hooks, late = tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)
    with torch.no_grad():
        other.requires_grad_(tensor.requires_grad)
        other.grad = tensor.grad
    _swap(tensor, other)
    if hooks is not None:
        tensor._backward_hooks = hooks
    if late is not None:
        tensor._post_accumulate_grad_hooks = late


def _swap(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Exchange everything but identity and the user's attributes."""
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    storage = other.__dict__.pop("block_storage", None)
    tensor.__class__, other.__class__ = type(other), type(tensor)
    torch._C._swap_tensor_impl(tensor, other)
    for name in ("block_storage", "_is_param"):
        tensor.__dict__.pop(name, None)
    if storage is not None:
        tensor.__dict__["block_storage"] = storage
        tensor.__dict__.update({"_is_param": True} if is_parameter else {})


class Named(NamedTuple):
    """A parameter or buffer, and its first name."""

    name: str
    tensor: torch.Tensor


def tensors_of(model: nn.Module) -> Iterator[Named]:
    """Go through the parameters and buffers of ``model``, each once."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        yield Named(name, tensor)


def offloaded_tensors(model: nn.Module, cache: BlockCache | None = None) -> list[OffloadedTensor]:
    """Return the parameters and buffers that are offloaded, to ``cache`` if one is given."""
    return [
        tensor
        for _, tensor in tensors_of(model)
        if isinstance(tensor, OffloadedTensor) and (cache is None or tensor.cache is cache)
    ]


def storage_key(tensor: torch.Tensor) -> int:
    """Return a key that tensors with a shared storage have in common."""
    return tensor.untyped_storage()._cdata if can_be_offloaded(tensor) else id(tensor)


def swap_in(model: nn.Module, cache: BlockCache) -> None:
    """Make the large parameters and buffers of ``model`` offloaded ones, where they are; move the small ones.

    Who holds a parameter, such as an optimizer or another module, holds the offloaded one afterwards.
    Tensors that share a storage still do. Those of another kind (sparse, quantized) stay as they are. Raises
    DeviceError, with nothing changed, when a graph of autograd holds one of the large ones.
    """
    swap_in_by(model, lambda _: cache)


def swap_in_by(model: nn.Module, cache_of: Callable[[str], BlockCache]) -> None:
    """Do as ``swap_in``, with the cache for the first name of tensors that share a storage."""
    large: list[list[Named]] = []
    small: list[list[Named]] = []
    for sharing in _by_storage(model):
        cache = cache_of(sharing[0].name)
        is_large = any(named.tensor.nbytes >= cache.least_bytes for named in sharing)
        (large if is_large else small).append(sharing)
    release_graphs(model)
    for name, tensor in chain.from_iterable(large):
        check_free(tensor, name)
    for sharing in large:
        _offload(sharing, cache_of(sharing[0].name))
    for sharing in small:
        _move(sharing, cache_of(sharing[0].name).device)
    keep_in_pool(model)


def swap_out(model: nn.Module, *caches: BlockCache) -> None:
    """Make the tensors that ``caches`` have of ``model`` ordinary ones, where they are.

    Those of one cache are on its device then, and those of several in RAM, with all small ones. Raises
    DeviceError, with nothing changed, when a graph of autograd holds one.
    """
    release_graphs(model)
    for name, tensor in tensors_of(model):
        if isinstance(tensor, OffloadedTensor) and tensor.cache in caches:
            check_free(tensor, name)
    keep_in_memory(model)
    device = caches[0].device if len(caches) == 1 else torch.device("cpu")
    flats: dict[BlockStorage, torch.Tensor] = {}
    for name, tensor in tensors_of(model):
        if not isinstance(tensor, OffloadedTensor) or tensor.cache not in caches:
            if len(caches) > 1:
                _move([Named(name, tensor)], device)
            continue
        storage = tensor.block_storage
        if storage not in flats:
            flats[storage] = storage.mapped().to(device, copy=True)
        ordinary = over(flats[storage], tensor)
        if isinstance(tensor.grad, OffloadedTensor):
            tensor.grad = tensor.grad.materialized().to(device)
        swap_tensor(tensor, ordinary, name)


def _by_storage(model: nn.Module) -> list[list[Named]]:
    """Return the ordinary dense tensors of ``model``, those together that share a storage."""
    groups: dict[int, list[Named]] = {}
    for named in tensors_of(model):
        if can_be_offloaded(named.tensor):
            groups.setdefault(named.tensor.untyped_storage()._cdata, []).append(named)
    return list(groups.values())


def _offload(sharing: list[Named], cache: BlockCache) -> None:
    name, tensor = sharing[0]
    if len(sharing) == 1:
        made = [wrap(cache, tensor, name)]
    else:
        made = wrap_sharing(cache, [each for _, each in sharing], name)
    for (each_name, each), offloaded in zip(sharing, made, strict=True):
        swap_tensor(each, offloaded, each_name)


def _move(sharing: list[Named], device: torch.device) -> None:
    for _, tensor in sharing:
        if tensor.device != device and not isinstance(tensor, OffloadedTensor):
            tensor.data = tensor.data.to(device)


def guard_device(model: nn.Module) -> None:
    """Refuse moves of ``model``, and of every part with offloaded tensors, before anything is moved."""
    for module in model.modules():
        if _caches_of(module):
            module.__dict__["_apply"] = DeviceGuard(module)


def unguard_device(model: nn.Module) -> None:
    """Undo ``guard_device`` for the parts that have no offloaded tensors any more."""
    for module in model.modules():
        if isinstance(module.__dict__.get("_apply"), DeviceGuard) and not _caches_of(module):
            del module.__dict__["_apply"]


@final
class DeviceGuard:
    """Replaces ``_apply`` of a module: conversions of the type pass, moves to another device are refused."""

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)

    def __call__(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """Apply ``fn`` to the module's tensors.

        Raises DeviceError, with nothing changed, if they would go to another device or the weights are gone.
        """
        module: Any = self._module()
        for cache in _caches_of(module):
            cache.check_there("to")
            _check_device(fn, cache, module)
        return type(module)._apply(module, fn, recurse)

    def __deepcopy__(self, memo: dict[int, Any]) -> DeviceGuard:
        """Return the same for the copy of the module."""
        module: Any = self._module()
        return DeviceGuard(memo.get(id(module), module))

    def __reduce__(self) -> Any:
        """Pickle as what a module that is not offloaded does."""
        return getattr, (self._module(), "_apply")


def _caches_of(module: nn.Module) -> list[BlockCache]:
    tensors = (*module.parameters(), *module.buffers())
    return list(dict.fromkeys(each.cache for each in tensors if isinstance(each, OffloadedTensor)))


def _check_device(fn: Callable[[torch.Tensor], torch.Tensor], cache: BlockCache, module: nn.Module) -> None:
    device = fn(torch.empty(0, device=cache.device)).device
    if device != torch.empty(0, device=cache.device).device:
        raise DeviceError(
            f"[to] this {type(module).__name__} is offloaded and computes on {cache.device}: it "
            f"cannot be moved to {device}, where it would be whole; call accelera.offloaded(model).restore() "
            "first, then move it, or offload it with device="
        )
