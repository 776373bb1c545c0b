"""The fast path of ``nn.MultiheadAttention``, with its scores bounded."""

from __future__ import annotations

import logging
import math
import time
from typing import NamedTuple

import torch
from torch.nn import functional

from accelera.devices import is_out_of_memory
from accelera.errors import BudgetExceededError
from accelera.interceptor.allowance import budget_left, must_be_cut, stays_in_memory
from accelera.interceptor.attention import handling
from accelera.interceptor.attention.enduring import enduring
from accelera.interceptor.attention.operands import Operands
from accelera.interceptor.attention.options import Options
from accelera.interceptor.attention.weights import attended_with_weights
from accelera.interceptor.calls import nbytes
from accelera.interceptor.falling_back import fall_back
from accelera.interceptor.force import in_force
from accelera.interceptor.mechanism import original
from accelera.interceptor.statistics import statistics
from accelera.units import format_bytes

logger = logging.getLogger("accelera.interceptor")

OP = "_native_multi_head_attention"

Pair = tuple[torch.Tensor, torch.Tensor | None]


class _Layer(NamedTuple):
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


def multi_head_attention(*args: object) -> Pair:
    """Return what torch's operator does, by tiles where its scores would exceed the budget."""
    layer = _Layer(*args)  # type: ignore[arg-type]
    limits = in_force()
    if limits is None or _why_whole(layer) is not None or layer.looked_bytes < limits.memory_threshold_bytes:
        return _by_torch(layer)
    if not must_be_cut(layer.added_bytes, layer.query.device):
        try:
            found = _by_torch(layer)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            fall_back(OP, "in pieces after running out of memory", error)
        else:
            statistics.direct(OP, layer.looked_bytes, layer.added_bytes)
            return found
    return _bounded(layer)


def _by_torch(layer: _Layer) -> Pair:
    found: Pair = original(OP)(*layer)
    return found


def _why_whole(layer: _Layer) -> str | None:
    """Return why only torch can compute or refuse the call; None: it can go by tiles."""
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


def _bounded(layer: _Layer) -> Pair:
    device, began = layer.query.device, time.perf_counter()
    budget_bytes = budget_left(device) or 0
    try:
        with statistics.in_progress(layer.added_bytes if device.type == "cpu" else 0):
            found = _computed(layer, budget_bytes)
    except BudgetExceededError:
        statistics.in_pieces(OP, "refused", layer.looked_bytes, layer.added_bytes, budget_bytes)
        raise
    results = layer.query.nbytes + (0 if found[1] is None else found[1].nbytes)
    way = "chunked" if stays_in_memory(results, device) else "spilled"
    statistics.in_pieces(OP, way, layer.looked_bytes, layer.added_bytes, budget_bytes)
    statistics.took(OP, time.perf_counter() - began)
    logger.debug("%s: %s in tiles, %s by torch", OP, way, format_bytes(layer.added_bytes))
    return found


def _computed(layer: _Layer, budget_bytes: int) -> Pair:
    """Return result and weights; the projections are calls that are looked at by themselves."""
    query, key, value = _projected(layer)
    hidden = layer.hidden
    weights = None
    if not layer.need_weights and (hidden is None or layer.mask_type == 1):
        seen = None if hidden is None else hidden.logical_not()
        context = handling.scaled_dot_product_attention(query, key, value, seen)
    else:
        scratch_bytes = handling.scratch_bytes(query, layer.query.nbytes, budget_bytes)
        options = Options(
            is_causal=False,
            scale=1 / math.sqrt(query.shape[-1]),
            dropout=0.0,
            seed=0,
            scratch_bytes=scratch_bytes,
            results=lambda: handling.results(scratch_bytes),
            mask_hides=True,
        )
        operands = Operands(query, key, value, hidden)
        context, weights = enduring(
            lambda chosen: attended_with_weights(
                operands, chosen, wanted=layer.need_weights, averaged=layer.average_attn_weights
            ),
            operands,
            options,
        )
    _mark_blind_rows(hidden, context, weights)
    joined = context.transpose(1, 2).flatten(2)
    return functional.linear(joined, layer.proj_weight, layer.proj_bias), weights


def _projected(layer: _Layer) -> list[torch.Tensor]:
    """Return query, key and value, ``(batch, heads, rows, width of a head)``."""
    if layer.query is layer.key is layer.value:
        parts = functional.linear(layer.query, layer.qkv_weight, layer.qkv_bias).chunk(3, -1)
    else:
        inputs = zip(layer[:3], layer.qkv_weight.chunk(3), layer.qkv_bias.chunk(3), strict=True)
        parts = tuple(functional.linear(*each) for each in inputs)
    heads = (layer.num_head, layer.embed_dim // layer.num_head)
    return [each.view(*each.shape[:2], *heads).transpose(1, 2) for each in parts]


def _mark_blind_rows(
    hidden: torch.Tensor | None, context: torch.Tensor, weights: torch.Tensor | None
) -> None:
    """Write NaN, as torch's operator does, where a row sees no key."""
    if hidden is None:
        return
    blind = hidden.all(-1, keepdim=True)
    if not blind.any():
        return
    context.masked_fill_(blind, math.nan)
    if weights is not None:
        weights.masked_fill_(blind if weights.dim() == 4 else blind.any(1), math.nan)
