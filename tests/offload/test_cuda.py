"""Offloaded models on a CUDA device: the same results as without, inside the budget, nothing left pinned."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import accelera as acc
from tests.gpus import own_stream
from tests.offload.language_model import language_model, loss_of
from tests.offload.training_models import losses_by

pytestmark = pytest.mark.cuda

MIB = 1 << 20
WIDTH, LAYERS = 2048, 12
BUDGET = 160 * MIB
"""Of 192 MiB of weights; the product libraries may keep 64 MiB of it, transfers 16."""
GPU = torch.device("cuda:0")


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    """Begin and end with nothing in torch's cache."""
    gc.collect()
    torch.cuda.empty_cache()
    yield
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


class Wide(nn.Module):
    """Linear layers of 16 MiB each; neither layer nor model is a multiple of what streams."""

    def __init__(self, layers: int = LAYERS, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, dtype=dtype) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return x


@pytest.fixture(params=["ram", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "ram" else tmp_path


def rows(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, WIDTH, generator=generator).to(GPU, dtype)


def peak_of(run: Any) -> tuple[Any, int]:
    """Return what ``run`` does, and the most bytes that torch allocated on top of those before."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    found = run()
    torch.cuda.synchronize()
    return found, torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_inference_gives_the_same_inside_the_budget(store: Path | None, dtype: torch.dtype) -> None:
    x = rows(8, dtype)
    with torch.no_grad():
        expected = Wide(dtype=dtype).to(GPU)(x).clone()
    gc.collect()
    torch.cuda.empty_cache()

    def run() -> Any:
        model = acc.offload(Wide(dtype=dtype), BUDGET, store, device=GPU)
        with torch.no_grad():
            return model, [model(x) for _ in range(3)]

    (model, found), peak = peak_of(run)
    for each in found:
        torch.testing.assert_close(each, expected)
    assert peak <= BUDGET
    handle = acc.offloaded(model)
    report = handle.report()
    assert report.peak_bytes <= report.capacity_bytes < LAYERS * 16 * MIB
    restored = handle.restore()
    with torch.no_grad():
        torch.testing.assert_close(restored(x), expected)


def trained(model: nn.Module, steps: int = 3) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return losses_by(optimizer, lambda step: (model(rows(4)) - step).square().mean(), steps)


def test_training_gives_the_same_inside_the_budget(store: Path | None) -> None:
    """Weights, gradients and AdamW's states are four times the weights."""
    expected = trained(Wide(layers=6).to(GPU))
    gc.collect()
    torch.cuda.empty_cache()

    def run() -> Any:
        model = acc.offload(Wide(layers=6), BUDGET, store, device=GPU)
        return model, trained(model)

    (model, losses), peak = peak_of(run)
    assert losses == pytest.approx(expected, rel=1e-4)
    assert peak <= BUDGET
    acc.offloaded(model).close()


def test_a_language_model_trains_the_same() -> None:
    """Attention, embeddings with a shared weight, normalization; no dropout, whose numbers differ."""
    batch = torch.randint(0, 600, (4, 16), generator=torch.Generator().manual_seed(3)).to(GPU)

    def losses_of(model: nn.Module) -> list[float]:
        for each in model.modules():
            if isinstance(each, nn.Dropout):
                each.p = 0.0
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
        for _ in range(4):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    sizes = {"width": 256, "blocks": 4, "heads": 8}
    expected = losses_of(language_model(**sizes).to(GPU))
    model = acc.offload(language_model(**sizes), 128 * MIB, device=GPU)
    assert losses_of(model) == pytest.approx(expected, rel=1e-4)


def test_a_model_on_the_device_leaves_it() -> None:
    """Its weights' memory is free when it is handed over, and not kept in torch's cache."""
    model = Wide().to(GPU)
    assert torch.cuda.memory_allocated() >= LAYERS * 16 * MIB
    model = acc.offload(model, BUDGET)
    gc.collect()
    assert torch.cuda.memory_reserved() <= BUDGET
    with torch.no_grad():
        assert torch.isfinite(model(rows(2))).all()


def test_a_caller_may_have_a_stream_of_its_own() -> None:
    x = rows(8)
    with torch.no_grad():
        expected = Wide(layers=6).to(GPU)(x + 1).clone()
    model = acc.offload(Wide(layers=6), BUDGET, device=GPU)
    for _ in range(2):
        with own_stream() as stream, torch.no_grad():
            stream.wait_stream(torch.cuda.default_stream())
            found = model(x + 1)
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("how", ["close", "restore", "drop"])
def test_nothing_stays_pinned(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    real, live = torch.cuda.cudart(), set[int]()

    class Counting:
        """CUDA's runtime, with what is registered."""

        def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> Any:  # noqa: N802
            live.add(address)
            return real.cudaHostRegister(address, nbytes, flags)

        def cudaHostUnregister(self, address: int) -> Any:  # noqa: N802
            live.discard(address)
            code = real.cudaHostUnregister(address)
            assert int(code) == 0
            return code

    monkeypatch.setattr(torch.cuda, "cudart", Counting)
    model = acc.offload(Wide(layers=4), 128 * MIB, device=GPU)
    with torch.no_grad():
        model(rows(2))
    assert len(live) >= 4
    if how == "close":
        acc.offloaded(model).close()
    elif how == "restore":
        acc.offloaded(model).restore()
    else:
        del model
        gc.collect()
    assert not live


def test_a_plan_says_what_happens() -> None:
    model, x = Wide(), rows(8)
    model.eval()
    plan = acc.plan_offload(model, x, BUDGET, device=GPU)
    print(plan.explain() if hasattr(plan, "explain") else plan)

    def run() -> Any:
        offloaded = acc.offload(model, BUDGET, inputs=x, device=GPU)
        with torch.no_grad():
            return [offloaded(x) for _ in range(2)]

    _, peak = peak_of(run)
    assert peak <= BUDGET
