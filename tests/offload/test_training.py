"""An offloaded model learns what the same model learns in memory."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from accelera.errors import BudgetExceededError, UnknownNameError
from accelera.offload import OffloadedTensor
from accelera.offload.block_cache import BlockCache
from accelera.offload.blockwise.autograd import PartitionedTensor
from accelera.offload.config import OffloadConfig
from tests.offload.language_model import generate, language_model, loss_of, train
from tests.offload.pools import values
from tests.offload.simple_cache import SimpleCache
from tests.offload.taking import assert_same_weights, taken

PROMPT = torch.tensor([3, 1, 4, 1, 5])


@pytest.fixture
def caches():
    made = []

    def make(capacity_bytes: int, **options: Any) -> BlockCache:
        made.append(BlockCache(capacity_bytes, OffloadConfig(least_bytes=1024, **options)))
        return made[-1]

    yield make
    for cache in made:
        cache.close()


@pytest.mark.parametrize(("activations", "steps"), [("offload", 50), ("recompute", 8), ("keep", 8)])
def test_a_language_model_learns_the_same_to_the_bit(caches, activations, steps):
    expected = language_model()
    cache = caches(340 << 10, block_bytes=80 << 10)
    model = taken(expected, cache, activations)
    losses = train(model, steps)
    assert losses == train(expected, steps)
    assert losses[-1] < losses[0] - (1 if steps == 50 else 0)
    assert_same_weights(model, expected, rtol=0, atol=0)
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert generate(model, PROMPT, 12) == generate(expected, PROMPT, 12)
    assert cache.report().evictions > 100
    assert cache.report().peak_bytes <= 340 << 10


def test_embedding_and_last_layer_bigger_than_the_pool(caches):
    expected = language_model().double().eval()
    cache = caches(120 << 10, block_bytes=16 << 10)
    model = taken(expected, cache, "offload")
    assert expected.words.weight.nbytes > 120 << 10
    torch.testing.assert_close(train(model, 4), train(expected, 4))
    assert type(model.words.weight) is type(model.words.weight.grad) is PartitionedTensor
    assert_same_weights(model, expected, rtol=1e-6, atol=1e-8)
    assert generate(model, PROMPT, 3) == generate(expected, PROMPT, 3)
    assert cache.report().peak_bytes <= 120 << 10


@pytest.mark.parametrize("block_bytes", [1 << 20, 4096], ids=["whole", "parts"])
def test_gradients_against_float64(block_bytes):
    expected = language_model(words=100).eval()
    model = taken(expected, SimpleCache(block_bytes=block_bytes, least_bytes=1024), "offload")
    batch = torch.randint(0, 100, (2, 9), generator=torch.Generator().manual_seed(0))
    loss_of(model, batch).backward()
    loss_of(expected.double(), batch).backward()
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(values(one.grad).double(), other.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("block_bytes", [1 << 20, 4096], ids=["whole", "parts"])
def test_gradients_add_up_over_micro_batches(block_bytes):
    expected = language_model(words=100).double().eval()
    model = taken(expected, SimpleCache(block_bytes=block_bytes, least_bytes=1024))
    for each in (model, expected):
        for seed in range(3):
            batch = torch.randint(0, 100, (2, 9), generator=torch.Generator().manual_seed(seed))
            loss_of(each, batch).backward()
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(values(one.grad), other.grad)
        assert isinstance(one.grad, OffloadedTensor) == isinstance(one, OffloadedTensor)


def linear(outputs: int = 60, **options: Any) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(24, outputs, dtype=torch.float64, **options)


PARTS = {"block_bytes": 2048, "least_bytes": 1024}
X = torch.randn(5, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad(set_to_none):
    model = taken(linear(), SimpleCache(**PARTS))
    model(X).sum().backward()
    model.zero_grad(set_to_none=set_to_none)
    assert model.weight.grad is None if set_to_none else not values(model.weight.grad).any()


@pytest.mark.parametrize("clip", ["norm", "norm inf", "norm foreach", "value", "value foreach"])
def test_clipping(clip):
    expected = linear()
    model = taken(expected, SimpleCache(**PARTS))
    for each in (model, expected):
        each(X).pow(2).sum().backward()
        weights = each.parameters()
        if clip.startswith("value"):
            nn.utils.clip_grad_value_(weights, 0.1, foreach="foreach" in clip)
        else:
            nn.utils.clip_grad_norm_(
                weights, 0.5, float("inf") if "inf" in clip else 2.0, foreach="foreach" in clip
            )
    torch.testing.assert_close(values(model.weight.grad), expected.weight.grad)


def test_hooks_see_gradients():
    expected = linear()
    model = taken(expected, SimpleCache(**PARTS))
    seen = {}
    for name, each in (("offloaded", model), ("plain", expected)):
        each.weight.register_hook(lambda gradient: gradient * 2)
        each.weight.register_post_accumulate_grad_hook(
            lambda weight, name=name: seen.update({name: values(weight.grad)})
        )
        each(X).sum().backward()
    torch.testing.assert_close(seen["offloaded"], seen["plain"])


def test_frozen_weights_get_no_gradient_until_they_are_freed(caches):
    expected = nn.Sequential(linear(24), nn.ReLU(), linear(24))
    expected[0].requires_grad_(False)
    model = taken(expected, SimpleCache(least_bytes=1024))
    model(X).sum().backward()
    assert model[0].weight.grad is None
    assert isinstance(model[2].weight.grad, OffloadedTensor)
    model[0].weight.requires_grad_(True)
    model(X).sum().backward()
    assert isinstance(model[0].weight.grad, OffloadedTensor)


@pytest.mark.parametrize(
    "use", ["F.linear", "matmul", "einsum", "transposed", "sliced", "multihead", "squared"]
)
def test_weights_in_parts_used_in_many_ways_get_gradients_in_parts(use):
    uses = {
        "F.linear": lambda w: F.linear(X.view(1, 5, 24), w),
        "matmul": lambda w: X @ w.t(),
        "einsum": lambda w: torch.einsum("oi,bi->bo", w, X),
        "transposed": lambda w: w.t()[:, :50] * X.mean(),
        "sliced": lambda w: torch.cat([F.linear(X, part) for part in w.chunk(3)], 1),
        "multihead": lambda w: F.linear(X, w.view(2, 30, 24)[1]) + F.linear(X, w[:30]),
        "squared": lambda w: (w @ w.t()).tanh() + w.pow(2).sum(),
    }
    expected = linear()
    model = taken(expected, SimpleCache(**PARTS))
    for each in (model, expected):
        uses[use](each.weight).pow(2).sum().backward()
    assert type(model.weight.grad) is PartitionedTensor
    torch.testing.assert_close(values(model.weight.grad), expected.weight.grad)


def test_multihead_attention_in_parts():
    torch.manual_seed(0)
    expected = nn.MultiheadAttention(24, 4, batch_first=True, dtype=torch.float64)
    model = taken(expected, SimpleCache(**PARTS))
    results = []
    for each in (model, expected):
        x = X[None].clone().requires_grad_()
        mixed, weights = each(x, x, x)
        (mixed.sum() + weights.pow(2).sum()).backward()
        results.append([mixed, x.grad, values(each.in_proj_weight.grad)])
    assert type(model.in_proj_weight.grad) is PartitionedTensor
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("block_bytes", [1 << 20, 2048], ids=["whole", "parts"])
def test_second_gradients(block_bytes):
    expected = nn.Sequential(linear(40), nn.Tanh(), nn.Linear(40, 3, dtype=torch.float64))
    model = taken(expected, SimpleCache(block_bytes=block_bytes, least_bytes=1024), "offload")
    found = []
    for each in (model, expected):
        x = X.clone().requires_grad_()
        loss = each(x).pow(2).sum()
        weights = list(each.parameters())
        first = torch.autograd.grad(loss, [x, *weights], create_graph=True)
        total: Any = sum(one.pow(2).sum() for one in first)
        second = torch.autograd.grad(total, [x, *weights])
        found.append([values(one) for one in (*first, *second)])
    torch.testing.assert_close(*found)


def test_gradcheck():
    def function(x: torch.Tensor, weight: Any) -> torch.Tensor:
        return F.linear(x, weight).tanh()

    expected = linear(4)
    model = taken(expected, SimpleCache(block_bytes=256, least_bytes=64))
    x = X.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: function(x, model.weight), x)
    assert torch.autograd.gradgradcheck(lambda x: function(x, model.weight), x)


def test_autocast_trains_the_same():
    expected = language_model(words=100).eval()
    model = taken(expected, SimpleCache(least_bytes=1024), "offload")
    batch = torch.randint(0, 100, (2, 9), generator=torch.Generator().manual_seed(0))
    losses = []
    for each in (model, expected):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(each, batch)
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == losses[1]
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(values(one.grad), values(other.grad))


def test_blocks_of_gradients_and_activations_end(caches):
    cache = caches(1 << 20)
    model = taken(language_model(), cache, "offload")
    train(model, 2)
    held = len(cache._table.resident)
    train(model, 3)
    gc.collect()
    cache.report()
    assert len(cache._table.resident) <= held


def test_a_block_too_big_for_the_pool_names_the_numbers(caches):
    model = taken(linear(), caches(8 << 10, block_bytes=1 << 20))
    with pytest.raises(BudgetExceededError, match="KiB"):
        model(X)


def test_unknown_choice_of_activations():
    with pytest.raises(UnknownNameError, match="recompute"):
        taken(linear(), SimpleCache(), "recomput")
