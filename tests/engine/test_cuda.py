"""The engine on a CUDA device: every element type, budgets, operands on either side, held to NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import accelera as acc
from accelera._native import cuda_compiled
from accelera.devices import Device, get_device
from accelera.engine._internal import cost_model, link_rates

pytestmark = pytest.mark.cuda

MIB = 1 << 20
FLOATS = ["float32", "float64", "complex64", "complex128"]
HALVES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


@pytest.fixture
def engine() -> acc.MatrixEngine:
    return acc.MatrixEngine(device="cuda:0", enable_progress=False)


@pytest.fixture
def device(engine: acc.MatrixEngine) -> Iterator[Device]:
    """The engine's device; its memory is as before afterwards."""
    torch.cuda.synchronize()
    yield engine.device
    torch.cuda.empty_cache()


def numbers(shape: tuple[int, ...], dtype: Any, seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, np.dtype(dtype), endpoint=True)
    real = rng.standard_normal(shape)
    return (real + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else real).astype(dtype)


def assert_close(found: Any, expected: Any, depth: int, dtype: Any) -> None:
    """Compare with a sum in double precision; ``depth`` products were added up."""
    eps = {"float32": 1.2e-7, "complex64": 1.2e-7, "float16": 1e-3, "bfloat16": 8e-3}.get(str(dtype), 2.3e-16)
    scale = np.sqrt(depth) * (8 if eps > 1e-4 else 40)
    assert np.abs(found.astype(expected.dtype) - expected).max() <= eps * scale


@pytest.mark.parametrize("dtype", [*FLOATS, *HALVES], ids=str)
def test_products_larger_than_the_budget(engine: acc.MatrixEngine, dtype: Any) -> None:
    """Tiles go through a fraction of the operands' memory, in any order they lie."""
    a, b = numbers((1500, 900), dtype, 1), numbers((1300, 900), dtype, 2).T
    wide = np.complex128 if np.dtype(dtype).kind == "c" else np.float64
    expected = a.astype(wide) @ b.astype(wide)
    found = engine.matmul(a, b, budget="2MiB").numpy()
    assert found.dtype == np.dtype(dtype)
    assert_close(found, expected, 900, np.dtype(dtype))
    assert engine.last_report.device == "cuda:0"
    assert engine.last_report.fallbacks == ()
    gram = engine.gram(a, budget="2MiB").numpy()
    assert_close(gram, a.astype(wide).conj().T @ a.astype(wide), 1500, np.dtype(dtype))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_half_types_stay_half_on_the_device(engine: acc.MatrixEngine, dtype: Any) -> None:
    """Tensor cores multiply them, float32 takes the sums: 4097 ones add up to 4097."""
    if not engine.device.multiplies(dtype):
        pytest.skip("this torch has no product of half types with float32 sums")
    ones = np.ones((300, 4097), dtype)
    engine.matmul(ones, ones.T, budget="1MiB")
    report = engine.last_report
    assert report is not None
    assert [str(each.held_dtype) for each in report.plan.operands] == [str(dtype), str(dtype), "float32"]
    with_sums = acc.MatrixEngine(device="cuda:0", enable_progress=False)
    out = with_sums.matmul(ones, ones.T, budget="1MiB").numpy().astype(np.float32)
    assert (out == np.float32(4097).astype(dtype).astype(np.float32)).all()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap_around(engine: acc.MatrixEngine, dtype: str) -> None:
    """By our own kernel on the device, or by the CPU's where the build has none; never by an error."""
    a, b = numbers((200, 130), dtype, 1), numbers((130, 170), dtype, 2)
    np.testing.assert_array_equal(engine.matmul(a, b).numpy(), a @ b)
    np.testing.assert_array_equal((acc.Matrix(a) @ acc.Matrix(b)).numpy(), a @ b)
    there = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
    found = engine.matmul(*there)
    assert found.tensor().device.type == "cuda"
    np.testing.assert_array_equal(found.tensor().cpu().numpy(), a @ b)
    report = engine.last_report
    assert report is not None
    assert report.device == ("cuda:0" if cuda_compiled() else "cpu")


def test_the_budget_bounds_what_torch_allocates(engine: acc.MatrixEngine, device: Device) -> None:
    a, b = numbers((4000, 3000), "float32", 1), numbers((3000, 5000), "float32", 2)
    engine.matmul(a, b, budget="40MiB")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    engine.matmul(a, b, budget="40MiB")
    peak = torch.cuda.max_memory_allocated() - before
    report = engine.last_report
    assert report is not None
    blocks = len(report.plan.operands) * 8
    assert peak <= 40 * MIB + device.workspace_bytes() + device.packing_bytes() + blocks * MIB
    assert report.peak_pool_bytes <= report.plan.forecast.peak_pool_bytes <= 40 * MIB
    assert report.moved_bytes == report.plan.moved_bytes


def test_files_go_through_the_device(engine: acc.MatrixEngine, tmp_path: Path) -> None:
    a, b = numbers((1100, 800), "float32", 1), numbers((800, 1200), "float32", 2)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    engine.matmul(tmp_path / "a.npy", tmp_path / "b.npy", out=tmp_path / "c.npy", budget="2MiB")
    assert_close(np.load(tmp_path / "c.npy"), a.astype(float) @ b.astype(float), 800, "float32")


def test_what_does_not_fit_goes_on_in_smaller_pieces(engine: acc.MatrixEngine) -> None:
    """The card is filled by somebody else in the middle of planning and running."""
    a, b = numbers((3000, 2000), "float32", 1), numbers((2000, 3000), "float32", 2)
    free = torch.cuda.mem_get_info()[0]
    hog = torch.empty(int(free - 96 * MIB), dtype=torch.uint8, device="cuda")
    try:
        found = engine.matmul(a, b).numpy()
    finally:
        del hog
        torch.cuda.empty_cache()
    assert_close(found, a.astype(float) @ b.astype(float), 2000, "float32")


def test_cpu_and_device_share_a_product() -> None:
    a, b = numbers((1500, 800), "float32", 1), numbers((800, 1500), "float32", 2)
    engine = acc.MatrixEngine(device="cuda:0", strategy="hybrid", enable_progress=False)
    found = engine.matmul(a, b, budget="256MiB").numpy()
    assert_close(found, a.astype(float) @ b.astype(float), 800, "float32")


def test_rates_are_measured_and_of_a_gpu() -> None:
    device = get_device("cuda:0")
    model, pinned = cost_model(device), link_rates(device, pinned=True)
    print(f"{model.flops_per_s / 1e12:.1f} TFLOP/s, {model}, pinned {pinned}")
    assert model.flops_per_s > 1e11
    assert min(*pinned, model.upload_bytes_per_s, model.download_bytes_per_s) > 1e8
