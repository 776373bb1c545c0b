"""Attention and its gradient tile by tile, in smaller tiles or on the CPU when memory runs out.

The gradient recomputes the scores instead of keeping them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from accelera.interceptor.attention.operands import (
    AttentionOperands,
    AttentionOptions,
    Order,
    computing_dtype,
    empty_in_order,
)
from accelera.interceptor.attention.score_tiles import (
    Box,
    ScoreBuffers,
    ScoreTile,
    ScoreTiling,
    dropout_factors,
    key_blocks,
    part,
    plan_tiles,
    probabilities,
    ready,
    row_bytes,
)
from accelera.interceptor.contraction import contract
from accelera.interceptor.hooks import passing
from accelera.interceptor.router import is_accelerator, with_less_scratch
from accelera.interceptor.spill import Empty

_Optional = torch.Tensor | None

Gradients = tuple[_Optional, _Optional, _Optional, _Optional]
"""Of query, key, value and mask, where wanted."""


def forward(
    operands: AttentionOperands,
    options: AttentionOptions,
    seen: Callable[[ScoreTile, torch.Tensor], None] | None = None,
) -> torch.Tensor:
    """Return attention, ``(*batch, rows, value_width)``; ``seen`` is shown each tile's probabilities."""
    tiling = plan_tiles(operands, options)
    workspace = ScoreBuffers(operands, tiling, buffers=2)
    query, value = operands.query, operands.value
    shape = (*operands.batch, operands.rows, value.shape[-1])
    out = options.results()(shape, query.dtype, query.device)
    for tile in tiling:
        weights = probabilities(operands, options, tiling, tile, workspace)
        if seen is not None:
            seen(tile, weights)
        if options.dropout:
            weights.mul_(dropout_factors(options, tile, workspace[0].of(tile)))
        _write_weighted_sum(weights, part(value, tile.box), part(out, tile.box, tile.rows), tile, tiling)
    return out


def _write_weighted_sum(
    weights: torch.Tensor, value: torch.Tensor, out: torch.Tensor, tile: ScoreTile, tiling: ScoreTiling
) -> None:
    """Write the sum of ``value`` by ``weights`` into ``out``."""
    total = (
        out if out.dtype == weights.dtype else torch.empty(out.shape, dtype=weights.dtype, device=out.device)
    )
    for keys in key_blocks(tile, tiling):
        contract(weights[..., keys], ready(value[..., keys, :]), total, accumulate=keys.start > 0)
    if total is not out:
        out.copy_(total)


def backward(
    operands: AttentionOperands,
    options: AttentionOptions,
    grad: torch.Tensor,
    wanted: tuple[bool, bool, bool, bool],
) -> Gradients:
    """Return the gradients that are ``wanted``, of what ``forward`` returned with the same options."""
    tiling = plan_tiles(operands, options)
    workspace = ScoreBuffers(operands, tiling, buffers=3 if options.dropout else 2)
    empty = options.results()
    totals = [
        _GradientSum(each, empty, order) if each is not None and needed else None
        for each, needed, order in zip(operands, wanted, options.gradient_orders, strict=True)
    ]
    for tile in tiling:
        _add_tile(operands, options, grad, totals, tiling, tile, workspace)
    query, key, value, mask = (None if total is None else total.finished() for total in totals)
    return query, key, value, mask


def _add_tile(
    operands: AttentionOperands,
    options: AttentionOptions,
    grad: torch.Tensor,
    totals: list[_GradientSum | None],
    tiling: ScoreTiling,
    tile: ScoreTile,
    workspace: ScoreBuffers,
) -> None:
    """Add what the scores of one tile contribute to every gradient."""
    weights = probabilities(operands, options, tiling, tile, workspace)
    grad = ready(part(grad, tile.box, tile.rows))
    of_weights = workspace[0].of(tile)
    value = part(operands.value, tile.box)
    for keys in key_blocks(tile, tiling):
        contract(grad, ready(value[..., keys, :]).mT, of_weights[..., keys])
    factors = dropout_factors(options, tile, workspace[2].of(tile)) if options.dropout else None
    if factors is not None:
        of_weights.mul_(factors)
    of_scores = of_weights.sub_(_row_products(of_weights, weights)).mul_(weights)
    if factors is not None:
        weights.mul_(factors)
    _add_products(operands, options, grad, totals, tiling, tile, weights, of_scores)


def _add_products(
    operands: AttentionOperands,
    options: AttentionOptions,
    grad: torch.Tensor,
    totals: list[_GradientSum | None],
    tiling: ScoreTiling,
    tile: ScoreTile,
    weights: torch.Tensor,
    of_scores: torch.Tensor,
) -> None:
    of_query, of_key, of_value, of_mask = totals
    query, key = part(operands.query, tile.box, tile.rows), part(operands.key, tile.box)
    for keys in key_blocks(tile, tiling):
        if of_query is not None:
            of_query.add(of_scores[..., keys], ready(key[..., keys, :]), tile.box, tile.rows, options.scale)
        if of_key is not None:
            of_key.add(of_scores[..., keys].mT, ready(query), tile.box, keys, options.scale)
        if of_value is not None:
            of_value.add(weights[..., keys].mT, grad, tile.box, keys)
    if of_mask is not None:
        of_mask.add_sums(of_scores, tile)


def _row_products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the dot product of each row of ``x`` with that of ``y``, ``(*box, rows, 1)``."""
    keys = x.shape[-1]
    products = torch.empty((*x.shape[:-1], 1), dtype=x.dtype, device=x.device)
    torch.bmm(x.view(-1, 1, keys), y.view(-1, keys, 1), out=products.view(-1, 1, 1))
    return products


class _GradientSum:
    """A gradient that tiles are added to, in the type that is computed in."""

    def __init__(self, of: torch.Tensor, empty: Empty, order: Order | None) -> None:
        self._of, self._empty = of, empty
        self._shape, self._axes = empty_in_order(tuple(of.shape), order)
        self._sum = self._dense(computing_dtype(of.dtype)).zero_()

    def _dense(self, dtype: torch.dtype) -> torch.Tensor:
        return self._empty(self._shape, dtype, self._of.device).permute(self._axes)

    def add(self, x: torch.Tensor, y: torch.Tensor, box: Box, rows: slice, alpha: float = 1) -> None:
        """Add ``alpha * (x @ y)``, summed over the batch axes that this gradient lacks."""
        contract(x, y, part(self._sum, box, rows), alpha=alpha, accumulate=True)

    def add_sums(self, scores: torch.Tensor, tile: ScoreTile) -> None:
        """Add ``scores``, summed over every axis along which this gradient repeats."""
        place = part(self._sum, tile.box, tile.rows)
        place.add_(scores.sum_to_size(place.shape))

    def finished(self) -> torch.Tensor:
        """Return the gradient in the type of its operand."""
        if self._sum.dtype == self._of.dtype:
            return self._sum
        return self._dense(self._of.dtype).copy_(self._sum)


OP = "scaled_dot_product_attention"

_Computed = TypeVar("_Computed")


def bounded_forward(
    operands: AttentionOperands, options: AttentionOptions
) -> tuple[torch.Tensor, AttentionOptions]:
    """Return attention, and the options by which it was computed: dropout depends on them."""

    def compute(chosen: AttentionOptions) -> tuple[torch.Tensor, AttentionOptions]:
        if not chosen.on_cpu:
            return forward(operands, chosen), chosen
        return forward(on_cpu(operands), chosen).to(operands.query.device), chosen

    return with_smaller_tiles(compute, operands, options)


def bounded_backward(
    operands: AttentionOperands,
    options: AttentionOptions,
    grad: torch.Tensor,
    wanted: tuple[bool, bool, bool, bool],
) -> Gradients:
    """Return the gradients that are ``wanted``.

    With dropout there is one way only, that of the forward pass: other tiles would drop others.
    """

    def compute(chosen: AttentionOptions) -> Gradients:
        if not chosen.on_cpu:
            return backward(operands, chosen, grad, wanted)
        found = backward(on_cpu(operands), chosen, grad.cpu(), wanted)
        query, key, value, mask = (None if each is None else each.to(grad.device) for each in found)
        return query, key, value, mask

    return compute(options) if options.dropout else with_smaller_tiles(compute, operands, options)


def on_cpu(operands: AttentionOperands) -> AttentionOperands:
    """Return the operands in RAM."""
    query, key, value, mask = operands
    return AttentionOperands(query.cpu(), key.cpu(), value.cpu(), None if mask is None else mask.cpu())


def with_smaller_tiles(
    compute: Callable[[AttentionOptions], _Computed], operands: AttentionOperands, options: AttentionOptions
) -> _Computed:
    """Return what ``compute`` makes by ``options``, or by others with less room when memory runs out."""
    there = replace(options, on_cpu=True)
    may_move = is_accelerator(operands.query.device) and not options.on_cpu
    return with_less_scratch(
        OP,
        lambda scratch_bytes: compute(replace(options, scratch_bytes=scratch_bytes)),
        options.scratch_bytes,
        row_bytes(operands, options),
        (lambda: compute(there)) if may_move else None,
    )


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
            out, ctx.options = bounded_forward(_detached(query, key, value, mask), options)
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
    ) -> Gradients:
        ctx.save_for_backward(grad, query, key, value, mask)
        ctx.options, ctx.wanted = options, wanted
        with passing():
            return bounded_backward(_detached(query, key, value, mask), options, grad.detach(), wanted)

    @staticmethod
    def backward(ctx: Any, *outer: _Optional) -> tuple[Any, ...]:  # noqa: D102
        again = torch.is_grad_enabled()
        needed = ctx.needs_input_grad[:5]
        saved = [
            _independent_alias(each, again) if wanted else each
            for each, wanted in zip(ctx.saved_tensors, needed, strict=True)
        ]
        with torch.enable_grad():
            out = composed_attention(AttentionOperands(*saved[1:]), ctx.options)
            first = torch.autograd.grad(
                _inner_product([out], saved[:1]), _selected(saved[1:], ctx.wanted), create_graph=True
            )
            of_first = _inner_product(first, _selected(outer, ctx.wanted))
        second = torch.autograd.grad(
            of_first, _selected(saved, needed), create_graph=again, allow_unused=True
        )
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
        weights = weights * _dropout_mask(operands, options)
    return torch.matmul(weights, value).to(operands.query.dtype)


def _dropout_mask(operands: AttentionOperands, options: AttentionOptions) -> torch.Tensor:
    """Return what dropout multiplies the probabilities by, ``(*batch, rows, keys)``."""
    device = operands.query.device
    operands = on_cpu(operands) if options.on_cpu else operands
    tiling = plan_tiles(operands, options)
    workspace = ScoreBuffers(operands, tiling, buffers=1)
    shape, query = (*operands.batch, operands.rows, operands.keys), operands.query
    factors = torch.zeros(shape, dtype=computing_dtype(query.dtype), device=query.device)
    for tile in tiling:
        part(factors, tile.box, tile.rows)[..., : tile.shape[-1]] = dropout_factors(
            options, tile, workspace[0].of(tile)
        )
    return factors.to(device)


def _independent_alias(tensor: torch.Tensor, again: bool) -> torch.Tensor:
    """Return an alias that is differentiated by itself: one tensor may be query, key and value."""
    if not again:
        return tensor.detach().requires_grad_()
    with torch.enable_grad():
        return tensor.view_as(tensor)


def _inner_product(tensors: Sequence[torch.Tensor], weights: Sequence[_Optional]) -> torch.Tensor:
    """Return the inner product, differentiated in place of weighted results, for which torch loads SymPy."""
    pairs = zip(tensors, weights, strict=True)
    products = [(one * other).sum() for one, other in pairs if other is not None]
    return sum(products[1:], start=products[0])


def _selected(tensors: Sequence[_Optional], wanted: Sequence[bool]) -> list[torch.Tensor]:
    return [each for each, want in zip(tensors, wanted, strict=True) if want and each is not None]


def _detached(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: _Optional
) -> AttentionOperands:
    return AttentionOperands(
        query.detach(), key.detach(), value.detach(), None if mask is None else mask.detach()
    )
