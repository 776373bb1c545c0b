"""Every kind of module gives the same bits offloaded as in memory: forward and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from accelera.offload import OffloadedTensor
from tests.offload.pools import MAKERS, pair, same, values

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")


def _indices(*shape: int) -> torch.Tensor:
    return torch.randint(0, 50, shape)


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "linear": (lambda: nn.Linear(24, 40), lambda: (torch.randn(7, 24),)),
    "linear, 3 axes": (lambda: nn.Linear(24, 40), lambda: (torch.randn(3, 7, 24),)),
    "linear without bias": (lambda: nn.Linear(24, 40, bias=False), lambda: (torch.randn(3, 7, 24),)),
    "bilinear": (lambda: nn.Bilinear(8, 9, 10), lambda: (torch.randn(4, 8), torch.randn(4, 9))),
    "conv1d": (lambda: nn.Conv1d(6, 8, 3), lambda: (torch.randn(2, 6, 20),)),
    "conv2d": (lambda: nn.Conv2d(6, 8, 3, padding=1), lambda: (torch.randn(2, 6, 9, 9),)),
    "conv2d, groups": (lambda: nn.Conv2d(8, 8, 3, groups=4), lambda: (torch.randn(2, 8, 9, 9),)),
    "conv2d, channels last": (
        lambda: nn.Conv2d(6, 8, 3).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
        lambda: (torch.randn(2, 6, 9, 9).to(memory_format=torch.channels_last),),
    ),
    "conv transposed": (lambda: nn.ConvTranspose2d(6, 8, 3), lambda: (torch.randn(2, 6, 9, 9),)),
    "conv3d": (lambda: nn.Conv3d(2, 4, 2), lambda: (torch.randn(2, 2, 5, 5, 5),)),
    "embedding": (lambda: nn.Embedding(50, 12), lambda: (_indices(4, 5),)),
    "embedding with padding": (lambda: nn.Embedding(50, 12, padding_idx=3), lambda: (_indices(4, 5),)),
    "embedding bag": (lambda: nn.EmbeddingBag(50, 12, mode="sum"), lambda: (_indices(4, 5),)),
    "embedding, limited norm": (lambda: nn.Embedding(50, 12, max_norm=1.0), lambda: (_indices(4, 5),)),
    "layer norm": (lambda: nn.LayerNorm(48), lambda: (torch.randn(5, 48),)),
    "group norm": (lambda: nn.GroupNorm(4, 16), lambda: (torch.randn(2, 16, 5),)),
    "rms norm": (lambda: nn.RMSNorm(48), lambda: (torch.randn(5, 48),)),
    "batch norm": (lambda: nn.BatchNorm1d(32), lambda: (torch.randn(9, 32),)),
    "batch norm, evaluating": (lambda: nn.BatchNorm2d(32).eval(), lambda: (torch.randn(9, 32, 4, 4),)),
    "prelu": (lambda: nn.PReLU(32), lambda: (torch.randn(9, 32),)),
    "lstm": (lambda: nn.LSTM(12, 16, 2), lambda: (torch.randn(5, 3, 12),)),
    "lstm, both ways, projected": (
        lambda: nn.LSTM(12, 16, 2, bidirectional=True, proj_size=6, batch_first=True),
        lambda: (torch.randn(3, 5, 12),),
    ),
    "gru": (lambda: nn.GRU(12, 16, 2, bidirectional=True), lambda: (torch.randn(5, 3, 12),)),
    "rnn": (lambda: nn.RNN(12, 16), lambda: (torch.randn(5, 3, 12),)),
    "lstm cell": (lambda: nn.LSTMCell(12, 16), lambda: (torch.randn(3, 12),)),
    "attention": (
        lambda: nn.MultiheadAttention(16, 4, batch_first=True),
        lambda: tuple(torch.randn(3, 2, 5, 16)),
    ),
    "attention, other widths": (
        lambda: nn.MultiheadAttention(16, 4, kdim=12, vdim=10, add_bias_kv=True),
        lambda: (torch.randn(5, 2, 16), torch.randn(6, 2, 12), torch.randn(6, 2, 10)),
    ),
    "attention, evaluating": (
        lambda: nn.MultiheadAttention(16, 4, batch_first=True).eval(),
        lambda: (torch.randn(2, 5, 16),) * 3,
    ),
    "encoder layer": (
        lambda: nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True),
        lambda: (torch.randn(2, 5, 16),),
    ),
    "encoder, evaluating": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2).eval(),
        lambda: (torch.randn(2, 5, 16),),
    ),
    "transformer": (
        lambda: nn.Transformer(16, 4, 2, 2, 32, dropout=0.0, batch_first=True),
        lambda: (torch.randn(2, 5, 16), torch.randn(2, 4, 16)),
    ),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.5), nn.Linear(32, 8)),
        lambda: (torch.randn(4, 16),),
    ),
    "adaptive softmax": (
        lambda: nn.AdaptiveLogSoftmaxWithLoss(16, 50, [10, 20]),
        lambda: (torch.randn(6, 16), _indices(6)),
    ),
    "weight norm": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(16, 32)),
        lambda: (torch.randn(4, 16),),
    ),
    "spectral norm": (
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(16, 32)),
        lambda: (torch.randn(4, 16),),
    ),
    "orthogonal": (
        lambda: nn.utils.parametrizations.orthogonal(nn.Linear(16, 16)),
        lambda: (torch.randn(4, 16),),
    ),
}


def _sum(result: Any) -> torch.Tensor:
    """Return one number that depends on every floating-point tensor of a result."""
    if isinstance(result, torch.Tensor):
        return (result * torch.linspace(0.5, 2, result.numel()).view(result.shape)).sum()
    return sum((_sum(each) for each in result if each is not None), torch.zeros(()))


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("name", MODULES)
def test_forward_and_gradients(name: str, maker: str) -> None:
    torch.manual_seed(0)
    make, inputs = MODULES[name]
    plain, other = pair(make(), maker)
    assert any(isinstance(each, OffloadedTensor) for each in other.parameters())
    given = inputs()
    results = []
    for model in (plain, other):
        torch.manual_seed(1)
        result = model(*given)
        _sum(result).backward()
        results.append(result)
    assert same(*results)
    for (key, one), each in zip(plain.named_parameters(), other.parameters(), strict=True):
        assert (one.grad is None) == (each.grad is None), key
        assert one.grad is None or torch.equal(one.grad, values(each.grad)), key
    assert all(torch.equal(a, values(b)) for a, b in zip(plain.buffers(), other.buffers(), strict=True))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", MODULES)
def test_inference(name: str, mode: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    make, inputs = MODULES[name]
    plain, other = pair(make().eval())
    given = inputs()
    with mode():
        for _ in range(2):
            assert same(plain(*given), other(*given))
