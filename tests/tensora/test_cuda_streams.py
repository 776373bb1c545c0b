"""Order between streams and libraries, current contexts, and shared memory, on the emulated device."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import accelera.tensora as ts
from accelera.tensora import cuda
from tests.tensora import emulator
from tests.tensora.dlpack import Imported, Producer

N = 1000
DEFAULT_STREAM = 1


@pytest.fixture(autouse=True)
def fusion() -> None:
    """Once, as users have it."""


@pytest.fixture(autouse=True)
def errors(device: str) -> Iterator[None]:
    """Errors do not outlive the test that they appear in."""
    yield
    emulator.driver().emulated_forget_errors()


@pytest.fixture
def driver(device: str) -> Iterator[ctypes.CDLL]:
    """The driver as another library sees it, with the device's context."""
    with emulator.context(device) as library:
        yield library


def other_stream(driver: ctypes.CDLL) -> int:
    """A stream of another library, which nothing orders by itself."""
    handle = ctypes.c_void_p()
    assert driver.cuStreamCreate(ctypes.byref(handle), 1) == 0
    return int(handle.value or 0)


def words(driver: ctypes.CDLL, address: int, n: int = N) -> np.ndarray:
    host = np.zeros(n, np.float32)
    size = ctypes.c_size_t(host.nbytes)
    assert (
        driver.cuMemcpyDtoHAsync_v2(ctypes.c_void_p(host.ctypes.data), address_of(address), size, None) == 0
    )
    return host


def address_of(number: int) -> ctypes.c_ulonglong:
    return ctypes.c_ulonglong(number)


def copy(driver: ctypes.CDLL, to: int, source: int, stream: int) -> None:
    size = ctypes.c_size_t(4 * N)
    status = driver.cuMemcpyDtoDAsync_v2(address_of(to), address_of(source), size, ctypes.c_void_p(stream))
    assert status == 0


# --- order between libraries


@pytest.mark.parametrize("own", [True, False], ids=["separate stream", "default stream"])
def test_memory_of_importer_is_reused_after_its_work(own: bool, device: str, driver: ctypes.CDLL) -> None:
    stream = other_stream(driver) if own else DEFAULT_STREAM
    x, y = ts.full((N,), 3.0, device=device), ts.zeros((N,), device=device)
    source, target = Imported(x, stream), Imported(y, stream)
    copy(driver, target.address, source.address, stream)
    source.release()
    del x
    assert (ts.full((N,), 9.0, device=device) + 0).tolist()[:2] == [9, 9]
    assert driver.cuStreamSynchronize(ctypes.c_void_p(stream)) == 0
    assert words(driver, target.address).tolist() == [3] * N
    target.release()


def test_in_place_write_after_importer_released(device: str, driver: ctypes.CDLL) -> None:
    stream = other_stream(driver)
    x, y = ts.full((N,), 3.0, device=device), ts.zeros((N,), device=device)
    source, target = Imported(x, stream), Imported(y, stream)
    copy(driver, target.address, source.address, stream)
    source.release()
    x += 1
    assert x.tolist() == [4] * N
    assert driver.cuStreamSynchronize(ctypes.c_void_p(stream)) == 0
    assert words(driver, target.address).tolist() == [3] * N
    target.release()


def test_imported_tensor_is_ready_on_another_stream(device: str, driver: ctypes.CDLL) -> None:
    x = ts.full((N,), 3.0, device=device) * 2
    y = ts.from_dlpack(x)
    with cuda.stream(cuda.Stream(device)):
        assert (y + 1).tolist() == [7] * N


def test_work_of_the_default_stream_comes_first(device: str, driver: ctypes.CDLL) -> None:
    """The stream on which PyTorch, CuPy and JAX work by default."""
    x = ts.full((N,), 3.0, device=device)
    shared = Imported(x)
    assert driver.cuMemsetD8Async(address_of(shared.address), 0, ctypes.c_size_t(4 * N), None) == 0
    assert (x + 1).tolist() == [1] * N
    shared.release()


def test_operations_on_a_stream_of_another_library(device: str, driver: ctypes.CDLL) -> None:
    handle = other_stream(driver)
    x = ts.full((N,), 3.0, device=device)
    with cuda.stream(cuda.ExternalStream(handle, device)) as stream:
        assert stream.__cuda_stream__() == (0, handle)
        y = x * 2
        assert not driver.emulated_is_done(ctypes.c_void_p(handle))
    assert (y + 1).tolist() == [7] * N


class StreamOwner:
    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def test_stream_objects_of_other_libraries(device: str, driver: ctypes.CDLL) -> None:
    handle = other_stream(driver)
    assert cuda.ExternalStream(StreamOwner(handle), device).handle == handle
    with pytest.raises(TypeError, match=r"\[ExternalStream\] .* expected an integer handle"):
        cuda.ExternalStream("stream", device)


# --- death of imported tensors


def test_death_of_imported_tensor_does_not_wait(device: str, driver: ctypes.CDLL) -> None:
    x = ts.full((N,), 3.0, device=device)
    producer = Producer(x)
    y = ts.from_dlpack(producer)
    z = y + 1
    before = ctypes.c_int.in_dll(driver, "emulated_waits").value
    del y
    gc.collect()
    assert ctypes.c_int.in_dll(driver, "emulated_waits").value == before
    assert producer.releases == 0, "the addition has not run"
    assert z.tolist() == [4] * N
    assert producer.releases == 1
    producer.imported.release()


def test_imported_tensor_without_pending_work_is_released_at_its_death(
    device: str, driver: ctypes.CDLL
) -> None:
    x = ts.full((N,), 3.0, device=device)
    producer = Producer(x)
    y = ts.from_dlpack(producer)
    cuda.synchronize(device)
    del y
    cuda.synchronize(device)
    assert producer.releases == 1
    producer.imported.release()


def test_imported_elements_are_aligned(device: str, driver: ctypes.CDLL) -> None:
    x = ts.zeros((2 * N,), dtype=ts.float64, device=device)
    producer = Producer(x)
    producer.tensor.code, producer.tensor.bits, producer.tensor.byte_offset = 5, 128, 8
    producer.tensor.shape[0] = 4
    with pytest.raises(ValueError, match=r"\[from_dlpack\] .*complex128.* no multiple of 16 bytes; copy"):
        ts.from_dlpack(producer)


# --- current contexts

OPERATIONS: dict[str, Callable[[str], Any]] = {
    "kernel": lambda device: ts.ones(N, device=device) * 2,
    "copies": lambda device: ts.asarray(np.arange(9.0)).to(device).cpu(),
    "product": lambda device: ts.ones((3, 4), device=device) @ ts.ones((4, 3), device=device),
    "stream": lambda device: cuda.Stream(device).wait_stream(cuda.current_stream(device)),
    "waiting": lambda device: cuda.synchronize(device),
    "statistics": lambda device: (ts.memory_stats(device), cuda.memory_free(device)),
    "cache": lambda device: ts.empty_cache(device),
    "dlpack": lambda device: ts.from_dlpack(ts.ones(N, device=device)) + 1,
}


@pytest.mark.parametrize("current", [0, 1, 2], ids=["no context", "the same device", "another device"])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("place", ["cuda:0", "cuda:1"])
def test_current_context_of_the_caller_stays(place: str, operation: str, current: int, device: str) -> None:
    driver, context = emulator.driver(), ctypes.c_void_p()
    driver.cuCtxSetCurrent(ctypes.c_void_p(current))
    try:
        result = OPERATIONS[operation](place)
        del result
        gc.collect()
        driver.cuCtxGetCurrent(ctypes.byref(context))
        assert (context.value or 0) == current
    finally:
        driver.cuCtxSetCurrent(ctypes.c_void_p(0))


def test_products_of_a_batch_in_reverse(device: str) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((3, 4, 5)), rng.standard_normal((3, 5, 2))
    x, y = (ts.asarray(each).to(device) for each in (a, b))
    np.testing.assert_allclose(np.asarray((ts.flip(x, axis=0) @ y).cpu()), a[::-1] @ b, rtol=1e-12)
    np.testing.assert_allclose(np.asarray((x[0] @ ts.flip(y, axis=0)).cpu()), a[0] @ b[::-1], rtol=1e-12)
    product = np.asarray((ts.flip(x, axis=0)[:, None] @ y[None]).cpu())
    np.testing.assert_allclose(product, a[::-1][:, None] @ b[None], rtol=1e-12)


# --- memory


def test_memory_freed_on_another_stream_is_waited_for(
    device: str, driver: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    ts.empty_cache(device)
    free = cuda.memory_free(device)
    n = free * 3 // 5
    x = ts.empty((n,), dtype=ts.uint8, device=device)
    with cuda.stream(cuda.Stream(device)):
        x[:10] = 1
    del x
    y = ts.empty((n,), dtype=ts.uint8, device=device)
    assert y.shape == (n,)


def test_default_pool_of_the_process_is_untouched(device: str, driver: ctypes.CDLL) -> None:
    x = ts.ones(N, device=device)
    driver.emulated_default_threshold.restype = ctypes.c_uint64
    assert driver.emulated_default_threshold(0) == 0
    del x


@pytest.mark.parametrize("first", range(1, 12))
def test_failing_allocation_leaves_no_memory_behind(first: int, device: str, driver: ctypes.CDLL) -> None:
    def step() -> list[float]:
        x = ts.asarray(np.arange(12.0).reshape(3, 4)).to(device)
        x.requires_grad = True
        ts.sum(ts.nn.functional.softmax(x @ ts.matrix_transpose(x), -1) ** 2).backward()
        return list(np.asarray(x.grad.cpu()).ravel())

    expected = step()
    live_bytes = ts.memory_stats(device).live_bytes
    ctypes.c_int.in_dll(driver, "emulated_failures").value = 3  # of one request: it is tried again
    ctypes.c_int.in_dll(driver, "emulated_failing_allocation").value = first
    try:
        with pytest.raises(MemoryError, match="cuda:0 has no"):
            step()
    finally:
        ctypes.c_int.in_dll(driver, "emulated_failing_allocation").value = 0
        ctypes.c_int.in_dll(driver, "emulated_failures").value = 1
    gc.collect()
    assert ts.memory_stats(device).live_bytes == live_bytes
    assert step() == expected


def test_allocation_that_fails_once_is_tried_again(device: str, driver: ctypes.CDLL) -> None:
    ctypes.c_int.in_dll(driver, "emulated_failing_allocation").value = 1
    assert ts.ones(3, device=device).tolist() == [1, 1, 1]
    assert ctypes.c_int.in_dll(driver, "emulated_failing_allocation").value == 0
