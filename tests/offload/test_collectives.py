"""Collective operations of torch.distributed work on offloaded tensors as on others.

Two ranks are two threads here. What a process holds counts for the budget of each model in it, so nobody
looks at it: else each rank would pay for the other's.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import accelera
from accelera.errors import BudgetExceededError, DeviceError

TIGHT = "24MiB"
"""Leaves a pool of 3 MiB, with blocks of less than half a MiB."""


@pytest.fixture(autouse=True)
def nothing_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelera.offload.block_cache.held_on", lambda device: lambda: 0)


def group(store: Any, number: int) -> Any:
    found = dist.ProcessGroup(store, number, 2)
    backend = dist.ProcessGroupGloo(store, number, 2, timedelta(seconds=240))
    found._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    return found


def in_two(function: Callable[[Any, int], Any]) -> list[Any]:
    """Call ``function`` with its process group and number in two threads, and return what it returns."""
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(lambda number: function(group(store, number), number), range(2)))


def layers() -> nn.Sequential:
    """Five weights of 256 KiB, and one of 2 MiB, which a tight budget keeps in several blocks."""
    return nn.Sequential(*(nn.Linear(256, 256) for _ in range(5)), nn.Linear(256, 2048))


SHAPES = [each.shape for each in layers().parameters()]


def values(number: int) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(number)
    return [torch.randn(shape, generator=made) for shape in SHAPES]


def test_gradients_added_up_between_ranks_in_a_budget_that_evicts_them() -> None:
    models = [accelera.offload(layers(), TIGHT) for _ in range(2)]

    def added(pg: Any, number: int) -> list[torch.Tensor]:
        model = models[number]
        for parameter, value in zip(model.parameters(), values(number), strict=True):
            parameter.grad = torch.zeros_like(parameter)
            parameter.grad.copy_(value)
        for parameter in model.parameters():
            pg.allreduce([parameter.grad]).wait()
        assert accelera.offloaded(model).report().evictions > 0
        gradients: list[Any] = [parameter.grad for parameter in model.parameters()]
        return [
            torch.empty_like(value).copy_(gradient)
            for gradient, value in zip(gradients, values(number), strict=True)
        ]

    sums = [one + other for one, other in zip(values(0), values(1), strict=True)]
    for result in in_two(added):
        assert all(torch.equal(one, other) for one, other in zip(result, sums, strict=True))


def test_weights_given_to_all_and_gathered_from_all() -> None:
    models = [accelera.offload(nn.Linear(256, 256), "64MiB") for _ in range(2)]

    def shared(pg: Any, number: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        weight = models[number].weight.detach()
        weight.copy_(values(number)[0])
        outputs = [torch.empty(256, 256) for _ in range(2)]
        pg.allgather([outputs], [weight]).wait()
        pg.broadcast(weight, 1).wait()
        return torch.empty(256, 256).copy_(weight), outputs

    for weight, outputs in in_two(shared):
        assert torch.equal(weight, values(1)[0])
        assert all(torch.equal(outputs[number], values(number)[0]) for number in range(2))


def test_a_weight_that_does_not_fit_whole_is_refused_with_numbers() -> None:
    pg = dist.ProcessGroup(dist.HashStore(), 0, 1)
    model = accelera.offload(nn.Linear(1024, 2048), TIGHT)
    with pytest.raises(BudgetExceededError, match=r"allreduce_.* \(2048, 1024\) of 8.0 MiB") as refused:
        pg.allreduce([model.weight.detach()])
    assert refused.value.needed_bytes > refused.value.budget_bytes


def test_a_message_to_one_rank_is_refused_as_it_could_wait_for_ever() -> None:
    pg = dist.ProcessGroup(dist.HashStore(), 0, 1)
    model = accelera.offload(nn.Linear(256, 256), "64MiB")
    with pytest.raises(DeviceError, match=r"\[send\] .*has no lasting address; give a copy"):
        pg.send([model.weight.detach()], 0, 0)
