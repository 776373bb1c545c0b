"""``torch.distributed.checkpoint`` of offloaded models, between all pairs of offloaded and ordinary ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import accelera

checkpoints = pytest.importorskip("torch.distributed.checkpoint")
states = pytest.importorskip("torch.distributed.checkpoint.state_dict")
pytestmark = pytest.mark.filterwarnings("ignore")


def net(seed: int, *, offloaded: bool) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(3000, 256), *[nn.Linear(256, 256) for _ in range(12)])
    return accelera.offload(model, "28MiB") if offloaded else model


def trained(seed: int, *, offloaded: bool) -> tuple[nn.Module, Any]:
    model = net(seed, offloaded=offloaded)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.arange(4)).square().sum().backward()
    optimizer.step()
    return model, optimizer


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("way", ["state_dict", "get_model_state_dict"])
@pytest.mark.parametrize("target", [False, True])
@pytest.mark.parametrize("source", [False, True])
def test_models(tmp_path: Path, source: bool, target: bool, way: str) -> None:
    state_of = nn.Module.state_dict if way == "state_dict" else states.get_model_state_dict
    saved, loaded = net(0, offloaded=source), net(1, offloaded=target)
    checkpoints.save({"model": state_of(saved)}, checkpoint_id=tmp_path)
    state = {"model": state_of(loaded)}
    checkpoints.load(state, checkpoint_id=tmp_path)
    loaded.load_state_dict(state["model"])
    assert same(loaded.state_dict(), net(0, offloaded=False).state_dict())


@pytest.mark.parametrize(("source", "target"), [(True, True), (True, False), (False, True)])
def test_optimizers(tmp_path: Path, source: bool, target: bool) -> None:
    saved, loaded = trained(0, offloaded=source), trained(1, offloaded=target)
    model, optimizer = states.get_state_dict(*saved)
    checkpoints.save({"model": model, "optimizer": optimizer}, checkpoint_id=tmp_path)
    model, optimizer = states.get_state_dict(*loaded)
    state = {"model": model, "optimizer": optimizer}
    checkpoints.load(state, checkpoint_id=tmp_path)
    states.set_state_dict(*loaded, model_state_dict=model, optim_state_dict=optimizer)
    assert same(loaded[0].state_dict(), saved[0].state_dict())
    for one, other in zip(saved[0].parameters(), loaded[0].parameters(), strict=True):
        assert same(saved[1].state[one], loaded[1].state[other])
