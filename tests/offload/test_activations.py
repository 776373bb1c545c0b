"""What autograd saves in a forward pass goes to the pool, and comes back as it was."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint

from accelera.offload.training.hooks import Recomputed, keep_blocks, recompute_blocks
from accelera.offload.training.saved_tensors import ForwardPass
from tests.offload.language_model import LanguageModel, language_model, loss_of
from tests.offload.pools import values
from tests.offload.simple_cache import SimpleCache
from tests.offload.taking import taken

ROWS = 64


class Net(nn.Module):
    """Three products of one input, and what they are put through."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.exp().clamp(max=3)
        query, key, value = (part(x) for part in self.parts)
        return F.relu(query * key).softmax(-1) @ value.t()


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def saved_activations(cache: SimpleCache) -> list[int]:
    gc.collect()
    return [block.nbytes for block in cache.made if block.role == "activation" and block.id in cache.bytes]


@pytest.fixture
def cache():
    return SimpleCache(least_bytes=512)


X = torch.randn(ROWS, 16, generator=torch.Generator().manual_seed(1))


def gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    model(x).pow(2).sum().backward()
    return [values(x.grad), *(values(parameter.grad) for parameter in model.parameters())]


@pytest.mark.parametrize("activations", ["offload", "auto", "keep"])
def test_gradients_are_equal_to_the_bit(cache, activations):
    expected = net()
    model = taken(expected, cache, activations)
    for one, other in zip(gradients(model, X), gradients(expected, X), strict=True):
        assert torch.equal(one, other)


def test_the_same_values_are_kept_once_and_let_go_after_the_backward_pass(cache):
    model = taken(net(), cache, "offload")
    loss = model(X.clone().requires_grad_()).sum()
    kept = saved_activations(cache)
    # exp, the clamp's bounds aside: exp(x) twice (as result and input), x of the products, query, key,
    # the relu's result, the softmax's result, value.
    assert kept.count(ROWS * 16 * 4) == len(kept) <= 7
    loss.backward()
    assert saved_activations(cache) == []


def test_nothing_is_kept_without_gradients(cache):
    model = taken(net(), cache, "offload")
    with torch.no_grad():
        model(X)
    assert not [block for block in cache.made if block.role == "activation"]


def test_a_graph_that_is_not_used_gives_its_blocks_back(cache):
    model = taken(net(), cache, "offload")
    result = model(X)
    assert saved_activations(cache)
    del result
    assert saved_activations(cache) == []


def test_a_graph_can_be_used_twice(cache):
    expected = net()
    model = taken(expected, cache, "offload")
    for each in (model, expected):
        loss = each(X).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(values(one.grad), values(other.grad))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[:, :9],
        lambda x: x[::2],
        lambda x: x.view(8, 8, 16).transpose(0, 1),
        lambda x: x[:1].expand(ROWS, 16),
        lambda x: x[0].sum(),
        lambda x: x.flip(0),
    ],
)
def test_saved_views_have_their_strides(cache, view):
    cache.least_bytes = 4
    x = X.clone()
    tensor = view(x)
    back = _through(cache, tensor)
    assert torch.equal(back, tensor)
    order = sorted(range(tensor.ndim), key=tensor.stride().__getitem__)
    assert order == sorted(range(back.ndim), key=back.stride().__getitem__)


def _through(cache: Any, tensor: torch.Tensor) -> torch.Tensor:
    with ForwardPass(cache, cache.scope):
        squared = tensor.clone().requires_grad_().expand(tensor.shape) * tensor
    return squared.grad_fn._saved_other


def test_weights_changed_in_place_before_the_backward_pass_are_detected(cache):
    model = taken(net(), cache, "offload")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(X).sum().backward()
    loss = model(X.clone().requires_grad_()).sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*is at version \d+; expected"):
        loss.backward()


def test_small_activations_changed_in_place_are_detected(cache):
    class Changing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.exp()
            z = y * 2
            y.add_(1)
            return z + y

    model = taken(Changing(), cache, "offload")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        model(X[:1].clone().requires_grad_()).sum().backward()


def test_values_are_those_at_the_time_of_saving(cache):
    class Changing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            squared = y * y
            y.relu_()
            return squared + y.sigmoid()

    x = X.clone().requires_grad_()
    taken(Changing(), cache, "offload")(x).sum().backward()
    double = (2 * X).relu().sigmoid()
    expected = 8 * X + 2 * (X > 0) * double * (1 - double)
    torch.testing.assert_close(x.grad, expected)


def test_checkpoints_of_the_user_work_inside(cache):
    class Checked(nn.Module):
        def __init__(self, reentrant: bool) -> None:
            super().__init__()
            self.net, self.reentrant = net(), reentrant

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.net, x.exp(), use_reentrant=self.reentrant)

    for reentrant in (False, True):
        expected = Checked(reentrant)
        model = taken(expected, cache, "offload")
        for one, other in zip(gradients(model, X), gradients(expected, X), strict=True):
            assert torch.equal(one, other)


def test_recompute_keeps_only_the_inputs_of_blocks():
    kept = {}
    for activations in ("offload", "recompute"):
        cache = SimpleCache(least_bytes=256)
        model = taken(language_model(words=100), cache, activations)
        loss = loss_of(model, torch.randint(0, 100, (2, 9)))
        kept[activations] = sum(saved_activations(cache))
        loss.backward()
        assert saved_activations(cache) == []
    assert kept["recompute"] < kept["offload"] / 5


def test_recompute_repeats_dropout(cache):
    expected = language_model(words=100)
    model = taken(expected, cache, "recompute")
    batch = torch.randint(0, 100, (2, 9))
    for each in (model, expected):
        torch.manual_seed(5)
        loss_of(each, batch).backward()
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(values(one.grad), values(other.grad))


def test_recompute_needs_repeated_blocks(cache):
    with pytest.raises(ValueError, match=r"recompute.*has no list of blocks"):
        taken(nn.Linear(16, 16), cache, "recompute")


def test_hooks_leave_with_the_offloading(cache):
    model = taken(language_model(words=100), cache, "recompute")
    assert all(isinstance(block.forward, Recomputed) for block in model.blocks)
    model.training_hooks.stop()
    assert not model._forward_pre_hooks
    assert not model._forward_hooks
    assert all("forward" not in block.__dict__ for block in model.blocks)


def test_an_error_in_the_forward_pass_ends_the_saving(cache):
    model = taken(net(), cache, "offload")
    with pytest.raises(RuntimeError):
        model(torch.ones(3, 5))
    x = X.clone().requires_grad_()
    x.exp()
    assert not [block for block in cache.made if block.role == "activation" and block.nbytes == X.nbytes]


def test_function_transforms_save_as_they_do(cache):
    expected = net()
    model = taken(expected, cache, "offload")

    def loss(weights: dict[str, torch.Tensor], module: nn.Module) -> torch.Tensor:
        return torch.func.functional_call(module, weights, (X,)).sum()

    found = torch.func.grad(loss)({name: values(one) for name, one in model.named_parameters()}, model)
    known = torch.func.grad(loss)(dict(expected.named_parameters()), expected)
    torch.testing.assert_close(found, {name: one.detach() for name, one in known.items()})


def test_blocks_get_back_the_forward_that_they_had():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    own = model[0].forward = lambda x: x
    keep_blocks(recompute_blocks(model))
    assert model[0].forward is own
    assert "forward" not in vars(model[1])


def test_models_with_recomputed_blocks_are_copied_with_their_own_blocks(cache):
    model = taken(language_model(words=100), cache, "recompute")
    twin = copy.deepcopy(model)
    assert isinstance(twin, LanguageModel)
    first: Any = twin.blocks[0]
    assert first.forward._forward.__self__ is first
