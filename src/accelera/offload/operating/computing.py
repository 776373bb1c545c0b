"""An operation that computes: its operands are brought for its time, its results go where they belong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from accelera.offload import tiled
from accelera.offload.operating.coming import coming_bytes
from accelera.offload.operating.operands import Operands, each_tensor
from accelera.offload.operating.signatures import Signature, out_form, signature_of
from accelera.offload.tensors.results import dense, like
from accelera.offload.tensors.tensor import OffloadedTensor
from accelera.offload.tiled.meta import foretold

if TYPE_CHECKING:
    from accelera.offload.keeping.keeper import Keeper

_UNFORETOLD = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


def compute(func: Any, args: Any, kwargs: Any) -> Any:
    """Carry out ``func``, some operand of which is offloaded, and return its result.

    The result is offloaded when all operands are (numbers aside) and it is not small.
    """
    offloaded, ordinary = _sorted(args, kwargs)
    for one in offloaded:
        if len(one.contents.blocks) > 1 and tiled.is_tiled(one):
            return tiled.run(func, args, kwargs, one.contents.keeper)
    signature = signature_of(func)
    if not (ordinary or signature.written) and signature.gives_tensors:
        result = _into_pool(func, args, kwargs, offloaded[0].keeper)
        if result is not NotImplemented:
            return result
    with _operands(func, offloaded, args, kwargs) as operands:
        given = [operands.bring(value) for value in args]
        named = {name: operands.bring(value) for name, value in kwargs.items()}
        result = func(*given, **named)
        if not signature.written:
            return operands.kept(result)
    return _given_back(signature, args, kwargs, result)


def _into_pool(func: Any, args: Any, kwargs: Any, keeper: Keeper) -> Any:
    """Carry out ``func`` with its result in the pool; NotImplemented when the result is to be ordinary.

    All tensor operands are offloaded, each within one block, or have no dimension.
    """
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


def _foretold(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor] | None:
    """Return tensors without memory such as ``func`` would give, or None when only running it tells."""
    if any(tag in func.tags for tag in _UNFORETOLD) or func._schema.name in _UNTOLD:
        return None
    try:
        told = foretold(func, args, kwargs)
    except RuntimeError:
        _UNTOLD.add(func._schema.name)
        return None
    results = list(told) if isinstance(told, (list, tuple)) else [told]
    if not all(isinstance(one, torch.Tensor) and dense(one) for one in results):
        return None
    return results


_UNTOLD: set[str] = set()
"""Operations that cannot be carried out without memory."""


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


def _operands(func: Any, offloaded: list[OffloadedTensor], args: Any, kwargs: Any) -> Operands:
    signature = signature_of(func)
    coming = coming_bytes(func, args, kwargs) if offloaded[0].keeper.watched else 0
    if not signature.written:
        return Operands(signature.op, offloaded, coming_bytes=coming)
    changed = {id(one) for one in each_tensor(signature.changed(args, kwargs), {})}
    read_too = len({id(one) for one in offloaded}) < len(offloaded)
    anew = signature.sets_anew and not read_too
    return Operands(signature.op, offloaded, changed, anew=anew, coming_bytes=coming)


def _given_back(signature: Signature, args: Any, kwargs: Any, result: Any) -> Any:
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
