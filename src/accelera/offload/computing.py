"""An operation that computes: its operands are brought for its time, its results go where they belong."""

from __future__ import annotations

from typing import Any

from accelera.offload import tiled
from accelera.offload.operands import Operands, each_tensor
from accelera.offload.results import into_pool
from accelera.offload.signatures import Signature, signature_of
from accelera.offload.tensor import OffloadedTensor


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
        result = into_pool(func, args, kwargs, offloaded[0].keeper)
        if result is not NotImplemented:
            return result
    with _operands(signature, offloaded, args, kwargs) as operands:
        given = [operands.bring(value) for value in args]
        named = {name: operands.bring(value) for name, value in kwargs.items()}
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


def _operands(signature: Signature, offloaded: list[OffloadedTensor], args: Any, kwargs: Any) -> Operands:
    if not signature.written:
        return Operands(signature.op, offloaded)
    changed = {id(one) for one in each_tensor(signature.changed(args, kwargs), {})}
    read_too = len({id(one) for one in offloaded}) < len(offloaded)
    return Operands(signature.op, offloaded, changed, anew=signature.sets_anew and not read_too)


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
