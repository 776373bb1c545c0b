"""Transformers of encoder and decoder layers (A. Vaswani et al., "Attention is all you need", 2017)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from accelera.errors import ArgumentError, ShapeError
from accelera.tensora import functional as F  # noqa: N812
from accelera.tensora.core import Tensor, native
from accelera.tensora.inspection import placed
from accelera.tensora.nn import init
from accelera.tensora.nn.attention import MultiheadAttention
from accelera.tensora.nn.containers import ModuleList
from accelera.tensora.nn.dropout import Dropout
from accelera.tensora.nn.linear import Linear
from accelera.tensora.nn.module import Module
from accelera.tensora.nn.normalization import LayerNorm
from accelera.tensora.typing import Device, DTypeLike

__all__ = [
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]

Activation = str | Callable[[Any], Any]


class _NativeFunction:
    """Operation of the table as an object that can be copied and pickled, as C++ functions cannot."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, x: Tensor) -> Tensor:
        return getattr(native, self.name)(x)


def _activation(given: Activation) -> Callable[[Any], Any]:
    known: dict[str, Callable[[Any], Any]] = {"relu": F.relu, "gelu": F.gelu}
    if isinstance(given, str):
        if given not in known:
            raise ArgumentError(f"[Transformer] activation={given!r}; give 'relu', 'gelu' or a function")
        given = known[given]
    return _NativeFunction(given.__name__) if isinstance(given, type(native.relu)) else given


def _is_causal(mask: Tensor | None, hint: bool | None) -> bool:
    """Return whether a mask is the causal one: by the hint if given, otherwise by its elements."""
    if hint is not None or mask is None or mask.ndim != 2 or mask.shape[0] != mask.shape[1]:
        return bool(hint)
    wanted = placed(Transformer.generate_square_subsequent_mask(mask.shape[0]), mask.device)
    if mask.dtype.name == "bool":
        wanted = native.isinf(wanted)
    return bool(native.all(native.equal(mask.detach(), wanted)).item())


def _copies(layer: Any, count: int) -> ModuleList:
    return ModuleList([copy.deepcopy(layer) for _ in range(count)])


class _TransformerLayer(Module):
    """Parts that layers of encoders and decoders have in common."""

    def __init__(
        self,
        d_model: int,
        dim_feedforward: int,
        dropout: float,
        activation: Activation,
        norms: dict[str, Any],
        options: dict[str, Any],
    ) -> None:
        super().__init__()
        self.linear1 = Linear(d_model, dim_feedforward, **options)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, **options)
        for name, eps in norms.items():
            setattr(self, name, LayerNorm(d_model, eps=eps, **options))
        for i in range(1, len(norms) + 1):
            setattr(self, f"dropout{i}", Dropout(dropout))
        self.activation = _activation(activation)

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))

    def _residual(self, x: Tensor, i: int, block: Callable[[Any], Any]) -> Tensor:
        """Return ``x + block(x)``, with the layer's i-th normalization before the block or after the sum."""
        norm, dropout = getattr(self, f"norm{i}"), getattr(self, f"dropout{i}")
        if self.norm_first:
            return x + dropout(block(norm(x)))
        return norm(x + dropout(block(x)))


class TransformerEncoderLayer(_TransformerLayer):
    """Self-attention and a feed-forward network, each with a shortcut and a normalization.

    Parameters
    ----------
    d_model, nhead
        Width of the input, and number of heads.
    dim_feedforward
        Width inside the feed-forward network.
    dropout
        Probability with which elements become 0, while training.
    activation
        ``"relu"``, ``"gelu"`` or a function.
    layer_norm_eps
        Added to the variance.
    batch_first
        Whether the batch is the first axis.
    norm_first
        Normalize before attention and network instead of after.
    bias
        Whether linear maps and normalizations have biases.
    device, dtype
        Of the weights.

    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Device | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        options: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        norms = dict.fromkeys(("norm1", "norm2"), layer_norm_eps)
        super().__init__(d_model, dim_feedforward, dropout, activation, norms, options)
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout=dropout, batch_first=batch_first, **options
        )
        self.norm_first = norm_first

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Result of the shape of `src`; masks are those of `MultiheadAttention`."""

        def attend(x: Tensor) -> Tensor:
            options = {"need_weights": False, "attn_mask": src_mask, "is_causal": is_causal}
            return self.self_attn(x, x, x, key_padding_mask=src_key_padding_mask, **options)[0]

        return self._residual(self._residual(src, 1, attend), 2, self._feed_forward)


class TransformerDecoderLayer(_TransformerLayer):
    """Self-attention, attention to an encoder's result, and a feed-forward network.

    The arguments are those of `TransformerEncoderLayer`.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Device | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        options = {"bias": bias, "device": device, "dtype": dtype}
        norms = dict.fromkeys(("norm1", "norm2", "norm3"), layer_norm_eps)
        super().__init__(d_model, dim_feedforward, dropout, activation, norms, options)
        heads: dict[str, Any] = {"dropout": dropout, "batch_first": batch_first, **options}
        self.self_attn = MultiheadAttention(d_model, nhead, **heads)
        self.multihead_attn = MultiheadAttention(d_model, nhead, **heads)
        self.norm_first = norm_first

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Result of the shape of `tgt`, which attends to itself and to `memory`.

        Masks are those of `MultiheadAttention`; the last two arguments say that a mask is the causal one.
        """

        def attend(x: Tensor) -> Tensor:
            options = {"need_weights": False, "attn_mask": tgt_mask, "is_causal": tgt_is_causal}
            return self.self_attn(x, x, x, key_padding_mask=tgt_key_padding_mask, **options)[0]

        def attend_to_memory(x: Tensor) -> Tensor:
            options = {"need_weights": False, "attn_mask": memory_mask, "is_causal": memory_is_causal}
            options["key_padding_mask"] = memory_key_padding_mask
            return self.multihead_attn(x, memory, memory, **options)[0]

        x = self._residual(self._residual(tgt, 1, attend), 2, attend_to_memory)
        return self._residual(x, 3, self._feed_forward)


class TransformerEncoder(Module):
    """Several encoder layers, one after the other.

    Parameters
    ----------
    encoder_layer
        Layer that is copied.
    num_layers
        How often.
    norm
        Normalization of the result; None for none.

    """

    def __init__(self, encoder_layer: Any, num_layers: int, norm: Any = None) -> None:
        super().__init__()
        self.layers = _copies(encoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """Compute a result of the shape of `src`; if `is_causal` is None, the elements of `mask` decide."""
        causal = _is_causal(mask, is_causal)
        for layer in self.layers:
            src = layer(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=causal)
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """Several decoder layers, one after the other; the arguments are those of `TransformerEncoder`."""

    def __init__(self, decoder_layer: Any, num_layers: int, norm: Any = None) -> None:
        super().__init__()
        self.layers = _copies(decoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Result of the shape of `tgt`; arguments as for `TransformerDecoderLayer`."""
        masks = {"tgt_mask": tgt_mask, "memory_mask": memory_mask}
        masks["tgt_key_padding_mask"] = tgt_key_padding_mask
        masks["memory_key_padding_mask"] = memory_key_padding_mask
        causal = _is_causal(tgt_mask, tgt_is_causal)
        for layer in self.layers:
            tgt = layer(tgt, memory, **masks, tgt_is_causal=causal, memory_is_causal=memory_is_causal)
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """Encoder of a source sequence, and decoder of a target sequence that attends to it.

    Parameters
    ----------
    d_model, nhead
        Width of the inputs, and number of heads.
    num_encoder_layers, num_decoder_layers
        Number of layers of each.
    dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias, device, dtype
        As for `TransformerEncoderLayer`.
    custom_encoder, custom_decoder
        Modules that are used instead.

    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        custom_encoder: Any = None,
        custom_decoder: Any = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Device | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        places = (
            d_model,
            nhead,
            dim_feedforward,
            dropout,
            activation,
            layer_norm_eps,
            batch_first,
            norm_first,
        )

        def norm() -> Any:
            return LayerNorm(d_model, eps=layer_norm_eps, **made)

        self.encoder = custom_encoder
        if custom_encoder is None:
            first = TransformerEncoderLayer(*places, **made)
            self.encoder = TransformerEncoder(first, num_encoder_layers, norm())
        self.decoder = custom_decoder
        if custom_decoder is None:
            second = TransformerDecoderLayer(*places, **made)
            self.decoder = TransformerDecoder(second, num_decoder_layers, norm())
        self._reset_parameters()
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first

    def _reset_parameters(self) -> None:
        for weight in self.parameters():
            if weight.ndim > 1:
                init.xavier_uniform_(weight)

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Result of the shape of `tgt`.

        Parameters
        ----------
        src, tgt
            Of shapes (length, batch, d_model), or (batch, length, d_model) if `batch_first`, or
            (length, d_model).
        src_mask, tgt_mask, memory_mask
            What sees what: in the source, in the target, and the target in the source.
        src_key_padding_mask, tgt_key_padding_mask, memory_key_padding_mask
            Which places nothing sees; of shape (batch, length).
        src_is_causal, tgt_is_causal, memory_is_causal
            Whether the mask is the causal one; if None, its elements decide.

        Raises
        ------
        RuntimeError
            If batches differ, or widths are not `d_model`.

        """
        batch = 0 if self.batch_first else 1
        if src.ndim == 3 and src.shape[batch] != tgt.shape[batch]:
            raise ShapeError(
                f"[Transformer] {src.shape[batch]} sources for {tgt.shape[batch]} targets; give as many"
            )
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise ShapeError(
                f"[Transformer] widths {src.shape[-1]} and {tgt.shape[-1]}; give {self.d_model}, its d_model"
            )
        memory = self.encoder(
            src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal
        )
        masks = {"tgt_mask": tgt_mask, "memory_mask": memory_mask}
        masks["tgt_key_padding_mask"] = tgt_key_padding_mask
        masks["memory_key_padding_mask"] = memory_key_padding_mask
        said = {"tgt_is_causal": tgt_is_causal, "memory_is_causal": memory_is_causal}
        return self.decoder(tgt, memory, **masks, **said)

    @staticmethod
    def generate_square_subsequent_mask(
        sz: int, device: Device | None = None, dtype: DTypeLike | None = None
    ) -> Tensor:
        """Causal mask of shape (sz, sz) that is added: 0 for places before and at a position, else -inf."""
        kind = native.default_float() if dtype is None else native.to_dtype(dtype)
        places = native.arange(sz)
        hidden = native.less(places[:, None], places)
        zero, low = native.asarray(0.0, kind), native.asarray(-math.inf, kind)
        return placed(native.where(hidden, low, zero), device)
