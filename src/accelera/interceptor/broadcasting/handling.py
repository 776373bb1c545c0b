"""``matmul`` where torch would copy operands to repeat them along batch axes."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from accelera.devices import is_out_of_memory
from accelera.errors import BudgetExceededError
from accelera.interceptor.allowance import budget_left, empty, must_be_cut, stays_in_memory
from accelera.interceptor.broadcasting.product import broadcast_matmul
from accelera.interceptor.calls import broadcast, nbytes
from accelera.interceptor.falling_back import fall_back
from accelera.interceptor.force import in_force
from accelera.interceptor.mechanism import original
from accelera.interceptor.statistics import statistics
from accelera.units import format_bytes

logger = logging.getLogger("accelera.interceptor")

_OP = "matmul"


def matmul(x: torch.Tensor, y: torch.Tensor) -> Any:
    """Return ``torch.matmul(x, y)``, with operands in place when their copies would exceed the budget."""
    added_bytes = _added_bytes(x, y)
    if added_bytes is None:
        # Torch's own composition: the products that it makes are looked at by themselves.
        return original(_OP)(x, y)
    if not must_be_cut(added_bytes, x.device):
        try:
            return original(_OP)(x, y)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            fall_back(_OP, "in pieces after running out of memory", error)
    return _in_place(x, y, added_bytes)


def _in_place(x: torch.Tensor, y: torch.Tensor, added_bytes: int) -> torch.Tensor:
    """Return the product with operands where they are."""
    budget_bytes, began = budget_left(x.device) or 0, time.perf_counter()
    looked_bytes = nbytes(_result_shape(x, y), x.dtype) + x.nbytes + y.nbytes
    try:
        with statistics.in_progress(added_bytes if x.device.type == "cpu" else 0):
            result = broadcast_matmul(x, y, empty=_result)
    except BudgetExceededError:
        statistics.in_pieces(_OP, "refused", looked_bytes, added_bytes, budget_bytes)
        raise
    way = "chunked" if stays_in_memory(result.nbytes, x.device) else "spilled"
    statistics.in_pieces(_OP, way, looked_bytes, added_bytes, budget_bytes)
    statistics.took(_OP, time.perf_counter() - began)
    logger.debug("%s: %s with operands in place, %s in one piece", _OP, way, format_bytes(added_bytes))
    return result


def _result(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return empty(_OP, shape, dtype, device)


def _added_bytes(x: torch.Tensor, y: torch.Tensor) -> int | None:
    """Return what torch's composition adds; None when it copies no operand or the call is not ours."""
    if in_force() is None or min(x.dim(), y.dim()) < 2 or max(x.dim(), y.dim()) < 3:
        return None
    if x.dtype != y.dtype or x.device != y.device or x.dtype == torch.bool or x.is_neg() or y.is_neg():
        return None
    if x.shape[-1] != y.shape[-2] or not x.numel() or not y.numel():
        return None
    try:
        shape = _result_shape(x, y)
    except ValueError:
        return None
    copied = _copied_bytes(x, shape[:-2]) + _copied_bytes(y, shape[:-2])
    return copied + nbytes(shape, x.dtype) if copied else None


def _result_shape(x: torch.Tensor, y: torch.Tensor) -> tuple[int, ...]:
    return (*broadcast((x.shape[:-2], y.shape[:-2])), x.shape[-2], y.shape[-1])


def _copied_bytes(tensor: torch.Tensor, batch: Sequence[int]) -> int:
    """Return the bytes of the copy of ``tensor`` that is one stack over ``batch``; 0 for a view."""
    missing = len(batch) - (tensor.dim() - 2)
    strides = [0] * missing
    for size, stride in zip(tensor.shape[:-2], tensor.stride()[:-2], strict=True):
        strides.append(stride if size > 1 else 0)
    steps = [(size, stride) for size, stride in zip(batch, strides, strict=True) if size > 1]
    is_view = all(outer[1] == inner[1] * inner[0] for outer, inner in itertools.pairwise(steps))
    return 0 if is_view else math.prod(batch) * math.prod(tensor.shape[-2:]) * tensor.element_size()
