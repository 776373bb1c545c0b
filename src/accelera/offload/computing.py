"""An operation that computes: its operands are brought for its time, its results go where they belong."""

from __future__ import annotations

from typing import Any

import torch

from accelera.offload import tiled
from accelera.offload.operands import Operands, each_tensor, replaced
from accelera.offload.results import into_pool
from accelera.offload.signatures import signature_of
from accelera.offload.tensor import OffloadedTensor


def compute(func: Any, args: Any, kwargs: Any) -> Any:
    """Carry out ``func``, some operand of which is offloaded, and return its result.

    The result is offloaded when all operands are (numbers aside) and it is not small.
    """
    offloaded, ordinary = _sorted(args, kwargs)
    if any(tiled.is_tiled(one) for one in offloaded):
        return tiled.run(func, args, kwargs, offloaded[0].keeper)
    signature = signature_of(func)
    if not signature.written and not ordinary and signature.gives_tensors:
        result = into_pool(func, args, kwargs, offloaded[0].keeper)
        if result is not NotImplemented:
            return result
    operands = Operands(str(func))
    changed = signature.changed(args, kwargs)
    for one in offloaded:
        alone = sum(one is each for each in offloaded) == 1
        _add(operands, one, changed, sets_anew=signature.sets_anew and alone)
    with operands:
        given = [replaced(operands.bring, value) for value in args]
        named = {name: replaced(operands.bring, value) for name, value in kwargs.items()}
        result = func(*given, **named)
        if not signature.written:
            return operands.kept(result)
    return _given_back(signature, args, kwargs, result)


def _sorted(args: Any, kwargs: Any) -> tuple[list[OffloadedTensor], bool]:
    """Return the offloaded operands, and whether there are ordinary ones of one dimension or more."""
    offloaded: list[OffloadedTensor] = []
    ordinary = False
    for one in each_tensor(args, kwargs):
        if isinstance(one, OffloadedTensor):
            offloaded.append(one)
        elif one.dim():
            ordinary = True
    return offloaded, ordinary


def _add(operands: Operands, one: OffloadedTensor, changed: list[Any], *, sets_anew: bool) -> None:
    is_changed = any(one is each or (isinstance(each, list) and _among(one, each)) for each in changed)
    read = not (is_changed and sets_anew and _covers(one))
    operands.add(one, read=read, write=is_changed)


def _among(one: torch.Tensor, tensors: list[torch.Tensor]) -> bool:
    return any(one is each for each in tensors)


def _covers(tensor: OffloadedTensor) -> bool:
    """Whether ``tensor`` is all of its block."""
    return len(tensor.blocks) == 1 and tensor.numel() * tensor.element_size() == tensor.contents.nbytes


def _given_back(signature: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """Return the results of an operation in place: the arguments themselves."""
    if len(signature.returned) == 0:
        return None
    if len(signature.returned) == 1:
        name = signature.returned[0]
        return result if name is None else signature.argument(name, args, kwargs)
    return tuple(
        each if name is None else signature.argument(name, args, kwargs)
        for name, each in zip(signature.returned, result, strict=True)
    )
