"""Offloaded models asked to go to another device, or to another element type."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from accelera import offload, offloaded
from accelera.errors import DeviceError
from accelera.offload import OffloadedTensor
from accelera.offload.block_cache import BlockCache
from accelera.offload.config import OffloadConfig
from accelera.offload.module import swap_in


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.LayerNorm(256), *(nn.Linear(256, 256) for _ in range(24)))


def _devices(model: nn.Module) -> set[str]:
    return {each.device.type for each in model.parameters()}


@pytest.mark.parametrize(
    "move",
    [
        lambda model: model.to("meta"),
        lambda model: model.to("meta", torch.float16),
        lambda model: model.to_empty(device="meta"),
        lambda model: model[1].to("meta"),
        lambda model: nn.ModuleList([nn.Identity(), model]).to("meta"),
    ],
)
@pytest.mark.parametrize("made", [lambda model: model, copy.deepcopy], ids=["itself", "a copy"])
def test_another_device_is_refused_with_nothing_moved(move: Callable[[Any], Any], made: Any) -> None:
    plain = _model()
    model = made(offload(copy.deepcopy(plain), "64MiB"))
    with pytest.raises(DeviceError, match=r"\[to\].*computes on cpu.*meta.*restore\(\)"):
        move(model)
    assert _devices(model) == {"cpu"}
    x = torch.randn(2, 256)
    assert torch.equal(model(x), plain(x))


def test_a_restored_model_moves_and_is_offloaded_again() -> None:
    model = offload(_model(), "64MiB")
    offloaded(model).restore()
    offloaded(offload(model, "32MiB")).restore()
    assert not any("_apply" in module.__dict__ for module in model.modules())
    assert _devices(model.to("meta")) == {"meta"}


def test_a_pickled_model_moves() -> None:
    file = io.BytesIO()
    torch.save(offload(_model(), "64MiB"), file)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    assert _devices(loaded.to("meta")) == {"meta"}
    assert _devices(copy.deepcopy(loaded)[1]) == {"meta"}


def test_the_device_where_it_is_changes_nothing() -> None:
    model = offload(_model(), "64MiB")
    before = list(model.parameters()), offloaded(model).report().uses
    assert model.to("cpu") is model.cpu() is model
    assert all(one is other for one, other in zip(before[0], model.parameters(), strict=True))
    assert offloaded(model).report().uses == before[1]


@pytest.mark.parametrize(
    "convert",
    [
        lambda model: model.half(),
        lambda model: model.bfloat16(),
        lambda model: model.double(),
        lambda model: model.to(torch.bfloat16),
        lambda model: model.to("cpu", torch.bfloat16),
    ],
)
def test_element_types_change_tensor_by_tensor_within_the_pool(
    convert: Callable[[Any], Any], tmp_path: Path
) -> None:
    plain = convert(_model())
    dtype = plain[1].weight.dtype
    x = torch.randn(2, 256, dtype=dtype)
    with torch.no_grad():
        expected = plain(x)
    del plain
    model, cache = _model(), BlockCache(1 << 20, OffloadConfig(store=tmp_path))
    swap_in(model, cache)
    convert(model)
    weights = [each for each in model.parameters() if each.ndim == 2]
    assert all(isinstance(each, OffloadedTensor) and each.dtype == dtype for each in weights)
    assert cache.report().peak_bytes <= cache.capacity_bytes
    assert cache.peak_allocated_bytes <= cache.capacity_bytes
    with torch.no_grad():
        assert torch.equal(model(x), expected)
