"""The tensors of a module taken over by a keeper, and given back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from accelera.offload.tensors.adopting import adopted, adopted_together, can_be_adopted
from accelera.offload.tensors.contents import Contents
from accelera.offload.tensors.copies import over
from accelera.offload.tensors.replacing import become, check_free
from accelera.offload.tensors.tensor import OffloadedTensor

if TYPE_CHECKING:
    from accelera.offload.keeping.keeper import Keeper


class Named(NamedTuple):
    """A parameter or buffer, and its first name."""

    name: str
    tensor: torch.Tensor


def tensors_of(model: nn.Module) -> Iterator[Named]:
    """Go through the parameters and buffers of ``model``, each once."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        yield Named(name, tensor)


def offloaded_tensors(model: nn.Module, keeper: Keeper | None = None) -> list[OffloadedTensor]:
    """Return the parameters and buffers that are offloaded, to ``keeper`` if one is given."""
    return [
        tensor
        for _, tensor in tensors_of(model)
        if isinstance(tensor, OffloadedTensor) and (keeper is None or tensor.keeper is keeper)
    ]


def storage_key(tensor: torch.Tensor) -> int:
    """Return what tensors that share a storage have in common."""
    return tensor.untyped_storage()._cdata if can_be_adopted(tensor) else id(tensor)


def take_over(model: nn.Module, keeper: Keeper) -> None:
    """Make the large parameters and buffers of ``model`` offloaded ones, where they are; move the small ones.

    Who holds a parameter, such as an optimizer or another module, holds the offloaded one afterwards.
    Tensors that share a storage still do. Those of another kind (sparse, quantized) stay as they are. Raises
    DeviceError, with nothing changed, when a graph of autograd holds one of the large ones.
    """
    take_over_by(model, lambda _: keeper)


def take_over_by(model: nn.Module, keeper_of: Callable[[str], Keeper]) -> None:
    """Do as ``take_over``, with the keeper for the first name of tensors that share a storage."""
    large: list[list[Named]] = []
    small: list[list[Named]] = []
    for sharing in _by_storage(model):
        keeper = keeper_of(sharing[0].name)
        is_large = any(named.tensor.nbytes >= keeper.least_bytes for named in sharing)
        (large if is_large else small).append(sharing)
    for name, tensor in chain.from_iterable(large):
        check_free(tensor, name)
    for sharing in large:
        _offload(sharing, keeper_of(sharing[0].name))
    for sharing in small:
        _move(sharing, keeper_of(sharing[0].name).device)


def give_back(model: nn.Module, *keepers: Keeper) -> None:
    """Make the tensors that ``keepers`` have of ``model`` ordinary ones, where they are.

    Those of one keeper are on its device then, and those of several in RAM, with all small ones. Raises
    DeviceError, with nothing changed, when a graph of autograd holds one.
    """
    for name, tensor in tensors_of(model):
        if isinstance(tensor, OffloadedTensor) and tensor.keeper in keepers:
            check_free(tensor, name)
    device = keepers[0].device if len(keepers) == 1 else torch.device("cpu")
    flats: dict[Contents, torch.Tensor] = {}
    for name, tensor in tensors_of(model):
        if not isinstance(tensor, OffloadedTensor) or tensor.keeper not in keepers:
            if len(keepers) > 1:
                _move([Named(name, tensor)], device)
            continue
        contents = tensor.contents
        if contents not in flats:
            flats[contents] = contents.mapped().to(device, copy=True)
        ordinary = over(flats[contents], tensor)
        if isinstance(tensor.grad, OffloadedTensor):
            tensor.grad = tensor.grad.materialized().to(device)
        become(tensor, ordinary, name)


def _by_storage(model: nn.Module) -> list[list[Named]]:
    """Return the ordinary dense tensors of ``model``, those together that share a storage."""
    groups: dict[int, list[Named]] = {}
    for named in tensors_of(model):
        if can_be_adopted(named.tensor):
            groups.setdefault(named.tensor.untyped_storage()._cdata, []).append(named)
    return list(groups.values())


def _offload(sharing: list[Named], keeper: Keeper) -> None:
    name, tensor = sharing[0]
    if len(sharing) == 1:
        made = [adopted(keeper, tensor, name)]
    else:
        made = adopted_together(keeper, [each for _, each in sharing], name)
    for (each_name, each), offloaded in zip(sharing, made, strict=True):
        become(each, offloaded, each_name)


def _move(sharing: list[Named], device: torch.device) -> None:
    for _, tensor in sharing:
        if tensor.device != device and not isinstance(tensor, OffloadedTensor):
            tensor.data = tensor.data.to(device)
