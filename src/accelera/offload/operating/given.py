"""Operations that write into tensors which the caller gives: ``out=``."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from accelera.errors import DeviceError
from accelera.offload.operating.computing import compute
from accelera.offload.operating.operands import each_tensor
from accelera.offload.operating.signatures import signature_of
from accelera.offload.tensors.tensor import OffloadedTensor
from accelera.offload.tiled.meta import foretold


def compute_into(func: Any, args: Any, kwargs: Any) -> Any:
    """Carry out ``func``, which writes into given tensors.

    Ordinary ones get the result's shape, as PyTorch gives it. Raises DeviceError when an offloaded one is of
    another shape, or when the shape is not known before.
    """
    outs = list(each_tensor(signature_of(func).changed(args, kwargs), {}))
    told = _told(func, args, kwargs, outs)
    for out, one in zip(outs, told, strict=False):
        if out.shape == one.shape:
            continue
        if isinstance(out, OffloadedTensor):
            raise _refusal(func, out, f"of shape {tuple(one.shape)}")
        out.resize_(one.shape)
    return compute(func, args, kwargs)


def _told(func: Any, args: Any, kwargs: Any, outs: list[torch.Tensor]) -> list[torch.Tensor]:
    try:
        return [one for one in tree_leaves(foretold(func, args, kwargs)) if isinstance(one, torch.Tensor)]
    except NotImplementedError as error:
        for out in outs:
            if isinstance(out, OffloadedTensor):
                raise _refusal(func, out, "of a shape that the values tell") from error
        return []


def _refusal(func: Any, out: OffloadedTensor, shape: str) -> DeviceError:
    return DeviceError(
        f"[{func.overloadpacket.__name__}] the result is {shape} and {out}, given as out=, cannot become so; "
        "leave out= away, or give one of the result's shape"
    )
