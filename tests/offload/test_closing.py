"""A model whose handle was closed, or that is garbage: nothing of it works, all of it is given back."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from accelera import offload, offloaded, plan_offload
from accelera.errors import DeviceError
from accelera.memory import process_memory


def _closed() -> nn.Module:
    model = offload(nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 256), nn.Linear(256, 256)), "64MiB")
    model(torch.ones(2, 256))
    offloaded(model).close()
    return model


@pytest.mark.parametrize(
    "use",
    [
        lambda model: model(torch.ones(2, 256)),
        copy.deepcopy,
        lambda model: model.half(),
        lambda model: offloaded(model).state_dict(),
        lambda model: offloaded(model).restore(),
    ],
    ids=["forward", "copy", "half", "state_dict", "restore"],
)
def test_a_closed_model_says_that_it_is(use: Callable[[Any], Any]) -> None:
    model = _closed()
    with pytest.raises(DeviceError, match=r"close\(\) gave their memory and files back; make the model"):
        use(model)
    assert {each.dtype for each in model.parameters()} == {torch.float32}, "nothing was converted"


def test_a_closed_handle_still_reports_and_closes() -> None:
    model = _closed()
    handle = offloaded(model)
    assert handle.report().misses == 2
    assert "Sequential" in repr(handle)
    handle.close()


def test_a_model_that_a_graph_holds_is_refused_whole() -> None:
    model: Any = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256))
    result = model[1](torch.ones(2, 256, requires_grad=True)).square().sum()
    held = model[1].weight.expand_as(model[1].weight)
    with pytest.raises(DeviceError, match=r"1\.weight.*held by a graph"):
        offload(model, "64MiB")
    assert all(type(each) is nn.Parameter for each in model.parameters())
    del held, result
    offload(model, "64MiB")


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("planned", [False, True])
def test_a_model_that_is_garbage_leaves_no_memory_behind(planned: bool, train: bool) -> None:
    def used() -> tuple[weakref.ref[Any], weakref.ref[Any]]:
        model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).train(train)
        x = torch.randn(1024, 512)
        offload(model, "64MiB", inputs=x if planned else None)
        for _ in range(2):
            if train:
                model(x).square().mean().backward()
            else:
                model(x)
        return weakref.ref(model), weakref.ref(offloaded(model).cache)

    model, cache = used()
    gc.collect()
    before = process_memory().anon_bytes
    assert model() is None
    assert cache() is None
    for _ in range(4):
        used()
        gc.collect()
    assert process_memory().anon_bytes - before < 32 << 20


def test_the_least_budget_of_a_plan_whose_model_is_gone_is_refused() -> None:
    plan = plan_offload(nn.Linear(512, 512), torch.randn(4, 512), "64MiB", train=False)
    gc.collect()
    with pytest.raises(DeviceError, match="the model of this plan is gone"):
        _ = plan.minimum_budget_bytes
