"""Size filter of the kernels in Python; the compiled ones do the same in C++."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

import torch
from torch import Tensor
from torch.nn import Parameter

from accelera.interceptor.hooks.operators import Rule

_ORDINARY = (Tensor, Parameter)


def reach(args: Sequence[object], least_size: int) -> bool:
    """Say whether a dimension of some tensor among ``args`` is long enough; this answers most small calls.

    Tensors whose sizes may be symbols are not asked: a call with one of them is never long enough.
    """
    reached = least_size <= 1
    for each in args:
        if isinstance(each, Tensor):
            if type(each) not in _ORDINARY and _is_dispatched_to_python(each):
                return False
            for size in each.shape:
                reached = reached or size >= least_size
    return reached


def is_worthwhile(rule: Rule | None, operands: Sequence[Tensor], least_bytes: int) -> bool:
    """Say whether a call has enough bytes and ordinary tensors only.

    Parameters
    ----------
    rule
        How the result follows from the operands; None when it is one of them.
    operands
        Tensor arguments in order, without ``out``.
    least_bytes
        Bytes of operands and result together.
    """
    return called_bytes(rule, operands) >= least_bytes and all(map(_is_plain, operands))


def called_bytes(rule: Rule | None, operands: Sequence[Tensor]) -> int:
    """Return the bytes of the operands and of the result that ``rule`` says they have.

    Attention counts its scores too. Shapes that do not fit give some number: torch refuses them later.
    """
    taken = sum(each.numel() * each.element_size() for each in operands)
    widest = max((each.element_size() for each in operands), default=0)
    return taken if rule is None else taken + _RESULTS[rule](operands) * widest


def _is_dispatched_to_python(tensor: Tensor) -> bool:
    python: bool = torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python)
    return python


def _is_plain(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _broadcast(operands: Sequence[Tensor]) -> int:
    return _broadcast_shapes([each.shape for each in operands])


def _broadcast_shapes(shapes: Sequence[Sequence[int]]) -> int:
    columns = zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    return math.prod(0 if 0 in sizes else max(sizes) for sizes in columns)


def _product(operands: Sequence[Tensor]) -> int:
    first, second = operands[-2].shape, operands[-1].shape
    rows = math.prod(first[-2:-1])
    columns = second[-1] if len(second) > 1 else 1
    return _broadcast_shapes([first[:-2], second[:-2]]) * rows * columns


def _attention(operands: Sequence[Tensor]) -> int:
    query, key, value = (each.shape for each in operands[:3])
    if min(len(query), len(key), len(value)) < 2:
        return 0
    return math.prod(query[:-1]) * (key[-2] + value[-1])


def _heads(operands: Sequence[Tensor]) -> int:
    """Bound the scores of several heads, of which there are at most as many as columns."""
    query = operands[0].shape
    return _attention(operands) * query[-1] if query else 0


_RESULTS = {"pointwise": _broadcast, "product": _product, "attention": _attention, "heads": _heads}
