"""The fast path of multi-head attention: PyTorch's values, its scores bounded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from accelera.errors import BudgetExceededError
from accelera.interceptor import intercepted
from accelera.interceptor.hooks import dispatch
from tests.interceptor.forcing import counted, forced
from tests.interceptor.taking import taken

OP = "_native_multi_head_attention"
BATCH, ROWS, WIDTH, HEADS = 3, 20, 16, 4
TILE_BYTES = 1024
"""Still many pieces for a call, and several times fewer products than with the smallest tiles."""


def masks() -> dict[str, dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(2)
    padding = torch.zeros(BATCH, ROWS, dtype=torch.bool)
    padding[0, 13:] = padding[1, 1:] = True
    causal = torch.ones(ROWS, ROWS, dtype=torch.bool).triu(1)
    each = torch.rand(BATCH * HEADS, ROWS, ROWS, generator=generator) < 0.5
    blind = padding.clone()
    blind[2] = True
    return {
        "none": {},
        "padding": {"key_padding_mask": padding},
        "causal": {"attn_mask": causal},
        "both": {"key_padding_mask": padding, "attn_mask": causal},
        "one per head": {"attn_mask": each},
        "blind rows": {"key_padding_mask": blind},
        "blind rows, both": {"key_padding_mask": blind, "attn_mask": causal},
    }


def module(dtype: torch.dtype = torch.float32) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    return nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=dtype).eval()


def results(layer: nn.MultiheadAttention, x: torch.Tensor, **how: Any) -> tuple[Any, Any]:
    with torch.inference_mode():
        out, weights = layer(x, x, x, **how)
    return out, weights


@pytest.mark.parametrize("weights", ["none", "mean", "each"])
@pytest.mark.parametrize("mask", masks())
@pytest.mark.parametrize("route", ["chunked", "spilled"])
def test_values(route: Any, mask: str, weights: str) -> None:
    layer, x = module(), torch.randn(BATCH, ROWS, WIDTH)
    how = {"need_weights": weights != "none", "average_attn_weights": weights == "mean", **masks()[mask]}
    expected = results(layer, x, **how)
    with counted() as seen, forced(route, TILE_BYTES):
        found = results(layer, x, **how)
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert getattr(seen[0].by_op[OP], route) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_types(dtype: torch.dtype) -> None:
    layer, x = module(dtype), torch.randn(BATCH, ROWS, WIDTH, dtype=dtype)
    how = {"average_attn_weights": False, **masks()["both"]}
    torchs = results(layer, x, **how)
    with forced("chunked", TILE_BYTES):
        found = results(layer, x, **how)
    assert [each.dtype for each in found] == [dtype, dtype]
    exact = results(layer.double(), x.double(), **how)
    for ours, theirs, true in zip(found, torchs, exact, strict=True):
        allowed = 1.5 * (theirs - true).abs().max() + torch.finfo(dtype).eps
        assert (ours - true).abs().max() <= allowed


def test_query_key_and_value_of_their_own(each_tier: str) -> None:
    layer = module()
    tensors: Any = [torch.randn(BATCH, ROWS, WIDTH) for _ in range(3)]
    weights: Any = (layer.in_proj_weight, layer.in_proj_bias, layer.out_proj.weight, layer.out_proj.bias)

    def call() -> Any:
        with torch.inference_mode():
            return torch._native_multi_head_attention(*(*tensors, WIDTH, HEADS, *weights))

    expected = call()
    with counted() as seen, forced("chunked", TILE_BYTES):
        found = call()
    torch.testing.assert_close(found, expected)
    assert seen[0].by_op[OP].chunked == 1


@pytest.mark.parametrize("mask", ["none", "padding", "both"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_the_layer_of_an_encoder(norm_first: bool, mask: str) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True, norm_first=norm_first).eval()
    names = {"key_padding_mask": "src_key_padding_mask", "attn_mask": "src_mask"}
    how = {names[name]: each for name, each in masks()[mask].items()}
    x = torch.randn(BATCH, ROWS, WIDTH)
    with torch.inference_mode():
        expected = layer(x, **how)
        with counted() as seen, forced("chunked", TILE_BYTES):
            found = layer(x, **how)
    torch.testing.assert_close(found, expected)
    assert seen[0].by_op[OP].chunked == 1


def test_what_fits_is_torchs_own() -> None:
    layer, x = module(), torch.randn(BATCH, ROWS, WIDTH)
    expected = results(layer, x)
    with counted() as seen, intercepted("64MiB", 0, 0):
        found = results(layer, x)
    assert all(map(torch.equal, found, expected))
    assert seen[0].by_op[OP].direct == 1


def test_what_is_too_small_is_not_counted() -> None:
    layer, x = module(), torch.randn(BATCH, ROWS, WIDTH)
    scores_bytes = BATCH * HEADS * ROWS * ROWS * 4
    with counted() as seen, intercepted("64MiB", 0, 2 * scores_bytes + 30_000):
        results(layer, x)
    assert OP not in seen[0].by_op


@pytest.mark.parametrize(
    "change",
    [
        {"num_head": 3},
        {"embed_dim": 15},
        {"key": torch.ones(BATCH, ROWS + 1, WIDTH)},
        {"qkv_bias": torch.ones(4)},
        {"mask": torch.ones(2, 2, dtype=torch.bool), "mask_type": 0},
        {"mask": torch.ones(ROWS, ROWS, dtype=torch.bool)},
    ],
)
def test_what_torch_refuses_it_refuses_itself(change: dict[str, Any]) -> None:
    layer, x = module(), torch.randn(BATCH, ROWS, WIDTH)
    given: dict[str, Any] = {
        **dict.fromkeys(("query", "key", "value"), x),
        "embed_dim": WIDTH,
        "num_head": HEADS,
        "qkv_weight": layer.in_proj_weight,
        "qkv_bias": layer.in_proj_bias,
        "proj_weight": layer.out_proj.weight,
        "proj_bias": layer.out_proj.bias,
        **change,
    }

    def raised() -> str:
        with torch.inference_mode(), pytest.raises(RuntimeError) as error:
            torch._native_multi_head_attention(**given)
        return str(error.value)

    expected = raised()
    with forced("chunked", TILE_BYTES):
        assert raised() == expected


def test_a_row_beyond_the_budget_is_refused() -> None:
    layer, x = module(), torch.randn(1, 500, WIDTH)
    with intercepted(3000, 0, 0), counted() as seen, pytest.raises(BudgetExceededError):
        results(layer, x)
    assert seen[0].by_op[OP].refused == 1


@pytest.mark.parametrize(
    ("mask", "need_weights"),
    [("None", False), ("torch.arange(n).expand(2, n) > n - 9", False), ("None", True)],
)
def test_peak_stays_within_the_budget(mask: str, need_weights: bool) -> None:
    setting = (
        "n = 2048 // shrink; x = randn(2, n, 64)\n"
        "layer = torch.nn.MultiheadAttention(64, 8, batch_first=True).eval()\n"
        f"padding = {mask}"
    )
    call = (
        "with torch.inference_mode():\n"
        f"    out = layer(x, x, x, key_padding_mask=padding, need_weights={need_weights})"
    )
    ours = taken(setting, call, "56MiB")
    assert ours["chunked"]
    weights_bytes, scores_bytes = need_weights * 2 * 2048**2 * 4, 2 * 8 * 2048**2 * 4
    assert weights_bytes < 56 << 20
    assert ours["peak"] <= 56 << 20 < scores_bytes


def test_memory_that_runs_out_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = module(), torch.randn(BATCH, ROWS, WIDTH)
    expected = results(layer, x)

    def called(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with intercepted("64MiB", 0, 0), counted() as seen:
        monkeypatch.setitem(dispatch.replaced, OP, called)
        found = results(layer, x)
    torch.testing.assert_close(found, expected)
    assert seen[0].by_op[OP].fallbacks == {"in pieces after running out of memory": 1}
