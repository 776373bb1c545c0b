"""Llama (H. Touvron et al., "LLaMA: open and efficient foundation language models", 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accelera.tensora.core import Tensor
from accelera.tensora.creation import arange
from accelera.tensora.models.language_model import CausalLanguageModel, CausalLanguageModelConfig, activation
from accelera.tensora.nn import init
from accelera.tensora.nn.containers import ModuleDict, ModuleList
from accelera.tensora.nn.embedding import Embedding
from accelera.tensora.nn.grouped_attention import GroupedQueryAttention, KeyValueCache, RotaryEmbedding
from accelera.tensora.nn.linear import Linear
from accelera.tensora.nn.module import Module
from accelera.tensora.nn.normalization import RMSNorm
from accelera.tensora.typing import Device, DTypeLike

__all__ = ["Llama", "LlamaConfig"]


@dataclass(frozen=True)
class LlamaConfig(CausalLanguageModelConfig):
    """Sizes of a Llama, by the names in its ``config.json``.

    Parameters
    ----------
    vocab_size, max_position_embeddings
        Number of tokens, and of positions.
    hidden_size, intermediate_size
        Width, and that inside the feed-forward networks.
    num_hidden_layers, num_attention_heads
        Layers, and heads of queries in each.
    num_key_value_heads, head_dim
        Heads of keys and values, as many as of queries if None; and their width, ``hidden_size`` divided by
        the heads if None.
    hidden_act
        ``"silu"``, or another activation.
    rms_norm_eps, initializer_range
        What is added to mean squares, and the standard deviation of new weights.
    rope_theta, rope_scaling
        Base and scaling of `RotaryEmbedding`.
    attention_bias, mlp_bias
        Whether the linear maps have biases.
    attention_dropout
        Probability with which a weight of attention becomes 0, while training.
    tie_word_embeddings
        Whether `lm_head` has the weights of the embedding.

    """

    vocab_size: int = 32000
    max_position_embeddings: int = 2048
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    initializer_range: float = 0.02
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    attention_dropout: float = 0.0
    tie_word_embeddings: bool = False

    def matrix_elements(self) -> int:
        """Return the number of elements of all weight matrices."""
        head = self.head_dim or self.hidden_size // self.num_attention_heads
        queries = head * self.num_attention_heads
        keys = head * (self.num_key_value_heads or self.num_attention_heads)
        layer = 2 * queries + 2 * keys + 3 * self.intermediate_size
        embeddings = self.vocab_size * (1 if self.tie_word_embeddings else 2)
        return self.hidden_size * (embeddings + self.num_hidden_layers * layer)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """Configuration from the entries of a ``config.json``; newer ones have all of rotation together."""
        value: object = config
        rotation = value.get("rope_parameters") if isinstance(value, Mapping) else None
        if not isinstance(rotation, Mapping) or not rotation:
            return super().from_dict(config)
        theta = rotation.get("rope_theta", cls.rope_theta)
        return super().from_dict({**config, "rope_theta": theta, "rope_scaling": rotation})


class _GatedFeedForward(Module):
    """Gated linear unit (N. Shazeer, "GLU variants improve Transformer", 2020)."""

    def __init__(self, config: LlamaConfig, made: dict[str, Any]) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = Linear(width, inner, bias=config.mlp_bias, **made)
        self.up_proj = Linear(width, inner, bias=config.mlp_bias, **made)
        self.down_proj = Linear(inner, width, bias=config.mlp_bias, **made)
        activation(config.hidden_act)  # an unknown name is refused here
        self.act = config.hidden_act

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(activation(self.act)(self.gate_proj(x)) * self.up_proj(x))


class _LlamaLayer(Module):
    """Attention and feed-forward network, each after a normalization and with a shortcut."""

    def __init__(self, config: LlamaConfig, made: dict[str, Any]) -> None:
        super().__init__()
        self.self_attn = GroupedQueryAttention(
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads or config.num_attention_heads,
            config.head_dim,
            dropout=config.attention_dropout,
            bias=config.attention_bias,
            **made,
        )
        self.mlp = _GatedFeedForward(config, made)
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps, **made)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps, **made)

    def forward(
        self, x: Tensor, padding: Tensor | None, cache: KeyValueCache | None, rotation: tuple[Any, Any]
    ) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), padding, True, cache, rotation)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(CausalLanguageModel):
    """Llama with its head; parameters have the names of Hugging Face's `LlamaForCausalLM`.

    Parameters
    ----------
    config
        Its sizes.
    device, dtype
        Of the weights.

    """

    config_class = LlamaConfig
    prefix = "model."
    unused = (".rotary_emb.inv_freq",)

    def __init__(
        self, config: LlamaConfig, device: Device | None = None, dtype: DTypeLike | None = None
    ) -> None:
        super().__init__()
        self.config = config
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        layers = [_LlamaLayer(config, made) for _ in range(config.num_hidden_layers)]
        parts: dict[str, Any] = {
            "embed_tokens": Embedding(config.vocab_size, config.hidden_size, **made),
            "layers": ModuleList(layers),
            "norm": RMSNorm(config.hidden_size, eps=config.rms_norm_eps, **made),
        }
        self.model = ModuleDict(parts)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False, **made)
        if config.tie_word_embeddings:
            self.lm_head.weight = parts["embed_tokens"].weight
        head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
        self.rotary = RotaryEmbedding(head_dim, config.rope_theta, config.rope_scaling)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all matrices normally, and set biases to 0."""
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                init.normal_(weight, 0.0, self.config.initializer_range)
            elif name.endswith(".bias"):
                init.zeros_(weight)

    @property
    def max_length(self) -> int:
        """Longest sequence that the model takes."""
        return self.config.max_position_embeddings

    @property
    def num_layers(self) -> int:
        """Number of layers, each with keys and values of its own."""
        return self.config.num_hidden_layers

    def _hidden(
        self, input_ids: Tensor, attention_mask: Tensor | None, caches: list[KeyValueCache] | None
    ) -> Tensor:
        parts, begin = self.model, caches[0].length if caches else 0
        x = parts["embed_tokens"](input_ids)
        positions = arange(begin, begin + input_ids.shape[1], device=input_ids.device)
        rotation = self.rotary(positions, x.dtype)
        for i, layer in enumerate(parts["layers"]):
            x = layer(x, attention_mask, caches[i] if caches else None, rotation)
        return parts["norm"](x)
