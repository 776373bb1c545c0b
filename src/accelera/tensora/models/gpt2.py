"""GPT-2 (A. Radford et al., "Language models are unsupervised multitask learners", 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from accelera.errors import ArgumentError
from accelera.tensora import functional as F  # noqa: N812
from accelera.tensora.core import Tensor, native
from accelera.tensora.creation import arange
from accelera.tensora.inspection import placed
from accelera.tensora.models.language_model import CausalLanguageModel, CausalLanguageModelConfig, activation
from accelera.tensora.nn import init
from accelera.tensora.nn.containers import ModuleDict, ModuleList
from accelera.tensora.nn.dropout import Dropout
from accelera.tensora.nn.embedding import Embedding
from accelera.tensora.nn.grouped_attention import KeyValueCache, seen_keys
from accelera.tensora.nn.linear import Linear
from accelera.tensora.nn.module import Module
from accelera.tensora.nn.normalization import LayerNorm
from accelera.tensora.nn.parameter import Parameter
from accelera.tensora.typing import Device, DTypeLike

__all__ = ["GPT2", "GPT2Config"]


@dataclass(frozen=True)
class GPT2Config(CausalLanguageModelConfig):
    """Sizes of a GPT-2, by the names in its ``config.json``.

    Parameters
    ----------
    vocab_size, n_positions
        Number of tokens, and of positions.
    n_embd, n_layer, n_head
        Width, layers, and heads of each.
    n_inner
        Width inside the feed-forward networks; ``4 * n_embd`` if None.
    activation_function
        ``"gelu_new"``, ``"gelu"``, ``"relu"``, ``"silu"`` or ``"tanh"``.
    resid_pdrop, embd_pdrop, attn_pdrop
        Probabilities of dropout.
    layer_norm_epsilon, initializer_range
        What is added to variances, and the standard deviation of new weights.
    scale_attn_weights, scale_attn_by_inverse_layer_idx
        Whether scores are divided by the root of the heads' width, and by the number of the layer.
    tie_word_embeddings
        Whether `lm_head` has the weights of the embedding.

    """

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    tie_word_embeddings: bool = True

    def matrix_elements(self) -> int:
        """Return the number of elements of all weight matrices."""
        width, inner = self.n_embd, self.n_inner or 4 * self.n_embd
        embeddings = self.vocab_size * (1 if self.tie_word_embeddings else 2) + self.n_positions
        return width * (embeddings + self.n_layer * (4 * width + 2 * inner))


class _TransposedLinear(Module):
    """``input @ weight + bias``, with the weight as GPT-2's files have it: (in_features, out_features)."""

    def __init__(
        self, in_features: int, out_features: int, device: Device | None, dtype: DTypeLike | None
    ) -> None:
        super().__init__()
        kind = native.default_float() if dtype is None else native.to_dtype(dtype)
        self.weight = Parameter(placed(native.empty((in_features, out_features), kind), device))
        self.bias = Parameter(placed(native.full((out_features,), 0, kind), device))

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, native.permute(self.weight, (1, 0)), self.bias)


class _CausalAttention(Module):
    """Causal self-attention."""

    def __init__(
        self, config: GPT2Config, layer: int, device: Device | None, dtype: DTypeLike | None
    ) -> None:
        super().__init__()
        width = config.n_embd
        if width % config.n_head:
            raise ArgumentError(f"[GPT2] n_embd={width} for {config.n_head} heads; give a multiple of them")
        self.heads, self.dropout = config.n_head, config.attn_pdrop
        self.scale = 1 / math.sqrt(width // config.n_head) if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            self.scale /= layer + 1
        self.c_attn = _TransposedLinear(width, 3 * width, device, dtype)
        self.c_proj = _TransposedLinear(width, width, device, dtype)
        self.resid_dropout = Dropout(config.resid_pdrop)

    def forward(self, x: Tensor, padding: Tensor | None, cache: KeyValueCache | None) -> Tensor:
        batch, length, width = x.shape
        parts = native.reshape(self.c_attn(x), (batch, length, 3, self.heads, width // self.heads))
        parts = native.permute(parts, (2, 0, 3, 1, 4))
        q, k, v = parts[0], parts[1], parts[2]
        if cache is not None:
            k, v = cache.extend(k, v)
        mask, causal = seen_keys(q, k, padding, True)
        dropout = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, self.scale)
        out = native.reshape(native.permute(out, (0, 2, 1, 3)), (batch, length, width))
        return self.resid_dropout(self.c_proj(out))


class _GPT2FeedForward(Module):
    """Two linear maps with an activation in between."""

    def __init__(self, config: GPT2Config, device: Device | None, dtype: DTypeLike | None) -> None:
        super().__init__()
        inner = config.n_inner or 4 * config.n_embd
        self.c_fc = _TransposedLinear(config.n_embd, inner, device, dtype)
        self.c_proj = _TransposedLinear(inner, config.n_embd, device, dtype)
        activation(config.activation_function)  # an unknown name is refused here
        self.act = config.activation_function
        self.dropout = Dropout(config.resid_pdrop)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(activation(self.act)(self.c_fc(x))))


class _GPT2Block(Module):
    """Attention and feed-forward network, each after a normalization and with a shortcut."""

    def __init__(
        self, config: GPT2Config, layer: int, device: Device | None, dtype: DTypeLike | None
    ) -> None:
        super().__init__()
        norm: dict[str, Any] = {"eps": config.layer_norm_epsilon, "device": device, "dtype": dtype}
        self.ln_1 = LayerNorm(config.n_embd, **norm)
        self.attn = _CausalAttention(config, layer, device, dtype)
        self.ln_2 = LayerNorm(config.n_embd, **norm)
        self.mlp = _GPT2FeedForward(config, device, dtype)

    def forward(self, x: Tensor, padding: Tensor | None, cache: KeyValueCache | None) -> Tensor:
        x = x + self.attn(self.ln_1(x), padding, cache)
        return x + self.mlp(self.ln_2(x))


class GPT2(CausalLanguageModel):
    """GPT-2 with its head; parameters have the names of Hugging Face's `GPT2LMHeadModel`.

    Parameters
    ----------
    config
        Its sizes.
    device, dtype
        Of the weights.

    """

    config_class = GPT2Config
    prefix = "transformer."
    unused = (".attn.bias", ".attn.masked_bias")

    def __init__(
        self, config: GPT2Config, device: Device | None = None, dtype: DTypeLike | None = None
    ) -> None:
        super().__init__()
        self.config = config
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        blocks = [_GPT2Block(config, i, device, dtype) for i in range(config.n_layer)]
        parts: dict[str, Any] = {
            "wte": Embedding(config.vocab_size, config.n_embd, **made),
            "wpe": Embedding(config.n_positions, config.n_embd, **made),
            "drop": Dropout(config.embd_pdrop),
            "h": ModuleList(blocks),
            "ln_f": LayerNorm(config.n_embd, eps=config.layer_norm_epsilon, **made),
        }
        self.transformer = ModuleDict(parts)
        self.lm_head = Linear(config.n_embd, config.vocab_size, bias=False, **made)
        if config.tie_word_embeddings:
            self.lm_head.weight = parts["wte"].weight
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights as the paper does: normally, those before shortcuts smaller in deep networks."""
        std = self.config.initializer_range
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                deep = name.endswith("c_proj.weight")
                init.normal_(weight, 0.0, std / math.sqrt(2 * self.config.n_layer) if deep else std)

    @property
    def max_length(self) -> int:
        """Longest sequence that the model takes."""
        return self.config.n_positions

    @property
    def num_layers(self) -> int:
        """Number of layers, each with keys and values of its own."""
        return self.config.n_layer

    def _hidden(
        self, input_ids: Tensor, attention_mask: Tensor | None, caches: list[KeyValueCache] | None
    ) -> Tensor:
        parts, begin = self.transformer, caches[0].length if caches else 0
        positions = arange(begin, begin + input_ids.shape[1], device=input_ids.device)
        x = parts["drop"](parts["wte"](input_ids) + parts["wpe"](positions))
        for i, block in enumerate(parts["h"]):
            x = block(x, attention_mask, caches[i] if caches else None)
        return parts["ln_f"](x)
