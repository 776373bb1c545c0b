"""Every optimizer of torch.optim on offloaded weights, against the same one on ordinary weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn, optim

from accelera.offload import OffloadedTensor
from accelera.offload.blockwise.autograd import PartitionedTensor
from tests.offload.pools import values
from tests.offload.simple_cache import SimpleCache
from tests.offload.taking import assert_same_weights, taken

Make = Callable[[Any], optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda weights: optim.SGD(weights, 0.1),
    "SGD with momentum": lambda weights: optim.SGD(
        weights, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1
    ),
    "Adam": lambda weights: optim.Adam(weights, 0.01, amsgrad=True),
    "AdamW": lambda weights: optim.AdamW(weights, 0.01),
    "Adamax": lambda weights: optim.Adamax(weights, 0.01),
    "Adadelta": lambda weights: optim.Adadelta(weights),
    "Adagrad": lambda weights: optim.Adagrad(weights, 0.01),
    "Adafactor": lambda weights: optim.Adafactor(weights, 0.01),
    "NAdam": lambda weights: optim.NAdam(weights, 0.01),
    "RAdam": lambda weights: optim.RAdam(weights, 0.01),
    "RMSprop": lambda weights: optim.RMSprop(weights, 0.01, momentum=0.9, centered=True),
    "Rprop": lambda weights: optim.Rprop(weights, 0.01),
    "ASGD": lambda weights: optim.ASGD(weights, 0.01),
    "AdamW maximize": lambda weights: optim.AdamW(weights, 0.01, maximize=True),
    "AdamW foreach": lambda weights: optim.AdamW(weights, 0.01, foreach=True),
    "SGD foreach": lambda weights: optim.SGD(weights, 0.01, momentum=0.9, foreach=True),
    "RMSprop foreach": lambda weights: optim.RMSprop(weights, 0.01, foreach=True),
    "Adagrad foreach": lambda weights: optim.Adagrad(weights, 0.01, foreach=True),
    "NAdam foreach": lambda weights: optim.NAdam(weights, 0.01, foreach=True),
    "Rprop foreach": lambda weights: optim.Rprop(weights, 0.01, foreach=True),
    "Adam fused": lambda weights: optim.Adam(weights, 0.01, fused=True, amsgrad=True),
    "AdamW fused": lambda weights: optim.AdamW(weights, 0.01, fused=True),
    "SGD fused": lambda weights: optim.SGD(weights, 0.01, momentum=0.9, fused=True),
    "Adagrad fused": lambda weights: optim.Adagrad(weights, 0.01, fused=True),
    "LBFGS": lambda weights: optim.LBFGS(weights, 0.1, max_iter=4),
    "LBFGS with line search": lambda weights: optim.LBFGS(
        weights, 0.1, max_iter=4, line_search_fn="strong_wolfe"
    ),
}
WHOLE, PARTS = 1 << 20, 2048
X = torch.randn(8, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 40), nn.Tanh(), nn.Linear(40, 16), nn.LayerNorm(16)).double()


def train(model: nn.Module, optimizer: optim.Optimizer, steps: int = 3) -> list[float]:
    def closure() -> Any:
        optimizer.zero_grad()
        loss = F.mse_loss(model(X), X)
        loss.backward()
        return loss

    losses: list[Any] = [optimizer.step(closure) for _ in range(steps)]
    return [loss.item() for loss in losses]


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("block_bytes", [WHOLE, PARTS], ids=["whole", "parts"])
def test_same_steps(make, block_bytes):
    cache = SimpleCache(block_bytes=block_bytes, least_bytes=256)
    expected = network()
    model = taken(expected, cache)
    losses, known = train(model, make(model.parameters())), train(expected, make(expected.parameters()))
    tolerance = {"rtol": 0, "atol": 0} if block_bytes == WHOLE else {"rtol": 1e-7, "atol": 1e-9}
    torch.testing.assert_close(losses, known, **tolerance)
    assert_same_weights(model, expected, **tolerance)
    assert all(parameter.grad is not None for parameter in model.parameters())
    kind = OffloadedTensor if block_bytes == WHOLE else PartitionedTensor
    assert type(model[0].weight.grad) is kind
    assert cache.pinned == 0


def test_states_are_offloaded_as_their_weights_are():
    model = taken(network(), SimpleCache(block_bytes=PARTS, least_bytes=256))
    optimizer = optim.AdamW(model.parameters())
    train(model, optimizer)
    state = optimizer.state[model[0].weight]
    assert type(state["exp_avg"]) is type(state["exp_avg_sq"]) is PartitionedTensor


@pytest.mark.parametrize("block_bytes", [WHOLE, PARTS], ids=["whole", "parts"])
def test_state_dict_both_ways(block_bytes, tmp_path):
    def start() -> tuple[nn.Module, optim.Optimizer]:
        model = taken(network(), SimpleCache(block_bytes=block_bytes, least_bytes=256))
        return model, optim.AdamW(model.parameters(), 0.01)

    model, optimizer = start()
    train(model, optimizer, 2)
    torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / "state.pt")
    again, other = start()
    plain = network()
    plain_optimizer = optim.AdamW(plain.parameters(), 0.01)
    for each, its in ((again, other), (plain, plain_optimizer)):
        weights, state = torch.load(tmp_path / "state.pt")
        each.load_state_dict(weights)
        its.load_state_dict(state)
    assert train(again, other) == train(model, optimizer)
    train(plain, plain_optimizer)
    assert_same_weights(again, plain)
    assert isinstance(other.state[again[0].weight]["exp_avg"], OffloadedTensor)


def test_schedules_and_parameter_groups():
    def run(model: nn.Module) -> list[float]:
        groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters()}]
        optimizer = optim.SGD(groups, 0.01, momentum=0.9)
        schedule = optim.lr_scheduler.OneCycleLR(optimizer, [0.1, 0.2], total_steps=5)
        losses = []
        for _ in range(4):
            losses += train(model, optimizer, 1)
            schedule.step()
        return losses

    expected = network()
    assert run(taken(expected, SimpleCache(least_bytes=256))) == run(expected)


@pytest.mark.parametrize("block_bytes", [WHOLE, PARTS], ids=["whole", "parts"])
@pytest.mark.parametrize("overflow", [False, True])
def test_grad_scaler(block_bytes, overflow):
    def run(model: nn.Module) -> float:
        optimizer = optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        scaler.scale(F.mse_loss(model(X), X) * (float("inf") if overflow else 1)).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        return scaler.get_scale()

    expected = network()
    model = taken(expected, SimpleCache(block_bytes=block_bytes, least_bytes=256))
    assert run(model) == run(expected) == (8.0 if overflow else 16.0)
    assert_same_weights(model, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("block_bytes", [WHOLE, PARTS], ids=["whole", "parts"])
@pytest.mark.parametrize("average", ["mean", "exponential"])
def test_averaged_models(block_bytes, average):
    def run(model: nn.Module) -> nn.Module:
        function = optim.swa_utils.get_ema_multi_avg_fn(0.9) if average == "exponential" else None
        averaged = optim.swa_utils.AveragedModel(model, multi_avg_fn=function)
        optimizer = optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            train(model, optimizer, 1)
            averaged.update_parameters(model)
        return averaged.module

    expected = network()
    model = taken(expected, SimpleCache(block_bytes=block_bytes, least_bytes=256))
    assert_same_weights(run(model), run(expected), rtol=1e-7, atol=1e-9)


def test_sparse_gradients_stay_sparse_and_steps_are_right():
    torch.manual_seed(0)
    expected = nn.Embedding(40, 16, sparse=True)
    model = taken(expected, SimpleCache(least_bytes=256))
    for table in (expected, model):
        optimizers = [optim.SparseAdam(table.parameters(), 0.1), optim.SGD(table.parameters(), 0.1)]
        for optimizer in optimizers:
            optimizer.zero_grad()
            table(torch.tensor([3, 5, 3])).pow(2).sum().backward()
            assert table.weight.grad.is_sparse
            optimizer.step()
    assert_same_weights(model, expected)


def test_sparse_gradients_of_weights_in_parts_are_refused():
    model = taken(nn.Embedding(40, 16, sparse=True), SimpleCache(block_bytes=PARTS, least_bytes=256))
    with pytest.raises(TypeError, match=r"sparse gradient of .*weight \(40, 16\).* sparse=False"):
        model(torch.tensor([3, 5])).sum().backward()


def test_a_copied_model_trains_alone():
    model = taken(network(), SimpleCache(least_bytes=256))
    twin = copy.deepcopy(model)
    before = values(model[0].weight)
    losses = train(twin, optim.SGD(twin.parameters(), 0.1))
    assert losses[-1] < losses[0]
    assert torch.equal(values(model[0].weight), before)
    assert isinstance(twin[0].weight.grad, OffloadedTensor)
