"""Integer products: on devices whose torch has none, and of the types that torch's CPU kernel lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import accelera as acc
from accelera.devices import CpuDevice, SimulatedDevice
from accelera.devices.torch_device import TorchDevice
from accelera.engine.incore import ProductPair

INTEGERS = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
RNG = np.random.default_rng(5)
NUMBERS = RNG.integers(0, 9, (40, 40))


@pytest.fixture
def without_integers(monkeypatch: pytest.MonkeyPatch) -> acc.MatrixEngine:
    """An engine on an accelerator for which accelera was built without its kernels."""
    monkeypatch.setattr("accelera.devices.torch_device._multiplies_integers", lambda kind: False)
    return acc.MatrixEngine(device=TorchDevice("cpu"), enable_progress=False)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_in_memory_on_a_device_without_them(without_integers: acc.MatrixEngine, dtype: Any) -> None:
    a = NUMBERS.astype(dtype)
    np.testing.assert_array_equal(without_integers.matmul(a, a).numpy(), a @ a)
    report = without_integers.last_report
    assert report is not None
    assert report.device == "cpu"
    assert report.fallbacks == (f"planned on the CPU: torch-cpu multiplies no {dtype}",)


def test_files_on_a_device_without_them(without_integers: acc.MatrixEngine, tmp_path: Path) -> None:
    a = NUMBERS.astype(np.int32)
    np.save(tmp_path / "a.npy", a)
    path = tmp_path / "a.npy"
    without_integers.matmul(path, path, out=tmp_path / "c.npy", budget="64MiB")
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), a @ a)
    np.testing.assert_array_equal(without_integers.gram(path).numpy(), a.T @ a)
    assert without_integers.plan(path, path).tier == "ram"
    assert without_integers.plan_gram(path).tier == "ram"


@pytest.mark.parametrize("strategy", ["cpu", "gpu", "hybrid", "auto"])
def test_products_shared_with_a_device_without_them(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    device = SimulatedDevice("4MiB")
    monkeypatch.setattr(SimulatedDevice, "multiplies", lambda self, dtype: dtype.kind == "f")
    engine = acc.MatrixEngine(device=device, enable_progress=False, strategy=strategy)
    a = NUMBERS.astype(np.int64)
    np.testing.assert_array_equal(engine.matmul(a, a).numpy(), a @ a)
    assert device.report().computations == 0


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_in_memory_on_the_cpu(dtype: Any) -> None:
    """torch's own kernel has neither uint16 nor uint32 nor uint64."""
    engine = acc.MatrixEngine(device="cpu", enable_progress=False)
    a = NUMBERS.astype(dtype)
    np.testing.assert_array_equal(engine.matmul(a, a).numpy(), a @ a)
    np.testing.assert_array_equal((acc.Matrix(a) @ acc.Matrix(a)).numpy(), a @ a)
    fallback = acc.MemoryEfficientEngine(device="cpu", memory_threshold_gb=0.01, fallback_strategy="cpu")
    np.testing.assert_array_equal(fallback.matmul(a, a).numpy(), a @ a)


@pytest.mark.parametrize(
    ("dtype", "places"),
    [
        (torch.int64, "cpu"),
        (torch.uint8, "cpu"),
        (torch.uint32, ""),
        (torch.float32, "cpu cuda mps xpu"),
        (torch.bfloat16, "cpu cuda mps xpu"),
        (torch.complex64, "cpu cuda mps xpu"),
        (torch.float64, "cpu cuda xpu"),
    ],
    ids=str,
)
def test_where_torch_multiplies_what(dtype: torch.dtype, places: str) -> None:
    a = torch.zeros(2, 2, dtype=dtype)
    pair = ProductPair(a, a, (2, 2))
    found = [kind for kind in ("cpu", "cuda", "mps", "xpu") if pair.suits_torch(torch.device(kind))]
    assert " ".join(found) == places
    assert not pair.suits_torch(None)


def test_devices_say_what_they_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    for device in (CpuDevice(), SimulatedDevice(), TorchDevice("cpu")):
        assert all(map(device.multiplies, INTEGERS))
        assert device.multiplies(np.dtype(np.complex128))
        assert not device.multiplies(np.dtype(bool))
    monkeypatch.setattr("accelera.devices.torch_device._native.cuda_compiled", lambda: False)
    cuda = TorchDevice("cpu")
    monkeypatch.setattr(cuda, "_device", torch.device("cuda"))
    assert not cuda.multiplies(np.dtype(np.int32))
    assert cuda.multiplies(np.dtype(np.float64))
