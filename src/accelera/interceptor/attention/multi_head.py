"""Fast path of ``nn.MultiheadAttention`` as an intercepted call, with its scores bounded."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from accelera.interceptor.attention import kernels, sdpa
from accelera.interceptor.attention.kernels import on_cpu, with_smaller_tiles
from accelera.interceptor.attention.operands import AttentionOperands, AttentionOptions
from accelera.interceptor.attention.score_tiles import ScoreTile, part
from accelera.interceptor.config import InterceptionConfig, Route, active_config, stays_in_memory
from accelera.interceptor.router import InterceptedCall, handler_of
from accelera.interceptor.tiling import nbytes

OP = "_native_multi_head_attention"

Pair = tuple[torch.Tensor, torch.Tensor | None]


class _MultiHeadArguments(NamedTuple):
    """The arguments of torch's operator, in its order."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    embed_dim: int
    num_head: int
    qkv_weight: torch.Tensor
    qkv_bias: torch.Tensor
    proj_weight: torch.Tensor
    proj_bias: torch.Tensor
    mask: torch.Tensor | None = None
    need_weights: bool = True
    average_attn_weights: bool = True
    mask_type: int | None = None

    @property
    def scores_bytes(self) -> int:
        batch, rows = self.query.shape[:2]
        return nbytes((batch, self.num_head, rows, self.key.shape[1]), self.query.dtype)

    @property
    def added_bytes(self) -> int:
        """The scores and the softmax of them, the projections twice, and the result."""
        return 2 * self.scores_bytes + 7 * self.query.nbytes

    @property
    def looked_bytes(self) -> int:
        return self.scores_bytes + 4 * self.query.nbytes + self.qkv_weight.nbytes + self.proj_weight.nbytes

    @property
    def hidden(self) -> torch.Tensor | None:
        """Not zero where a row does not see a key, ``(batch or 1, heads or 1, rows or 1, keys)``."""
        if self.mask is None:
            return None
        batch, rows = self.query.shape[:2]
        shapes = {0: (1, 1, rows, rows), 1: (batch, 1, 1, rows), 2: (batch, self.num_head, rows, rows)}
        return self.mask.view(shapes[self.mask_type or 0])


class MultiHeadCall(InterceptedCall):
    """Attention of several heads with its projections, for which torch would hold all scores."""

    op = OP

    def __init__(self, layer: _MultiHeadArguments) -> None:
        self._layer = layer
        self.device, self.looked_bytes = layer.query.device, layer.looked_bytes
        self.result_bytes = layer.query.nbytes
        self.temporary_bytes = layer.added_bytes - self.result_bytes

    def bounded(self, config: InterceptionConfig, budget_bytes: int) -> tuple[Pair, Route]:
        """Compute the scores tile by tile; the projections are calls that are looked at by themselves."""
        found = _attend(self._layer, config, budget_bytes)
        results = self.result_bytes + (0 if found[1] is None else found[1].nbytes)
        return found, "chunked" if stays_in_memory(results, self.device) else "spilled"


def _read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> MultiHeadCall | None:
    """Return the call; None when it is small, or only torch can compute or refuse it."""
    config, layer = active_config(), _MultiHeadArguments(*args, **kwargs)
    if config is None or _unsupported_reason(layer) is not None:
        return None
    return MultiHeadCall(layer) if layer.looked_bytes >= config.memory_threshold_bytes else None


attention = handler_of(OP, _read)
"""Handler: torch's own, by tiles where its scores would exceed the budget."""


def _unsupported_reason(layer: _MultiHeadArguments) -> str | None:
    """Return why only torch can compute or refuse the call; None if it can be computed in tiles."""
    query, mask = layer.query, layer.mask
    if query.dim() != 3 or not query.numel() or not query.is_floating_point():
        return "an input of none or other axes"
    if not layer.query.shape == layer.key.shape == layer.value.shape:
        return "shapes that do not fit"
    batch, rows, width = query.shape
    weights = (layer.qkv_weight, layer.qkv_bias, layer.proj_weight, layer.proj_bias)
    shapes = ((3 * width, width), (3 * width,), (width, width), (width,))
    if width != layer.embed_dim or layer.num_head < 1 or width % layer.num_head:
        return "shapes that do not fit"
    if any(each.shape != shape for each, shape in zip(weights, shapes, strict=True)):
        return "shapes that do not fit"
    if any(
        each.dtype != query.dtype or each.device != query.device
        for each in (*weights, layer.key, layer.value)
    ):
        return "mixed types or devices"
    if mask is None:
        return None
    sizes = {0: (rows, rows), 1: (batch, rows), 2: (batch, layer.num_head, rows, rows)}
    fits = layer.mask_type in sizes and mask.shape == sizes[layer.mask_type] and mask.device == query.device
    return None if fits else "shapes that do not fit"


def _attend(layer: _MultiHeadArguments, config: InterceptionConfig, budget_bytes: int) -> Pair:
    """Return result and weights; the projections are calls that are looked at by themselves."""
    query, key, value = _project(layer)
    hidden = layer.hidden
    weights = None
    if not layer.need_weights and (hidden is None or layer.mask_type == 1):
        seen = None if hidden is None else hidden.logical_not()
        context = sdpa.attention(query, key, value, seen)
    else:
        scratch_bytes = sdpa.scratch_bytes(config, query.device, layer.query.nbytes, budget_bytes)
        options = AttentionOptions(
            is_causal=False,
            scale=1 / math.sqrt(query.shape[-1]),
            dropout=0.0,
            seed=0,
            scratch_bytes=scratch_bytes,
            results=lambda: sdpa.results(scratch_bytes),
            mask_hides=True,
        )
        operands = AttentionOperands(query, key, value, hidden)
        context, weights = with_smaller_tiles(
            lambda chosen: attended_with_weights(
                operands, chosen, wanted=layer.need_weights, averaged=layer.average_attn_weights
            ),
            operands,
            options,
        )
    _fill_fully_masked_rows(hidden, context, weights)
    joined = context.transpose(1, 2).flatten(2)
    return functional.linear(joined, layer.proj_weight, layer.proj_bias), weights


def _project(layer: _MultiHeadArguments) -> list[torch.Tensor]:
    """Return query, key and value, ``(batch, heads, rows, width of a head)``."""
    if layer.query is layer.key is layer.value:
        parts = functional.linear(layer.query, layer.qkv_weight, layer.qkv_bias).chunk(3, -1)
    else:
        inputs = zip(layer[:3], layer.qkv_weight.chunk(3), layer.qkv_bias.chunk(3), strict=True)
        parts = tuple(functional.linear(*each) for each in inputs)
    heads = (layer.num_head, layer.embed_dim // layer.num_head)
    return [each.view(*each.shape[:2], *heads).transpose(1, 2) for each in parts]


def _fill_fully_masked_rows(
    hidden: torch.Tensor | None, context: torch.Tensor, weights: torch.Tensor | None
) -> None:
    """Write NaN, as torch's operator does, where all keys of a row are masked."""
    if hidden is None:
        return
    fully_masked = hidden.all(-1, keepdim=True)
    if not fully_masked.any():
        return
    context.masked_fill_(fully_masked, math.nan)
    if weights is not None:
        weights.masked_fill_(fully_masked if weights.dim() == 4 else fully_masked.any(1), math.nan)


def attended_with_weights(
    operands: AttentionOperands, options: AttentionOptions, *, wanted: bool, averaged: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return attention and, if wanted, the weights; records no gradient.

    Parameters
    ----------
    operands
        ``(batch, heads, rows, width)`` and so on.
    wanted, averaged
        Whether the weights are returned, and whether as their mean over the heads.

    Returns
    -------
    tuple
        ``(batch, heads, rows, value_width)``, and ``(batch, rows, keys)`` or ``(batch, heads, rows, keys)``.
    """
    device = operands.query.device
    operands = on_cpu(operands) if options.on_cpu else operands
    weights = _WeightsCollector(operands, options, averaged) if wanted else None
    out = kernels.forward(operands, options, None if weights is None else weights.add)
    return out.to(device), None if weights is None else weights.result.to(device)


class _WeightsCollector:
    """The weights of all tiles, put together."""

    def __init__(self, operands: AttentionOperands, options: AttentionOptions, averaged: bool) -> None:
        batch, heads = operands.batch
        self._averaged, self._heads = averaged, heads
        shape = (batch, *(() if averaged else (heads,)), operands.rows, operands.keys)
        query = operands.query
        self.result = options.results()(shape, query.dtype, query.device)
        if averaged:
            self.result.zero_()

    def add(self, tile: ScoreTile, weights: torch.Tensor) -> None:
        """Put the weights of one tile, ``(*box, rows, keys)``, where they belong."""
        if not self._averaged:
            part(self.result, tile.box, tile.rows).copy_(weights)
            return
        place = part(self.result, tile.box[:1], tile.rows)
        for head in weights.unbind(1):
            place.add_(head, alpha=1 / self._heads)
