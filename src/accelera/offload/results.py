"""Where a result goes whose operands are all offloaded: into the pool, unless it is small."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from accelera.offload.contents import Contents
from accelera.offload.rows import row_parts
from accelera.offload.signatures import out_form, signature_of
from accelera.offload.tensor import OffloadedTensor

if TYPE_CHECKING:
    from accelera.offload.keeper import Keeper

_UNFORETOLD = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


def into_pool(func: Any, args: Any, kwargs: Any, keeper: Keeper) -> Any:
    """Carry out ``func`` with its result in the pool; NotImplemented when the result is to be ordinary.

    All tensor operands are offloaded, each within one block, or have no dimension.
    """
    from accelera.offload import tiled
    from accelera.offload.computing import compute

    device = kwargs.get("device")
    if device is not None and torch.device(device).type != keeper.device.type:
        return NotImplemented
    told = _foretold(func, args, kwargs)
    if told is None or not any(one.nbytes >= keeper.least_bytes for one in told):
        return NotImplemented
    if any(one.nbytes > keeper.block_bytes for one in told):
        return tiled.run(func, args, kwargs, keeper)
    form = out_form(func)
    if form is None:
        return NotImplemented
    form, names = form
    outs: list[Any] = [like(keeper, one) for one in told]
    if str(func._schema.returns[0].type) == "List[Tensor]":
        outs = [outs]
    named = {name: value for name, value in kwargs.items() if name in signature_of(form).names}
    compute(form, args, {**named, **dict(zip(names, outs, strict=True))})
    return outs[0] if len(outs) == 1 else tuple(outs)


def like(keeper: Keeper, told: torch.Tensor, name: str = "", role: str = "workspace") -> OffloadedTensor:
    """Return a new offloaded tensor, without contents, with the sizes, strides and type of ``told``."""
    shape = tuple(told.shape)
    in_order = told.permute(memory_order(told))
    sizes = shape if told.is_contiguous() else tuple(in_order.shape)
    parts = row_parts(sizes, told.element_size(), keeper.block_bytes)
    row_bytes = told.nbytes // sizes[0] if sizes else told.nbytes
    blocks = [keeper.create((part.stop - part.start) * row_bytes, name, role) for part in parts]
    return OffloadedTensor(Contents(keeper, blocks, sizes, told.dtype), shape, told.stride())


def memory_order(tensor: torch.Tensor) -> list[int]:
    """Return the dimensions from the one with the largest stride to the one with the smallest."""
    pairs = zip(tensor.stride(), tensor.shape, range(tensor.dim()), strict=True)
    return [axis for _, _, axis in sorted(pairs, key=lambda pair: (-pair[0], -pair[1] if pair[1] > 1 else 0))]


def _foretold(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor] | None:
    """Return tensors without memory such as ``func`` would give, or None when only running it tells."""
    if any(tag in func.tags for tag in _UNFORETOLD) or func._schema.name in _UNTOLD:
        return None
    from accelera.offload.tiled.meta import foretold

    try:
        told = foretold(func, args, kwargs)
    except (NotImplementedError, RuntimeError):
        _UNTOLD.add(func._schema.name)
        return None
    results = list(told) if isinstance(told, (list, tuple)) else [told]
    if not all(isinstance(one, torch.Tensor) and dense(one) for one in results):
        return None
    return results


_UNTOLD: set[str] = set()
"""Operations that cannot be carried out without memory."""


def dense(tensor: torch.Tensor) -> bool:
    """Whether the elements of ``tensor`` lie side by side, in some order of its dimensions, each once."""
    if tensor.layout is not torch.strided:
        return False
    expected = 1
    for axis in reversed(memory_order(tensor)):
        if tensor.shape[axis] != 1 and tensor.stride(axis) != expected:
            return tensor.numel() == 0
        expected *= tensor.shape[axis]
    return True
