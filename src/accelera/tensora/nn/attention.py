"""Attention of several heads between sequences."""

from __future__ import annotations

import math
from typing import Any

from accelera.errors import ArgumentError, ShapeError
from accelera.tensora import dtypes
from accelera.tensora import functional as F  # noqa: N812
from accelera.tensora.core import Tensor, native
from accelera.tensora.inspection import placed
from accelera.tensora.nn import init
from accelera.tensora.nn.linear import Linear
from accelera.tensora.nn.module import Module
from accelera.tensora.nn.parameter import Parameter
from accelera.tensora.typing import Device, DTypeLike

__all__ = ["MultiheadAttention"]


def added_mask(mask: Tensor, dtype: DTypeLike) -> Tensor:
    """Numbers that are added to scores: -inf where a bool mask is true, or the given numbers."""
    if mask.dtype != dtypes.bool:
        return native.cast(mask, dtype)
    hidden = placed(native.asarray(-math.inf, dtype), mask.device)
    return native.where(mask, hidden, placed(native.asarray(0.0, dtype), mask.device))


def _weights(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax of the scaled scores, zeros for a query that sees nothing."""
    scores = native.matmul(query * (1 / math.sqrt(query.shape[-1])), native.permute(key, (0, 1, 3, 2)))
    if mask is None:
        return F.softmax(scores, -1)
    scores = scores + mask
    blind = native.equal(native.max(scores, 3, True).detach(), -math.inf)
    return native.where(blind, 0.0, F.softmax(native.where(blind, 0.0, scores), -1))


def _require_shape(name: str, mask: Tensor, shapes: list[tuple[int, ...]]) -> None:
    if tuple(mask.shape) not in shapes:
        raise ShapeError(
            f"[MultiheadAttention] {name} of shape {tuple(mask.shape)}; give {' or '.join(map(str, shapes))}"
        )


class MultiheadAttention(Module):
    """Attention of several heads between sequences (A. Vaswani et al., "Attention is all you need", 2017).

    Parameters
    ----------
    embed_dim
        Width of queries and of the result, a multiple of `num_heads`.
    num_heads
        Number of heads, each of width ``embed_dim / num_heads``.
    dropout
        Probability with which a weight becomes 0, while training.
    bias
        Whether the projections have biases.
    add_bias_kv
        Add a learned key and its value to each sequence.
    add_zero_attn
        Add a key and a value of zeros.
    kdim, vdim
        Widths of keys and values; `embed_dim` by default.
    batch_first
        Whether the batch is the first axis.
    device, dtype
        Of the weights.

    Raises
    ------
    ValueError
        If `embed_dim` is no positive multiple of `num_heads`.

    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Device | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ArgumentError(
                f"[MultiheadAttention] embed_dim={embed_dim} for {num_heads} heads; give a multiple of them"
            )
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.dropout, self.batch_first, self.add_zero_attn = dropout, batch_first, add_zero_attn
        self._make_weights(bias, add_bias_kv, dtype, device)
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self._reset_parameters()

    def _make_weights(self, bias: bool, extra: bool, dtype: DTypeLike | None, device: Device | None) -> None:
        width, shared = self.embed_dim, self.kdim == self.vdim == self.embed_dim
        shapes: dict[str, tuple[int, ...] | None] = {
            "q_proj_weight": None if shared else (width, width),
            "k_proj_weight": None if shared else (width, self.kdim),
            "v_proj_weight": None if shared else (width, self.vdim),
            "in_proj_weight": (3 * width, width) if shared else None,
            "in_proj_bias": (3 * width,) if bias else None,
            "bias_k": (1, 1, width) if extra else None,
            "bias_v": (1, 1, width) if extra else None,
        }
        kind = native.default_float() if dtype is None else native.to_dtype(dtype)
        for name, shape in shapes.items():
            made = None if shape is None else Parameter(placed(native.empty(shape, kind), device))
            self.register_parameter(name, made)

    def _reset_parameters(self) -> None:
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                init.constant_(bias, 0.0)
        for extra in (self.bias_k, self.bias_v):
            if extra is not None:
                init.xavier_normal_(extra)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Any, Any]:
        """Attended values, and the weights of attention.

        Parameters
        ----------
        query
            Of shape (queries, batch, embed_dim), or (batch, queries, embed_dim) if `batch_first`, or
            (queries, embed_dim).
        key, value
            Of shapes (keys, batch, kdim) and (keys, batch, vdim), or in the order of `query`.
        key_padding_mask
            Of shape (batch, keys), or (keys,). True where a key is not seen, or numbers that are added.
        need_weights
            Return the weights; without, they are never in memory all at once.
        attn_mask
            Of shape (queries, keys) or (batch * heads, queries, keys), meant as `key_padding_mask`.
        average_attn_weights
            Return the mean of the heads' weights.
        is_causal
            Says that `attn_mask` is the causal mask, so that it need not be read.

        Returns
        -------
        tuple
            Of the shape of `query`; and (batch, queries, keys), with an axis of heads behind the batch unless
            averaged, without the batch if `query` has none; or None. A query that sees nothing gets zeros.

        Raises
        ------
        ValueError
            If shapes do not fit, or `is_causal` is True without a mask.

        """
        self._check(query, key, value)
        if is_causal and attn_mask is None:
            raise ArgumentError(
                "[MultiheadAttention] is_causal=True without attn_mask; give it the causal mask as well"
            )
        single = query.ndim == 2
        if single:
            alike = key is query
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
            paired, query = value is key, query[:, None]
            key = query if alike else key[:, None]
            value = key if paired else value[:, None]
        order = (0, 2, 1, 3) if self.batch_first and not single else (1, 2, 0, 3)
        q, k, v = (self._split(x, order) for x in self._projected(query, key, value))
        extended = self.bias_k is not None or self.add_zero_attn
        causal = is_causal and key_padding_mask is None and not (need_weights or extended)
        mask = None if causal else self._mask(attn_mask, key_padding_mask, q, k)
        if extended:
            k, v, mask = self._extended(k, v, mask)
        out, weights = self._attended((q, k, v), mask, causal, need_weights)
        out = native.permute(out, (0, 2, 1, 3) if order[0] == 0 else (2, 0, 1, 3))
        out = self.out_proj(native.reshape(out, (*query.shape[:2], self.embed_dim)))
        if weights is not None and average_attn_weights:
            weights = native.sum(weights, 1, False) / self.num_heads
        return (out[:, 0], None if weights is None else weights[0]) if single else (out, weights)

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        batch = 0 if self.batch_first else 1
        fits = query.ndim == key.ndim == value.ndim and query.ndim in (2, 3)
        fits = fits and tuple(key.shape[:-1]) == tuple(value.shape[:-1])
        fits = fits and (query.ndim == 2 or query.shape[batch] == key.shape[batch])
        wanted = (self.embed_dim, self.kdim, self.vdim)
        if not fits or (query.shape[-1], key.shape[-1], value.shape[-1]) != wanted:
            raise ShapeError(
                f"[MultiheadAttention] query {tuple(query.shape)}, key {tuple(key.shape)} and value "
                f"{tuple(value.shape)} do not fit; give widths {', '.join(map(str, wanted))}, one batch, "
                "and as many keys as values"
            )

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Any]:
        width, weight, bias = self.embed_dim, self.in_proj_weight, self.in_proj_bias
        if weight is not None and key is query and value is key:
            all_three = F.linear(query, weight, bias)
            return [all_three[..., i * width : (i + 1) * width] for i in range(3)]
        parts = [slice(i * width, (i + 1) * width) for i in range(3)]
        weights = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        if weight is not None:
            weights = [weight[part] for part in parts]
        biases = [None if bias is None else bias[part] for part in parts]
        return [F.linear(*each) for each in zip((query, key, value), weights, biases, strict=True)]

    def _split(self, x: Tensor, order: tuple[int, ...]) -> Tensor:
        """Heads (batch, heads, length, head_dim)."""
        heads = native.reshape(x, (*x.shape[:2], self.num_heads, self.head_dim))
        return native.permute(heads, order)

    def _mask(self, mask: Tensor | None, padding: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
        """Both masks as one that is added, of a shape that broadcasts to (batch, heads, queries, keys)."""
        (batch, heads, queries), keys = query.shape[:3], key.shape[2]
        if mask is not None:
            shapes = {(queries, keys): (1, 1), (batch * heads, queries, keys): (batch, heads)}
            _require_shape("attn_mask", mask, list(shapes))
            mask = native.reshape(added_mask(mask, query.dtype), (*shapes[tuple(mask.shape)], queries, keys))
        if padding is None:
            return mask
        _require_shape("key_padding_mask", padding, [(batch, keys)])
        added = native.reshape(added_mask(padding, query.dtype), (batch, 1, 1, keys))
        return added if mask is None else mask + added

    def _extended(self, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Any, Any, Any]:
        """Keys, values and mask with those of `bias_k` and `add_zero_attn` behind, which all queries see."""
        shape = (key.shape[0], self.num_heads, 1, self.head_dim)
        more = []
        if self.bias_k is not None:
            rows = (native.reshape(x, (1, *shape[1:])) for x in (self.bias_k, self.bias_v))
            more.append([native.expand(row, shape) for row in rows])
        if self.add_zero_attn:
            more.append([placed(native.full(shape, 0, key.dtype), key.device)] * 2)
        key = native.concat([key, *[each[0] for each in more]], 2)
        value = native.concat([value, *[each[1] for each in more]], 2)
        return key, value, mask if mask is None else F.pad(mask, (0, len(more)))

    def _attended(
        self, heads: tuple[Any, Any, Any], mask: Tensor | None, causal: bool, need_weights: bool
    ) -> tuple[Any, Any]:
        dropout = self.dropout if self.training else 0.0
        if not need_weights:
            return F.scaled_dot_product_attention(*heads, mask, dropout, causal), None
        query, key, value = heads
        weights = F.dropout(_weights(query, key, mask), dropout, self.training)
        return native.matmul(weights, value), weights
