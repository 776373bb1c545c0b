"""New tensors after the pattern of one in several blocks: nothing of the pattern is read."""

from __future__ import annotations

from typing import Any

import torch

from accelera.offload.keeping.keeper import Keeper
from accelera.offload.tiled.meta import foretold
from accelera.offload.tiled.pointwise import pointwise
from accelera.offload.tiled.results import empty

aten = torch.ops.aten


def fresh(func: Any, args: Any, kwargs: Any, keeper: Keeper) -> Any:
    """Carry out ``zeros_like``, ``new_full`` and their like."""
    told = foretold(func, args, kwargs)
    result = empty(keeper, told.shape, told.dtype)
    name = func.overloadpacket.__name__
    if "zeros" in name:
        return pointwise(aten.zero_.default, (result,), {}, keeper)
    if "ones" in name:
        return pointwise(aten.fill_.Scalar, (result, 1), {}, keeper)
    if "full" in name:
        return pointwise(aten.fill_.Scalar, (result, kwargs.get("fill_value", args[-1])), {}, keeper)
    if "randn" in name:
        return pointwise(aten.normal_.default, (result,), {}, keeper)
    if "rand" in name:
        return pointwise(aten.uniform_.default, (result,), {}, keeper)
    return result
