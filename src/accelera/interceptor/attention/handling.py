"""``scaled_dot_product_attention`` as it is intercepted: left to torch, or computed tile by tile."""

from __future__ import annotations

import logging
import math
import time
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from accelera.devices import is_out_of_memory
from accelera.errors import BudgetExceededError
from accelera.interceptor.allowance import budget_left, empty, must_be_cut, stays_in_memory
from accelera.interceptor.attention.enduring import OP as _OP
from accelera.interceptor.attention.function import attend
from accelera.interceptor.attention.layout import gradient_orders
from accelera.interceptor.attention.operands import Operands, align, ungroup
from accelera.interceptor.attention.options import Options, computing_dtype
from accelera.interceptor.attention.tiling import row_bytes
from accelera.interceptor.broadcasting.product import Empty
from accelera.interceptor.calls import nbytes
from accelera.interceptor.falling_back import fall_back
from accelera.interceptor.force import in_force
from accelera.interceptor.mechanism import original
from accelera.interceptor.statistics import statistics
from accelera.memory import Budget
from accelera.units import format_bytes

logger = logging.getLogger("accelera.interceptor")

_TILE_BYTES = 16 << 20
"""Intermediates of one tile when there is room for more: larger ones only leave the processor's caches."""
_ACCELERATOR_TILE_BYTES = 256 << 20
_MATH = 0
"""What torch answers when it would compose attention of products and a softmax."""


class _Weighed(NamedTuple):
    """A call that is computed here, and what torch would take for it."""

    operands: Operands
    looked_bytes: int
    result_bytes: int
    added_bytes: int


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Return attention, with its scores bounded when torch would hold more of them than the budget allows."""
    args = (query, key, value, attn_mask, dropout_p, is_causal)
    how = {"scale": scale, "enable_gqa": enable_gqa}
    weighed = None
    why_whole = _why_whole(args, how)
    if why_whole is None:
        operands = align(query, key, value, attn_mask, enable_gqa)
        why_whole = "shapes that only torch knows" if operands is None else None
        weighed = None if operands is None else _weigh(operands, dropout_p)
    if weighed is None:
        statistics.passed(_OP, why_whole or "")
        logger.debug("%s: passed, %s", _OP, why_whole)
        return original(_OP)(*args, **how)
    if not must_be_cut(weighed.added_bytes, query.device):
        try:
            result = original(_OP)(*args, **how)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            fall_back(_OP, "in pieces after running out of memory", error)
        else:
            statistics.direct(_OP, weighed.looked_bytes, weighed.added_bytes)
            return result
    options = Options(
        is_causal=is_causal,
        scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
        dropout=dropout_p,
        seed=int(torch.randint(1 << 62, ())) if dropout_p else 0,
        scratch_bytes=scratch_bytes(query, weighed.result_bytes, budget_left(query.device) or 0),
        results=lambda: results(options.scratch_bytes),
        gradient_orders=gradient_orders(
            args[:4], weighed.operands.query.dim(), is_causal=is_causal, enable_gqa=enable_gqa
        ),
    )
    return ungroup(_in_tiles(weighed, options), enable_gqa)


def _why_whole(args: tuple[Any, ...], how: dict[str, Any]) -> str | None:
    """Return why only torch can compute the call; None: it can go in tiles."""
    tensors = [each for each in args[:4] if each is not None]
    query, mask, dropout, is_causal = args[0], args[3], args[4], args[5]
    if in_force() is None:
        return "nothing is in force"
    if not _are_alike(tensors[:3]) or not 0 <= dropout < 1 or (mask is not None and is_causal):
        return "arguments that do not fit"
    if mask is not None and (mask.device != query.device or not _is_mask(mask)):
        return "arguments that do not fit"
    if any(map(_is_dual, tensors)):
        return "forward derivatives are torch's"
    try:
        choice = torch._fused_sdp_choice(*args, **how)
    except RuntimeError:
        return "arguments that do not fit"
    return None if choice == _MATH else "a fused kernel of torch keeps no scores"


def _are_alike(tensors: list[torch.Tensor]) -> bool:
    first = tensors[0]
    return first.is_floating_point() and all(
        each.dtype == first.dtype and each.device == first.device and each.dim() > 1 for each in tensors
    )


def _is_mask(mask: torch.Tensor) -> bool:
    return mask.dtype == torch.bool or mask.is_floating_point()


def _is_dual(tensor: torch.Tensor) -> bool:
    if forward_ad._current_level < 0 or not tensor.is_floating_point():
        return False
    tangent: Any = forward_ad.unpack_dual(tensor).tangent  # type: ignore[no-untyped-call]
    return tangent is not None


def _weigh(operands: Operands, dropout: float) -> _Weighed:
    query, value = operands.query, operands.value
    element = computing_dtype(query.dtype).itemsize
    result_bytes = nbytes((*operands.batch, operands.rows, value.shape[-1]), query.dtype)
    given = sum(each.nbytes for each in operands if each is not None)
    # Torch holds the scores and the softmax of them, and with dropout what is kept and the product.
    added_bytes = operands.scores * element * (4 if dropout else 2) + result_bytes
    return _Weighed(operands, given + result_bytes, result_bytes, added_bytes)


def _in_tiles(weighed: _Weighed, options: Options) -> torch.Tensor:
    device, began = weighed.operands.query.device, time.perf_counter()
    budget_bytes = budget_left(device) or 0
    try:
        _check_room(weighed, options, budget_bytes)
        with statistics.in_progress(weighed.added_bytes if device.type == "cpu" else 0):
            result = attend(weighed.operands, options)
    except BudgetExceededError:
        statistics.in_pieces(_OP, "refused", weighed.looked_bytes, weighed.added_bytes, budget_bytes)
        raise
    stays = stays_in_memory(weighed.result_bytes + options.scratch_bytes, device)
    way = "chunked" if stays else "spilled"
    statistics.in_pieces(_OP, way, weighed.looked_bytes, weighed.added_bytes, budget_bytes)
    statistics.took(_OP, time.perf_counter() - began)
    logger.debug("%s: %s in tiles, %s by torch", _OP, way, format_bytes(weighed.added_bytes))
    return result


def scratch_bytes(query: torch.Tensor, result_bytes: int, budget_bytes: int) -> int:
    """Return what the intermediates of a tile may take beside the result, or alone if that is in a file."""
    limits = in_force()
    assert limits is not None
    if limits.cut.tile_bytes is not None:
        return limits.cut.tile_bytes
    most = _TILE_BYTES if query.device.type == "cpu" else _ACCELERATOR_TILE_BYTES
    beside = budget_bytes - result_bytes
    return min(most, beside if beside > 0 else budget_bytes)


def _check_room(weighed: _Weighed, options: Options, budget_bytes: int) -> None:
    least = row_bytes(weighed.operands, options)
    limits = in_force()
    if limits is not None and least > budget_bytes:
        budget = Budget(budget_bytes, limits.room(weighed.operands.query.device).origin)
        raise BudgetExceededError(
            f"[{_OP}] one row of {weighed.operands.keys} scores takes {format_bytes(least)}, more than the "
            f"{budget.allowance}; {budget.remedy(least)}",
            needed_bytes=least,
            budget_bytes=budget_bytes,
        )


def results(scratch: int) -> Empty:
    """Return where the results of one pass come from: all of them together stay within the budget."""
    taken = [scratch]

    def result(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        size = nbytes(shape, dtype)
        out = empty(_OP, shape, dtype, device, kept_bytes=taken[0])
        if stays_in_memory(size + taken[0], device):
            taken[0] += size
        return out

    return result
