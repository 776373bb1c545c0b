"""What an operation is about to take besides its offloaded operands, known from shapes before it begins."""

from __future__ import annotations

from typing import Any

import torch

from accelera.offload.operating.operands import each_tensor
from accelera.offload.operating.signatures import signature_of
from accelera.offload.tensors.tensor import OffloadedTensor
from accelera.offload.tiled.meta import foretold

_MOST_KNOWN = 1 << 14
_KNOWN: dict[Any, int] = {}
"""Bytes of results by operation and operands."""


def coming_bytes(func: Any, args: Any, kwargs: Any) -> int:
    """Return the bytes of the ordinary tensors that ``func`` makes or fills; 0 when shapes do not tell."""
    signature = signature_of(func)
    if signature.written:
        filled = each_tensor(signature.changed(args, kwargs), {}) if signature.sets_anew else ()
        return sum(_bytes(one) for one in filled if not isinstance(one, OffloadedTensor))
    if not signature.gives_tensors or (func.tags and torch.Tag.data_dependent_output in func.tags):
        return 0
    try:
        key = (func, _shapes(args), _shapes(kwargs.values()), tuple(kwargs))
        known = _KNOWN.get(key)
    except TypeError:
        return 0
    if known is None:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        known = _KNOWN[key] = _result_bytes(func, args, kwargs)
    return known


def _shapes(values: Any) -> tuple[Any, ...]:
    return tuple(
        (each.shape, each.dtype)
        if isinstance(each, torch.Tensor)
        else _shapes(each)
        if isinstance(each, (list, tuple))
        else each
        for each in values
    )


def _result_bytes(func: Any, args: Any, kwargs: Any) -> int:
    try:
        results = foretold(func, args, kwargs)
    except (RuntimeError, TypeError):
        return 0
    return sum(_bytes(each) for each in each_tensor((results,), {}))


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
