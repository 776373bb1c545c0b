"""Tensors put together, and parts put where they came from: zeros or room, then copies into views of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from accelera.offload.keeping.keeper import Keeper
from accelera.offload.tiled.meta import bound, foretold
from accelera.offload.tiled.results import empty

aten = torch.ops.aten


def cat(func: Any, args: Any, kwargs: Any, keeper: Keeper) -> torch.Tensor:
    """Return tensors one after another along an axis."""
    named = bound(func, args, kwargs)
    told = foretold(func, args, kwargs)
    result, start = empty(keeper, told.shape, told.dtype), 0
    for tensor in named["tensors"]:
        if tensor.ndim == told.ndim:
            count = tensor.shape[named["dim"]]
            aten.copy_(aten.slice(result, named["dim"], start, start + count), tensor)
            start += count
    return result


def stack(func: Any, args: Any, kwargs: Any, keeper: Keeper) -> torch.Tensor:
    """Return tensors side by side along a new axis."""
    named = bound(func, args, kwargs)
    told = foretold(func, args, kwargs)
    result = empty(keeper, told.shape, told.dtype)
    for index, tensor in enumerate(named["tensors"]):
        aten.copy_(aten.select(result, named["dim"], index), tensor)
    return result


def slice_backward(func: Any, args: Any, kwargs: Any, keeper: Keeper) -> torch.Tensor:
    """Return zeros that hold the gradient of a slice."""
    gradient, sizes, dim, start, end, step = args
    result = _zeros(keeper, sizes, gradient.dtype)
    aten.copy_(aten.slice(result, dim, start, end, step), gradient)
    return result


def select_backward(func: Any, args: Any, kwargs: Any, keeper: Keeper) -> torch.Tensor:
    """Return zeros that hold the gradient of one index."""
    gradient, sizes, dim, index = args
    result = _zeros(keeper, sizes, gradient.dtype)
    aten.copy_(aten.select(result, dim, index), gradient)
    return result


def unsafe_view(func: Any, args: Any, kwargs: Any, keeper: Keeper) -> torch.Tensor:
    """Return the same elements in another shape."""
    view: torch.Tensor = aten.view(*args)
    return view


def _zeros(keeper: Keeper, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    zeros: torch.Tensor = aten.zero_(empty(keeper, sizes, dtype))
    return zeros
