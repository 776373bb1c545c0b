"""``scaled_dot_product_attention`` as an intercepted call: left to torch, or computed tile by tile."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from accelera.errors import BudgetExceededError
from accelera.interceptor.attention.kernels import OP, attend
from accelera.interceptor.attention.operands import (
    AttentionOperands,
    AttentionOptions,
    align,
    computing_dtype,
    gradient_orders,
    ungroup,
)
from accelera.interceptor.attention.score_tiles import row_bytes
from accelera.interceptor.config import InterceptionConfig, Route, stays_in_memory
from accelera.interceptor.router import InterceptedCall, handler_of
from accelera.interceptor.spill import Empty, empty
from accelera.interceptor.tiling import nbytes
from accelera.memory._internal import Budget
from accelera.units import format_bytes

_TILE_BYTES = 16 << 20
"""Intermediates of one tile when there is room for more: larger ones only leave the processor's caches."""
_ACCELERATOR_TILE_BYTES = 256 << 20
_MATH_BACKEND = 0
"""Torch's number for the math backend, which composes attention of products and a softmax."""


class _Arguments(NamedTuple):
    """The arguments of torch's operator, in its order."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None = None
    dropout: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False


class AttentionCall(InterceptedCall):
    """Attention for which torch would hold all scores."""

    op = OP

    def __init__(self, arguments: _Arguments, operands: AttentionOperands) -> None:
        query, value = operands.query, operands.value
        self._arguments, self._operands = arguments, operands
        self.device = arguments.query.device
        element = computing_dtype(query.dtype).itemsize
        self.result_bytes = nbytes((*operands.batch, operands.rows, value.shape[-1]), query.dtype)
        # Torch holds the scores and the softmax of them, and with dropout what is kept and the product.
        self.temporary_bytes = operands.scores * element * (4 if arguments.dropout else 2)
        self.looked_bytes = sum(each.nbytes for each in operands if each is not None) + self.result_bytes

    def bounded(self, config: InterceptionConfig, budget_bytes: int) -> tuple[torch.Tensor, Route]:
        """Compute tile by tile; the result, and gradients later, are in memory or in a file."""
        options = self._options(scratch_bytes(config, self.device, self.result_bytes, budget_bytes))
        self._check_room(options, config, budget_bytes)
        result = ungroup(attend(self._operands, options), self._arguments.enable_gqa)
        stays = stays_in_memory(self.result_bytes + options.scratch_bytes, self.device)
        return result, "chunked" if stays else "spilled"

    def _options(self, scratch: int) -> AttentionOptions:
        query, dropout, scale = self._arguments.query, self._arguments.dropout, self._arguments.scale
        is_causal, enable_gqa = self._arguments.is_causal, self._arguments.enable_gqa
        return AttentionOptions(
            is_causal=is_causal,
            scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
            dropout=dropout,
            seed=int(torch.randint(1 << 62, ())) if dropout else 0,
            scratch_bytes=scratch,
            results=lambda: results(scratch),
            gradient_orders=gradient_orders(
                self._arguments[:4], self._operands.query.dim(), is_causal=is_causal, enable_gqa=enable_gqa
            ),
        )

    def _check_room(self, options: AttentionOptions, config: InterceptionConfig, budget_bytes: int) -> None:
        least = row_bytes(self._operands, options)
        if least > budget_bytes:
            budget = Budget(budget_bytes, config.limit(self.device).origin)
            raise BudgetExceededError(
                f"[{OP}] one row of {self._operands.keys} scores takes {format_bytes(least)}, more than the "
                f"{budget.allowance}; {budget.remedy(least)}",
                needed_bytes=least,
                budget_bytes=budget_bytes,
            )


def _read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AttentionCall | str:
    """Return the call, or why only torch can compute it."""
    renamed = {_FIELD_OF_KEYWORD.get(name, name): value for name, value in kwargs.items()}
    arguments = _Arguments(*args, **renamed)
    unsupported_reason = _unsupported_reason(arguments)
    if unsupported_reason is not None:
        return unsupported_reason
    operands = align(*arguments[:4], arguments.enable_gqa)
    return "shapes that only torch knows" if operands is None else AttentionCall(arguments, operands)


_FIELD_OF_KEYWORD = {"attn_mask": "mask", "dropout_p": "dropout"}

attention = handler_of(OP, _read)
"""Handler: torch's own, with the scores bounded when it would hold more of them than the budget allows."""


def _unsupported_reason(arguments: _Arguments) -> str | None:
    """Return why only torch can compute the call; None if it can be computed in tiles."""
    query, mask, dropout = arguments.query, arguments.mask, arguments.dropout
    tensors = [each for each in arguments[:4] if each is not None]
    if (
        not _share_type_and_device(tensors[:3])
        or not 0 <= dropout < 1
        or (mask is not None and arguments.is_causal)
    ):
        return "arguments that do not fit"
    if mask is not None and (mask.device != query.device or not _is_mask(mask)):
        return "arguments that do not fit"
    if any(map(_is_dual, tensors)):
        return "forward derivatives are torch's"
    try:
        choice = torch._fused_sdp_choice(
            *arguments[:6], scale=arguments.scale, enable_gqa=arguments.enable_gqa
        )
    except RuntimeError:
        return "arguments that do not fit"
    return None if choice == _MATH_BACKEND else "a fused kernel of torch keeps no scores"


def _share_type_and_device(tensors: list[torch.Tensor]) -> bool:
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


def scratch_bytes(
    config: InterceptionConfig, device: torch.device, result_bytes: int, budget_bytes: int
) -> int:
    """Return what the intermediates of a tile may take beside the result, or alone if that is in a file."""
    if config.override.tile_bytes is not None:
        return config.override.tile_bytes
    most = _TILE_BYTES if device.type == "cpu" else _ACCELERATOR_TILE_BYTES
    beside = budget_bytes - result_bytes
    return min(most, beside if beside > 0 else budget_bytes)


def results(scratch: int) -> Empty:
    """Return where the results of one pass come from: all of them together stay within the budget."""
    taken = [scratch]

    def result(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        size = nbytes(shape, dtype)
        out = empty(OP, shape, dtype, device, kept_bytes=taken[0])
        if stays_in_memory(size + taken[0], device):
            taken[0] += size
        return out

    return result
