"""What is torch's own about the torch device: errors, types, and the order that events keep."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from accelera.devices.torch_device import TorchDevice
from accelera.devices.torch_staging import PIECE_BYTES
from accelera.devices.torch_types import numpy_dtype, torch_dtype, wire_dtype
from accelera.errors import DeviceError, DeviceMemoryError, DTypeError, ShapeError

CPU = torch.device("cpu")
F32 = np.dtype(np.float32)


@pytest.fixture(scope="module")
def device() -> TorchDevice:
    return TorchDevice("cpu")


def test_its_cpu_is_not_taken_for_the_cpu(device: TorchDevice) -> None:
    assert (device.name, device.host_memory) == ("torch-cpu", False)


def test_memory_is_counted(device: TorchDevice) -> None:
    before = device.allocated_bytes
    buffer = device.allocate(12345)
    assert device.allocated_bytes - before == 12345
    device.release(buffer)
    assert device.allocated_bytes == before


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), DeviceMemoryError),
        (RuntimeError("XPU out of memory"), DeviceMemoryError),
        (RuntimeError("CUDA error: an illegal memory access was encountered\nmore"), DeviceError),
        (TypeError("a bug"), TypeError),
    ],
)
def test_errors_of_torch_become_ours(
    device: TorchDevice, monkeypatch: pytest.MonkeyPatch, raised: Exception, expected: type[Exception]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise raised

    monkeypatch.setattr(torch, "empty", fail)
    with pytest.raises(expected) as caught:
        device.allocate(100)
    assert caught.value is raised or caught.value.__cause__ is raised


def test_integers_without_a_kernel_are_refused(device: TorchDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = [device.allocate(64) for _ in range(3)]
    a, b, c = (device.view(each, (4, 4), np.dtype(np.int32), (0, 1)) for each in buffers)
    monkeypatch.setattr("accelera.devices.torch_device._multiplies_integers", lambda kind: False)
    with pytest.raises(DTypeError, match="ACCELERA_CUDA=ON"):
        device.gemm(a, b, c, accumulate=False)


def test_types_that_a_device_cannot_hold() -> None:
    with pytest.raises(DTypeError, match=r"float128|longdouble"):
        torch_dtype(np.dtype(np.longdouble), CPU)
    with pytest.raises(DTypeError, match="mps"):
        torch_dtype(np.dtype(np.float64), torch.device("mps"))


def test_floats_travel_as_the_host_has_them() -> None:
    half = np.dtype(ml_dtypes.bfloat16)
    assert wire_dtype(half, torch.float32, CPU) == half
    assert wire_dtype(np.dtype(">f4"), torch.float32, CPU) == F32
    assert wire_dtype(np.dtype(np.int8), torch.int64, CPU) == np.int64
    assert wire_dtype(np.dtype(np.float64), torch.float32, torch.device("mps")) == F32
    assert numpy_dtype(torch.bfloat16) == half


def test_nothing_is_copied_behind_the_back_of_who_cannot_wait(
    device: TorchDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MPS has no events here: a copy that goes on when the call returns could never be waited for."""
    flags: list[bool] = []
    copy = torch.Tensor.copy_

    def spy(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        flags.append(non_blocking)
        return copy(self, source)

    monkeypatch.setattr(torch.Tensor, "copy_", spy)
    buffer = device.allocate(400)
    view, host = device.view(buffer, (10, 10), F32, (0, 1)), np.ones((10, 10), np.float32)
    device.upload(host, view)
    device.download(view, host)
    device.transfer(torch.zeros(400, dtype=torch.uint8), buffer)
    device.transfer(buffer, torch.zeros(400, dtype=torch.uint8))
    device.release(buffer)
    assert flags
    assert not any(flags)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of every copy between tensors."""
    noted: list[int] = []
    copy = torch.Tensor.copy_

    def spy(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        noted.append(self.nbytes)
        return copy(self, source, non_blocking)

    monkeypatch.setattr(torch.Tensor, "copy_", spy)
    return noted


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("dtype", ["f4", "c8", "i2", "u4", ml_dtypes.bfloat16], ids=str)
def test_what_lies_alike_goes_by_one_copy(
    device: TorchDevice, copies: list[int], order: tuple[int, int], dtype: Any
) -> None:
    """Straight between a pinned buffer and the tile, whole or a band of it."""
    host = np.arange(1500 * 1500).reshape(1500, 1500).astype(dtype)
    buffer = device.allocate(host.nbytes)
    view, back = device.view(buffer, host.shape, host.dtype, order), np.empty_like(host)
    pieces = -(-host.nbytes // PIECE_BYTES)
    device.upload(host, view)
    assert sum(copies) == host.nbytes
    assert pieces <= len(copies) <= pieces + 1
    copies.clear()
    device.download(view, back)
    assert sum(copies) == host.nbytes
    np.testing.assert_array_equal(back, host)
    copies.clear()
    band = (slice(100, 200), slice(None)) if order == (0, 1) else (slice(None), slice(100, 200))
    device.upload(host[band], view[band])
    assert copies == [host[band].nbytes]
    device.release(buffer)


def test_a_gram_matrix_is_completed_in_few_launches(device: TorchDevice, copies: list[int]) -> None:
    """One for each corner on the diagonal and one for all below it: 16 where blocks took 36."""
    size = 8 * 512 - 100
    host = np.triu(np.arange(size * size, dtype=np.int32).reshape(size, size))
    buffer = device.allocate(host.nbytes)
    view = device.view(buffer, host.shape, host.dtype, (0, 1))
    device.upload(host, view)
    copies.clear()
    device.symmetrize(view)
    assert len(copies) <= 16
    back = np.empty_like(host)
    device.download(view, back)
    np.testing.assert_array_equal(back, np.triu(host) + np.triu(host, 1).T)
    device.release(buffer)


@pytest.mark.parametrize(
    ("stored", "held", "part"),
    [("f4", "f4", np.s_[:, 1:-1]), ("f4", "f4", np.s_[::2]), ("f2", "f4", np.s_[:]), ("f4", "f8", np.s_[:])],
)
def test_what_does_not_is_brought_into_order_on_the_device(
    device: TorchDevice, copies: list[int], stored: str, held: str, part: Any
) -> None:
    host = (np.arange(300 * 300) % 1000).reshape(300, 300).astype(stored)
    buffer = device.allocate(300 * 300 * 8)
    view, back = device.view(buffer, host.shape, np.dtype(held), (0, 1))[part], np.empty_like(host[part])
    device.upload(host[part], view)
    device.download(view, back)
    np.testing.assert_array_equal(back, host[part])
    assert len(copies) == 4
    device.release(buffer)


@pytest.mark.parametrize(("there", "held"), [("f4", "f4"), ("f2", "f4"), ("u4", "u4"), ("c8", "c16")])
def test_what_is_on_the_device_is_copied_there(device: TorchDevice, there: str, held: str) -> None:
    numbers = np.arange(600).reshape(20, 30).astype(there)
    buffer = device.allocate(600 * 16)
    view = device.view(buffer, (20, 30), np.dtype(held), (1, 0))
    theirs, back = torch.from_numpy(numbers), torch.from_numpy(np.zeros_like(numbers))
    device.copy(theirs, view)
    device.copy(view, back)
    assert torch.equal(back, theirs)
    with pytest.raises(ShapeError):
        device.copy(theirs[1:], view)
    device.release(buffer)


def test_a_copy_loses_no_more_than_precision(device: TorchDevice) -> None:
    buffer = device.allocate(400)
    with pytest.raises(DTypeError):
        device.copy(torch.ones(10, 10), device.view(buffer, (10, 10), np.dtype(np.int32), (0, 1)))
    device.release(buffer)


@pytest.mark.cuda
def test_uploads_overlap_products() -> None:
    """Many tiles in flight, each product right: the events hold on real streams."""
    cuda = TorchDevice("cuda")
    rng = np.random.default_rng(0)
    shape = (2000, 2000)
    host = [rng.standard_normal(shape).astype(np.float32) for _ in range(6)]
    buffers = [cuda.allocate(host[0].nbytes) for _ in range(3)]
    left, right, out = (cuda.view(each, shape, F32, (0, 1)) for each in buffers)
    total = np.zeros(shape)
    for index in range(0, 6, 2):
        cuda.upload(host[index], left)
        cuda.upload(host[index + 1], right)
        cuda.gemm(left, right, out, accumulate=index > 0)
        total += host[index].astype(np.float64) @ host[index + 1]
    found = np.empty(shape, np.float32)
    cuda.download(out, found)
    assert np.abs(found - total).max() < 1e-2
    for each in buffers:
        cuda.release(each)
