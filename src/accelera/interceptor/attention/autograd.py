"""Bounded attention as autograd knows it: the gradient recomputes the scores instead of keeping them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from accelera.interceptor.attention import kernels
from accelera.interceptor.attention.operands import AttentionOperands, AttentionOptions, computing_dtype
from accelera.interceptor.attention.score_tiles import ScoreBuffers, dropout_factors, part, plan_tiles
from accelera.interceptor.hooks import passing

_Optional = torch.Tensor | None


def attend(operands: AttentionOperands, options: AttentionOptions) -> torch.Tensor:
    """Return attention of aligned operands, differentiable any number of times."""
    result: torch.Tensor = AttentionFunction.apply(*operands, options)  # type: ignore[no-untyped-call]
    return result


class AttentionFunction(torch.autograd.Function):
    """Attention of aligned operands."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: _Optional,
        options: AttentionOptions,
    ) -> torch.Tensor:
        ctx.save_for_backward(query, key, value, mask)
        with passing():
            out, ctx.options = kernels.bounded_forward(_detached(query, key, value, mask), options)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # noqa: D102
        wanted = tuple(ctx.needs_input_grad[:4])
        gradients = AttentionGradientFunction.apply(grad, *ctx.saved_tensors, ctx.options, wanted)  # type: ignore[no-untyped-call]
        return (*gradients, None)


class AttentionGradientFunction(torch.autograd.Function):
    """The gradient of attention, whose own gradient is that of the composed expression."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,
        grad: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: _Optional,
        options: AttentionOptions,
        wanted: tuple[bool, bool, bool, bool],
    ) -> kernels.Gradients:
        ctx.save_for_backward(grad, query, key, value, mask)
        ctx.options, ctx.wanted = options, wanted
        with passing():
            return kernels.bounded_backward(
                _detached(query, key, value, mask), options, grad.detach(), wanted
            )

    @staticmethod
    def backward(ctx: Any, *outer: _Optional) -> tuple[Any, ...]:  # noqa: D102
        again = torch.is_grad_enabled()
        needed = ctx.needs_input_grad[:5]
        saved = [
            _independent(each, again) if wanted else each
            for each, wanted in zip(ctx.saved_tensors, needed, strict=True)
        ]
        with torch.enable_grad():
            out = composed_attention(AttentionOperands(*saved[1:]), ctx.options)
            first = torch.autograd.grad(
                _inner([out], saved[:1]), _chosen(saved[1:], ctx.wanted), create_graph=True
            )
            of_first = _inner(first, _chosen(outer, ctx.wanted))
        second = torch.autograd.grad(of_first, _chosen(saved, needed), create_graph=again, allow_unused=True)
        following = iter(second)
        return (*(next(following) if wanted else None for wanted in needed), None, None)


def composed_attention(operands: AttentionOperands, options: AttentionOptions) -> torch.Tensor:
    """Return the same attention as an expression of PyTorch's operators, differentiable at will."""
    dtype = computing_dtype(operands.query.dtype)
    query, key, value = (each.to(dtype) for each in operands[:3])
    scores = torch.matmul(query * options.scale, key.mT)
    mask = operands.mask
    if options.is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril_()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    weights = torch.ops.aten._safe_softmax(scores, -1)
    if options.dropout:
        weights = weights * _factors(operands, options)
    return torch.matmul(weights, value).to(operands.query.dtype)


def _factors(operands: AttentionOperands, options: AttentionOptions) -> torch.Tensor:
    """Return what dropout multiplies the probabilities by, ``(*batch, rows, keys)``."""
    home = operands.query.device
    operands = kernels.on_cpu(operands) if options.on_cpu else operands
    tiling = plan_tiles(operands, options)
    workspace = ScoreBuffers(operands, tiling, buffers=1)
    shape, query = (*operands.batch, operands.rows, operands.keys), operands.query
    factors = torch.zeros(shape, dtype=computing_dtype(query.dtype), device=query.device)
    for tile in tiling:
        part(factors, tile.box, tile.rows)[..., : tile.shape[-1]] = dropout_factors(
            options, tile, workspace[0].of(tile)
        )
    return factors.to(home)


def _independent(tensor: torch.Tensor, again: bool) -> torch.Tensor:
    """Return an alias that is differentiated by itself: one tensor may be query, key and value."""
    if not again:
        return tensor.detach().requires_grad_()
    with torch.enable_grad():
        return tensor.view_as(tensor)


def _inner(tensors: Sequence[torch.Tensor], weights: Sequence[_Optional]) -> torch.Tensor:
    """Return the inner product, differentiated in place of weighted results, for which torch loads SymPy."""
    pairs = zip(tensors, weights, strict=True)
    products = [(one * other).sum() for one, other in pairs if other is not None]
    return sum(products[1:], start=products[0])


def _chosen(tensors: Sequence[_Optional], wanted: Sequence[bool]) -> list[torch.Tensor]:
    return [each for each, want in zip(tensors, wanted, strict=True) if want and each is not None]


def _detached(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: _Optional
) -> AttentionOperands:
    return AttentionOperands(
        query.detach(), key.detach(), value.detach(), None if mask is None else mask.detach()
    )
