"""Tensors on a GPU that PyTorch and Tensora share, in the order of both libraries' work."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import accelera.tensora as ts
from accelera.tensora import cuda

torch: Any = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device"),
]
N = 1 << 20
CYCLES = 200_000_000
"""A tenth of a second of a kernel that does nothing else."""


@pytest.fixture(autouse=True)
def fusion() -> None:
    """Once, as users have it."""


@pytest.fixture(params=["default stream", "separate stream"])
def stream(request: pytest.FixtureRequest) -> Any:
    return torch.cuda.default_stream() if request.param == "default stream" else torch.cuda.Stream()


def test_memory_is_reused_after_torch_has_read_it(stream: Any) -> None:
    x = ts.full((N,), 3.0, device="cuda:0")
    with torch.cuda.stream(stream):
        shared = torch.from_dlpack(x)
        torch.cuda._sleep(CYCLES)
        y = shared * 1
        del x, shared
        gc.collect()
    others = [ts.full((N,), 9.0, device="cuda:0") for _ in range(8)]
    assert bool((y == 3).all())
    assert others[0][0].item() == 9


def test_in_place_write_follows_released_import(stream: Any) -> None:
    x = ts.full((N,), 3.0, device="cuda:0")
    with torch.cuda.stream(stream):
        shared = torch.from_dlpack(x)
        torch.cuda._sleep(CYCLES)
        y = shared * 1
        del shared
        gc.collect()
    x += 1
    assert bool((y == 3).all())
    assert x[5].item() == 4


def test_tensora_follows_the_default_stream_of_torch() -> None:
    x = ts.full((N,), 3.0, device="cuda:0")
    shared = torch.from_dlpack(x)
    torch.cuda._sleep(CYCLES)
    shared.add_(1)
    assert (x + 1).max().item() == 5


def test_imported_array_is_used_on_another_stream(stream: Any) -> None:
    with torch.cuda.stream(stream):
        torch.cuda._sleep(CYCLES)
        x = torch.full((N,), 3.0, device="cuda")
        y = ts.from_dlpack(x)
    with cuda.stream(cuda.Stream()):
        assert (y + 1).min().item() == 4
    with cuda.stream(cuda.ExternalStream(stream.cuda_stream)):
        assert (y + 1).max().item() == 4


def test_memory_of_torch_is_kept_until_tensora_has_read_it() -> None:
    x = torch.full((N,), 3.0, device="cuda")
    y = ts.from_dlpack(x)
    for _ in range(50):
        z = y @ ts.ones((N,), device="cuda:0")
    z = y * 1
    del x, y
    gc.collect()
    others = [torch.full((N,), 9.0, device="cuda") for _ in range(8)]
    assert z.min().item() == 3
    assert float(others[0][0]) == 9


def test_current_device_of_torch_stays() -> None:
    before = torch.cuda.current_device()
    last = cuda.device_count() - 1
    x = ts.ones(9, device=f"cuda:{last}") + 1
    assert torch.cuda.current_device() == before
    del x
    gc.collect()
    assert torch.cuda.current_device() == before


def test_memory_of_tensora_is_not_in_pool_of_torch() -> None:
    reserved = torch.cuda.memory_reserved()
    x = ts.ones((N,), device="cuda:0")
    assert torch.cuda.memory_reserved() == reserved
    assert ts.memory_stats("cuda:0").live_bytes >= 4 * N
    del x
