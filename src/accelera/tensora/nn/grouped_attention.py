"""Attention whose heads of queries share heads of keys and values, with rotation and a cache."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from accelera._json_values import is_finite_number, shown
from accelera.errors import ArgumentError, ShapeError
from accelera.tensora import dtypes
from accelera.tensora import functional as F  # noqa: N812
from accelera.tensora.core import DType, Tensor, native
from accelera.tensora.creation import arange
from accelera.tensora.inspection import placed
from accelera.tensora.nn.linear import Linear
from accelera.tensora.nn.module import Module
from accelera.tensora.typing import Device, DTypeLike

__all__ = ["GroupedQueryAttention", "KeyValueCache", "RotaryEmbedding"]


class RotaryEmbedding:
    """Rotation of pairs of channels by angles that grow with the position (J. Su et al., "RoFormer", 2021).

    Channel i and channel ``i + head_dim / 2`` are a pair, turned by ``position * base ** (-2 i / head_dim)``.

    Parameters
    ----------
    head_dim
        Width of the heads; even.
    base
        The number whose powers are the wave lengths.
    scaling
        None; or ``{"rope_type": "linear", "factor": f}``, which divides positions; or ``"llama3"`` with
        ``factor``, ``low_freq_factor``, ``high_freq_factor`` and ``original_max_position_embeddings``, which
        divides the frequencies of waves that are long for the original context (Llama 3.1, 2024).

    Raises
    ------
    ValueError
        If `head_dim` is odd, or the scaling is another.

    """

    def __init__(
        self, head_dim: int, base: float = 10000.0, scaling: Mapping[str, Any] | None = None
    ) -> None:
        if head_dim < 2 or head_dim % 2:
            raise ArgumentError(f"[RotaryEmbedding] head_dim={head_dim}; give an even number")
        if not is_finite_number(base) or base <= 0:
            raise ArgumentError(f"[RotaryEmbedding] base={shown(base, repr)}; give a finite number above 0")
        frequencies = [float(base) ** (-i / head_dim) for i in range(0, head_dim, 2)]
        self.frequencies = _scaled(frequencies, scaling or {})

    def __call__(self, positions: Tensor, dtype: DType) -> tuple[Any, Any]:
        """Cosines and sines of the angles at some positions.

        Parameters
        ----------
        positions
            Integers, of any shape.
        dtype
            Of the result.

        Returns
        -------
        tuple
            Two tensors of shape (*positions.shape, head_dim / 2).

        """
        frequencies = placed(native.asarray(self.frequencies, dtypes.float64), positions.device)
        angles = native.cast(positions, dtypes.float64)[..., None] * frequencies
        return native.cast(native.cos(angles), dtype), native.cast(native.sin(angles), dtype)


def _scaled(frequencies: list[float], scaling: Mapping[str, Any]) -> list[float]:
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return frequencies
    if kind == "linear":
        factor = _scaling_number(scaling, "factor")
        return [each / factor for each in frequencies]
    if kind == "llama3":
        return [_llama3(each, scaling) for each in frequencies]
    raise ArgumentError(f"[RotaryEmbedding] rope_type={kind!r}; give 'default', 'linear' or 'llama3'")


def _llama3(frequency: float, scaling: Mapping[str, Any]) -> float:
    """Frequency divided by the factor if its wave is long, and in between if it is of medium length."""
    low, high = (_scaling_number(scaling, f"{end}_freq_factor") for end in ("low", "high"))
    if low >= high:
        raise ArgumentError(
            f"[RotaryEmbedding] low_freq_factor={low} and high_freq_factor={high}; give the smaller one first"
        )
    waves = _scaling_number(scaling, "original_max_position_embeddings") * frequency / (2 * math.pi)
    weight = min(max((waves - low) / (high - low), 0.0), 1.0)
    return (1 - weight) * frequency / _scaling_number(scaling, "factor") + weight * frequency


def _scaling_number(scaling: Mapping[str, Any], name: str) -> float:
    """Return a number of the scaling; raises ArgumentError unless it is finite and above 0."""
    value = scaling.get(name)
    if not is_finite_number(value) or value <= 0:
        raise ArgumentError(
            f"[RotaryEmbedding] {name} of the scaling is {shown(value, repr)}; give a finite number above 0"
        )
    return float(value)


def rotate(x: Tensor, rotation: tuple[Any, Any]) -> Tensor:
    """Heads (..., length, head_dim) turned by the cosines and sines of `RotaryEmbedding`."""
    cos, sin = rotation
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return native.concat([first * cos - second * sin, second * cos + first * sin], x.ndim - 1)


class KeyValueCache:
    """Keys and values of the positions so far, for going on with a text one position after the other.

    What is added is not differentiated.
    """

    def __init__(self) -> None:
        self.length = 0
        self._kept: list[Any] = []

    def extend(self, key: Tensor, value: Tensor) -> tuple[Any, Any]:
        """Add keys and values (batch, heads, length, width), and return all that there are."""
        begin, end = self.length, self.length + key.shape[2]
        if not self._kept or end > self._kept[0].shape[2]:
            self._kept = [self._grown(i, x, 2 * end) for i, x in enumerate((key, value))]
        for kept, x in zip(self._kept, (key, value), strict=True):
            kept[:, :, begin:end] = x.detach()
        self.length = end
        return self._kept[0][:, :, :end], self._kept[1][:, :, :end]

    def _grown(self, i: int, x: Tensor, room: int) -> Tensor:
        made = placed(native.empty((x.shape[0], x.shape[1], room, x.shape[3]), x.dtype), x.device)
        if self._kept:
            made[:, :, : self.length] = self._kept[i][:, :, : self.length]
        return made


class GroupedQueryAttention(Module):
    """Self-attention whose heads of queries share fewer heads of keys and values (J. Ainslie et al. 2023).

    Parameters
    ----------
    embed_dim
        Width of the input and of the result.
    num_heads
        Number of heads of queries, a multiple of `num_kv_heads`.
    num_kv_heads
        Number of heads of keys and values; 1 is multi-query attention (N. Shazeer 2019).
    head_dim
        Width of a head; ``embed_dim / num_heads`` by default.
    dropout
        Probability with which a weight becomes 0, while training.
    bias
        Whether the four projections `q_proj`, `k_proj`, `v_proj` and `o_proj` have biases.
    rotary
        Rotation of queries and keys by their position; None for none.
    device, dtype
        Of the weights.

    Raises
    ------
    ValueError
        If the numbers of heads do not fit.

    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int | None = None,
        dropout: float = 0.0,
        bias: bool = False,
        rotary: RotaryEmbedding | None = None,
        device: Device | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        fits = min(num_heads, num_kv_heads) > 0 and num_heads % num_kv_heads == 0
        if not fits or (head_dim is None and embed_dim % num_heads):
            raise ArgumentError(
                f"[GroupedQueryAttention] embed_dim={embed_dim}, num_heads={num_heads}, "
                f"num_kv_heads={num_kv_heads}; give a multiple of num_kv_heads as num_heads, and a "
                "multiple of num_heads as embed_dim, or head_dim"
            )
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, num_kv_heads
        self.head_dim = embed_dim // num_heads if head_dim is None else head_dim
        self.dropout, self.rotary = dropout, rotary
        outer, inner = num_heads * self.head_dim, num_kv_heads * self.head_dim
        self.q_proj = Linear(embed_dim, outer, bias=bias, device=device, dtype=dtype)
        self.k_proj = Linear(embed_dim, inner, bias=bias, device=device, dtype=dtype)
        self.v_proj = Linear(embed_dim, inner, bias=bias, device=device, dtype=dtype)
        self.o_proj = Linear(outer, embed_dim, bias=bias, device=device, dtype=dtype)

    def forward(
        self,
        input: Tensor,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
        cache: KeyValueCache | None = None,
        rotation: tuple[Any, Any] | None = None,
    ) -> Tensor:
        """Attended values.

        Parameters
        ----------
        input
            Of shape (batch, length, embed_dim).
        key_padding_mask
            Of shape (batch, keys), the cached ones included. True where a key is not seen.
        is_causal
            Whether a position sees only itself and those before.
        cache
            Keys and values of positions before, to which the new ones are added.
        rotation
            Cosines and sines of the positions, which are otherwise those after the cache's.

        Returns
        -------
        Tensor
            Of the shape of `input`.

        Raises
        ------
        ValueError
            If shapes do not fit.

        """
        if input.ndim != 3 or input.shape[2] != self.embed_dim:
            raise ShapeError(
                f"[GroupedQueryAttention] an input of shape {tuple(input.shape)}; "
                f"give (batch, length, {self.embed_dim})"
            )
        batch, length = input.shape[:2]
        q, k, v = (self._split(p(input)) for p in (self.q_proj, self.k_proj, self.v_proj))
        if rotation is None and self.rotary is not None:
            begin = cache.length if cache else 0
            rotation = self.rotary(arange(begin, begin + length, device=input.device), input.dtype)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        if cache is not None:
            k, v = cache.extend(k, v)
        mask, causal = seen_keys(q, k, key_padding_mask, is_causal)
        dropout = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, enable_gqa=True)
        return self.o_proj(native.reshape(native.permute(out, (0, 2, 1, 3)), (batch, length, -1)))

    def _split(self, x: Tensor) -> Tensor:
        heads = native.reshape(x, (*x.shape[:2], -1, self.head_dim))
        return native.permute(heads, (0, 2, 1, 3))


def causal_mask(queries: int, keys: int, device: Device) -> Tensor:
    """True where the last `queries` of `keys` positions see one, which is at their place or before."""
    rows, columns = arange(keys - queries, keys)[:, None], native.arange(keys)
    return placed(native.less_equal(columns, rows), device)


def seen_keys(query: Tensor, key: Tensor, padding: Tensor | None, causal: bool) -> tuple[Any, bool]:
    """Mask and `is_causal` of `scaled_dot_product_attention`, for queries at the last places of the keys."""
    queries, keys = query.shape[2], key.shape[2]
    if padding is None and (not causal or queries in (1, keys)):
        return None, causal and queries == keys
    mask = causal_mask(queries, keys, query.device) if causal and queries > 1 else None
    if padding is None:
        return mask, False
    if tuple(padding.shape) != (query.shape[0], keys):
        raise ShapeError(
            f"[attention] a padding mask of shape {tuple(padding.shape)} for {query.shape[0]} sequences and "
            f"{keys} keys; give ({query.shape[0]}, {keys})"
        )
    seen = native.logical_not(padding)[:, None, None]
    return seen if mask is None else native.logical_and(seen, mask), False
