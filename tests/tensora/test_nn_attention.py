"""Attention and transformers: results, weights and gradients as PyTorch's, and what they refuse."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import accelera.tensora as ts
from accelera.tensora import functional as F  # noqa: N812
from accelera.tensora import nn
from tests.tensora.module_twins import (
    assert_close,
    assert_samples,
    assert_twins,
    copy_state,
    translated,
    twins,
)

RANDOM = np.random.default_rng(0)
CAUSAL = torch.nn.Transformer.generate_square_subsequent_mask


def normal(*shape: int) -> Any:
    return torch.tensor(RANDOM.normal(size=shape), requires_grad=True)


def masks(queries: int, keys: int, batch: int) -> Any:
    """A mask and one of padding that leave every query something to see."""
    mask = torch.tensor(RANDOM.random((queries, keys)) < 0.4)
    padding = torch.tensor(RANDOM.random((batch, keys)) < 0.4)
    mask[:, 0], padding[:, 0] = False, False
    return mask, padding


# --- attention of several heads ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("MultiheadAttention", 64),
        ("TransformerEncoderLayer", 35),
        ("TransformerDecoderLayer", 67),
        ("Transformer", 64),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_pytorchs_own_samples_agree(name: str, least: int) -> None:
    assert assert_samples(name) >= least


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("extra", [{}, {"add_bias_kv": True}, {"add_zero_attn": True}])
@pytest.mark.parametrize("widths", [{}, {"kdim": 5, "vdim": 3}])
@pytest.mark.parametrize("batch_first", [False, True])
def test_attention_between_sequences_agrees(
    need_weights: bool, extra: dict[str, Any], widths: dict[str, int], batch_first: bool
) -> None:
    ours, theirs = twins("MultiheadAttention", 8, 2, batch_first=batch_first, **extra, **widths)

    def made(length: int, width: int) -> Any:
        return normal(3, length, width) if batch_first else normal(length, 3, width)

    given = made(4, 8), made(5, widths.get("kdim", 8)), made(5, widths.get("vdim", 8))
    mask, padding = masks(4, 5, 3)
    options = {"need_weights": need_weights, "average_attn_weights": batch_first}
    assert_twins(ours, theirs, *given, attn_mask=mask, key_padding_mask=padding, **options)


def test_masks_of_numbers_and_of_each_head_agree() -> None:
    ours, theirs = twins("MultiheadAttention", 8, 2)
    given = normal(4, 3, 8), normal(5, 3, 8), normal(5, 3, 8)
    for need_weights in (True, False):
        assert_twins(ours, theirs, *given, attn_mask=normal(6, 4, 5), need_weights=need_weights)
        options = {"key_padding_mask": normal(3, 5).detach(), "need_weights": need_weights}
        assert_twins(ours, theirs, *given, attn_mask=normal(4, 5).detach(), **options)


@pytest.mark.parametrize("extra", [{}, {"add_bias_kv": True}])
@pytest.mark.parametrize("need_weights", [False, True])
def test_a_causal_mask_that_is_said_to_be_one_is_it(extra: dict[str, Any], need_weights: bool) -> None:
    ours, _ = twins("MultiheadAttention", 8, 2, **extra)
    x = translated(normal(5, 3, 8))
    mask = translated(CAUSAL(5, dtype=torch.float64))
    wanted = ours(x, x, x, attn_mask=mask, need_weights=need_weights)
    found = ours(x, x, x, attn_mask=mask, need_weights=need_weights, is_causal=True)
    assert_close([each for each in found if each is not None], [each for each in wanted if each is not None])


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_query_that_sees_nothing_gets_zeros(need_weights: bool) -> None:
    ours, _ = twins("MultiheadAttention", 8, 2, bias=False)
    x = translated(normal(5, 3, 8))
    padding = np.zeros((3, 5), dtype=bool)
    padding[1] = True
    out = ours(x, x, x, key_padding_mask=ts.asarray(padding), need_weights=need_weights)[0]
    assert not out[:, 1].detach().numpy().any()
    out.sum().backward()
    assert np.isfinite(x.grad.numpy()).all()


def test_dropout_is_on_weights_and_only_while_training() -> None:
    ours, theirs = twins("MultiheadAttention", 8, 2, dropout=0.5)
    x = normal(5, 3, 8)
    assert_twins(ours.eval(), theirs.eval(), x, x, x)
    ours.train()
    mine = translated(x)
    weights = ours(mine, mine, mine, average_attn_weights=False)[1].detach().numpy()
    assert 0.3 < (weights == 0).mean() < 0.7
    assert not np.allclose(
        ours(mine, mine, mine, need_weights=False)[0].detach().numpy(), theirs(x, x, x)[0].detach().numpy()
    )


def test_what_attention_does_not_take_is_refused() -> None:
    with pytest.raises(ValueError, match="give a multiple"):
        nn.MultiheadAttention(8, 3)
    attention, x = nn.MultiheadAttention(8, 2), ts.ones((5, 3, 8))
    with pytest.raises(ValueError, match="do not fit; give widths 8, 8, 8"):
        attention(x, x, ts.ones((5, 3, 7)))
    with pytest.raises(ValueError, match="as many keys as values"):
        attention(x, x, ts.ones((4, 3, 8)))
    with pytest.raises(ValueError, match=r"give \(5, 5\) or \(6, 5, 5\)"):
        attention(x, x, x, attn_mask=ts.ones((4, 5)))
    with pytest.raises(ValueError, match=r"give \(3, 5\)"):
        attention(x, x, x, key_padding_mask=ts.ones((5, 3)))
    with pytest.raises(ValueError, match="is_causal=True without attn_mask"):
        attention(x, x, x, is_causal=True)


# --- keys and values shared by heads ----------------------------------------------------------------------


def repeated(attention: Any) -> Any:
    """PyTorch's attention with the heads of keys and values repeated."""
    wide, groups = attention.embed_dim, attention.num_heads // attention.num_kv_heads
    theirs = torch.nn.MultiheadAttention(wide, attention.num_heads, batch_first=True, dtype=torch.float64)

    def rows(layer: Any) -> Any:
        weight = layer.weight.detach().numpy().reshape(-1, attention.head_dim, wide)
        return np.repeat(
            weight, attention.num_heads * attention.head_dim // layer.weight.shape[0], 0
        ).reshape(-1, wide)

    assert groups > 1
    state = {
        "in_proj_weight": np.concatenate(
            [rows(attention.q_proj), rows(attention.k_proj), rows(attention.v_proj)]
        ),
        "in_proj_bias": np.zeros(3 * wide),
        "out_proj.weight": attention.o_proj.weight.detach().numpy(),
        "out_proj.bias": np.zeros(wide),
    }
    theirs.load_state_dict({name: torch.tensor(x) for name, x in state.items()})
    return theirs


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_shared_heads_are_repeated_heads(causal: bool, padded: bool) -> None:
    ours = nn.GroupedQueryAttention(12, 4, 2, dtype="float64")
    x = normal(3, 5, 12)
    mine = translated(x)
    _, padding = masks(5, 5, 3)
    masked = {"key_padding_mask": padding} if padded else {}
    out = ours(mine, is_causal=causal, **translated(masked))
    mask = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1) if causal else None
    wanted = repeated(ours)(x, x, x, attn_mask=mask, **masked)[0]
    assert_close(out, wanted)
    out.sum().backward()
    wanted.sum().backward()
    assert_close(mine.grad, x.grad)


@pytest.mark.parametrize("rotary", [None, nn.RotaryEmbedding(4)])
@pytest.mark.parametrize("parts", [[1] * 7, [3, 1, 3], [4, 3]])
@pytest.mark.parametrize("padded", [False, True])
def test_a_cache_gives_what_the_whole_gives(rotary: Any, parts: list[int], padded: bool) -> None:
    attention = nn.GroupedQueryAttention(12, 3, 1, head_dim=4, rotary=rotary, dtype="float64")
    x = translated(normal(2, 7, 12).detach())
    padding = translated(masks(7, 7, 2)[1]) if padded else None
    whole = attention(x, padding, is_causal=True)
    cache, begin, found = nn.KeyValueCache(), 0, []
    for n in parts:
        seen = None if padding is None else padding[:, : begin + n]
        found.append(attention(x[:, begin : begin + n], seen, is_causal=True, cache=cache))
        begin += n
    assert cache.length == 7
    assert_close(ts.concat(found, axis=1), whole)


def test_rotation_depends_on_distance_alone() -> None:
    rotary = nn.RotaryEmbedding(6, base=100.0)
    attention = nn.GroupedQueryAttention(12, 2, 1, rotary=rotary, dtype="float64")
    x = translated(normal(1, 5, 12))
    moved = rotary(ts.arange(40, 45), ts.float64)
    assert_close(attention(x, is_causal=True, rotation=moved), attention(x, is_causal=True))
    other = rotary(ts.arange(0, 10, 2), ts.float64)
    assert not np.allclose(attention(x, rotation=other).detach().numpy(), attention(x).detach().numpy())


def test_what_shared_heads_do_not_take_is_refused() -> None:
    with pytest.raises(ValueError, match="give a multiple of num_kv_heads"):
        nn.GroupedQueryAttention(12, 4, 3)
    with pytest.raises(ValueError, match="head_dim=5"):
        nn.RotaryEmbedding(5)
    attention = nn.GroupedQueryAttention(12, 4, 2)
    with pytest.raises(ValueError, match=r"give \(batch, length, 12\)"):
        attention(ts.ones((5, 12)))
    with pytest.raises(ValueError, match=r"give \(2, 5\)"):
        attention(ts.ones((2, 5, 12)), ts.ones((2, 4), dtype="bool"))


# --- transformers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_stacks_agree(norm_first: bool, norm: bool) -> None:
    options = {"dim_feedforward": 12, "dropout": 0.0, "norm_first": norm_first, "activation": "gelu"}
    layers = [twins(f"Transformer{kind}Layer", 8, 2, **options) for kind in ("Encoder", "Decoder")]
    norms = twins("LayerNorm", 8) if norm else (None, None)
    encoders, decoders = [], []
    for library, place in ((nn, 0), (torch.nn, 1)):
        encoders.append(library.TransformerEncoder(layers[0][place], 2, norms[place]))
        decoders.append(library.TransformerDecoder(layers[1][place], 2, norms[place]))
    mask, padding = masks(5, 5, 3)
    assert_twins(*encoders, normal(5, 3, 8), mask=mask, src_key_padding_mask=padding)
    assert_twins(*encoders, normal(5, 3, 8), mask=CAUSAL(5, dtype=torch.float64))
    causal = {"tgt_mask": CAUSAL(5, dtype=torch.float64), "memory_key_padding_mask": masks(5, 4, 3)[1]}
    assert_twins(*decoders, normal(5, 3, 8), normal(4, 3, 8), **causal)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_whole_transformer_agrees() -> None:
    sizes = {
        "d_model": 8,
        "nhead": 2,
        "num_encoder_layers": 2,
        "num_decoder_layers": 1,
        "dim_feedforward": 12,
    }
    ours, theirs = twins("Transformer", **sizes, dropout=0.0, batch_first=True)
    mask, padding = masks(4, 4, 3)
    options = {"src_mask": mask, "tgt_mask": CAUSAL(5, dtype=torch.float64), "src_key_padding_mask": padding}
    assert_twins(ours, theirs, normal(3, 4, 8), normal(3, 5, 8), memory_key_padding_mask=padding, **options)


def test_the_causal_mask_is_pytorchs_and_is_recognized() -> None:
    for n in (1, 4):
        ours = nn.Transformer.generate_square_subsequent_mask(n)
        assert ours.dtype == ts.float32
        assert_close(ours, CAUSAL(n), 0)
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, dtype="float64")
    encoder = nn.TransformerEncoder(layer, 2)
    x = translated(normal(4, 3, 8))
    mask = nn.Transformer.generate_square_subsequent_mask(4, dtype="float64")
    wanted = encoder(x, mask=mask, is_causal=False)
    for same in (mask, ts.isinf(mask)):
        assert_close(encoder(x, mask=same), wanted)
    full = encoder(x, mask=ts.zeros((4, 4), dtype="float64"))
    assert_close(full, encoder(x))
    assert not np.allclose(full.detach().numpy(), wanted.detach().numpy())


@pytest.mark.parametrize("activation", ["relu", F.relu, F.gelu, F.tanh])
def test_transformers_are_copied_and_pickled(activation: Any) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, activation=activation)
    x = ts.ones((4, 1, 8))
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert_close(twin(x), layer(x), 0)
    stack = nn.TransformerEncoder(layer, 2)
    first, second = (dict(each.named_parameters()) for each in stack.layers)
    assert all(first[name] is not second[name] for name in first)


def test_dropout_in_transformers_is_only_while_training() -> None:
    ts.random.manual_seed(0)
    layer, theirs = twins("TransformerDecoderLayer", 8, 2, 12, dropout=0.5)
    x, memory = normal(4, 1, 8), normal(3, 1, 8)
    copy_state(theirs, layer)
    assert_twins(layer.eval(), theirs.eval(), x, memory)
    mine = translated(x), translated(memory)
    evaluated = layer(*mine).detach().numpy()
    assert not np.allclose(layer.train()(*mine).detach().numpy(), evaluated)


def test_what_transformers_do_not_take_is_refused() -> None:
    model = nn.Transformer(8, 2, 1, 1, 12)
    with pytest.raises(RuntimeError, match="2 sources for 3 targets"):
        model(ts.ones((4, 2, 8)), ts.ones((4, 3, 8)))
    with pytest.raises(RuntimeError, match="widths 7 and 8"):
        model(ts.ones((4, 3, 7)), ts.ones((4, 3, 8)))
    with pytest.raises(ValueError, match="activation='swish'"):
        nn.TransformerEncoderLayer(8, 2, activation="swish")
