"""The emulated CUDA device shows the defects that a real one shows only sometimes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from accelera.tensora.core import native
from tests.tensora import emulator

N = 64
ILLEGAL_ADDRESS, OUT_OF_RESOURCES, MISALIGNED, LAUNCH_FAILED = 700, 701, 716, 719
INVALID_HANDLE, OUT_OF_MEMORY, NOT_INITIALIZED = 400, 2, 3


@pytest.fixture(autouse=True)
def fusion() -> None:
    """Once: nothing here waits."""


class Device:
    """The emulated driver with its first device's context."""

    def __init__(self, driver: ctypes.CDLL) -> None:
        self.driver = driver

    def stream(self, flags: int = 1) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        assert self.driver.cuStreamCreate(ctypes.byref(handle), flags) == 0
        return handle

    def memory(self, nbytes: int = 4 * N, stream: Any = None) -> ctypes.c_ulonglong:
        address = ctypes.c_ulonglong()
        size = ctypes.c_size_t(nbytes)
        assert self.driver.cuMemAllocAsync(ctypes.byref(address), size, stream) == 0
        return address

    def fill(self, address: ctypes.c_ulonglong, value: int, stream: Any = None) -> int:
        return int(self.driver.cuMemsetD8Async(address, value, ctypes.c_size_t(4 * N), stream))

    def copy(self, to: ctypes.c_ulonglong, source: ctypes.c_ulonglong, stream: Any = None) -> int:
        return int(self.driver.cuMemcpyDtoDAsync_v2(to, source, ctypes.c_size_t(4 * N), stream))

    def read(self, address: ctypes.c_ulonglong, stream: Any = None) -> list[int]:
        host = np.zeros(N, np.int32)
        to = ctypes.c_void_p(host.ctypes.data)
        assert self.driver.cuMemcpyDtoHAsync_v2(to, address, ctypes.c_size_t(4 * N), stream) == 0
        return [int(each) for each in host]

    def function(self, body: str, declarations: str = "", parameters: str = "") -> ctypes.c_void_p:
        text = (
            '#define TENSORA_DEVICE\n#include "tensora/cuda/rows.cuh"\n'
            f"namespace accelera::tensora::device {{\n{declarations}\n"
            f"struct Arguments {{ int* x; {parameters} }};\n"
            f'extern "C" __global__ void __launch_bounds__(256) ts_test(const Arguments a) {{ {body} }}\n}}\n'
        )
        code = native.cuda_compile(text, "sm_90")
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        status = self.driver.cuModuleLoadData(ctypes.byref(module), code)
        if status:
            raise MemoryError(status)
        assert self.driver.cuModuleGetFunction(ctypes.byref(function), module, b"ts_test") == 0
        return function

    def launch(
        self, function: ctypes.c_void_p, x: ctypes.c_ulonglong, threads: int = N, blocks: int = 1
    ) -> int:
        """Run a kernel; the device's error, which is forgotten."""
        argument = ctypes.c_ulonglong(x.value)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        status = self.driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, None, parameters, None)
        status = status or self.driver.cuStreamSynchronize(None)
        self.driver.emulated_forget_errors()
        return int(status)


@pytest.fixture
def emulated(device: str) -> Iterator[Device]:
    with emulator.context(device) as driver:
        yield Device(driver)


# --- order of streams


def test_work_without_an_event_is_done_in_another_order(emulated: Device) -> None:
    first, second = emulated.stream(), emulated.stream()
    x, y = emulated.memory(), emulated.memory()
    emulated.fill(x, 1, first)
    emulated.copy(y, x, second)
    assert emulated.read(y, second) != [0x01010101] * N


def test_event_orders_two_streams(emulated: Device) -> None:
    first, second, event = emulated.stream(), emulated.stream(), ctypes.c_void_p()
    x, y = emulated.memory(), emulated.memory()
    emulated.fill(x, 1, first)
    assert emulated.driver.cuEventCreate(ctypes.byref(event), 2) == 0
    assert emulated.driver.cuEventRecord(event, first) == 0
    assert emulated.driver.cuEventQuery(event) == 600
    assert emulated.driver.cuStreamWaitEvent(second, event, 0) == 0
    emulated.copy(y, x, second)
    assert emulated.read(y, second) == [0x01010101] * N
    assert emulated.driver.cuEventQuery(event) == 0


def test_blocking_streams_are_in_order_with_the_default_one(emulated: Device) -> None:
    blocking = emulated.stream(0)
    x, y = emulated.memory(), emulated.memory()
    emulated.fill(x, 1)
    emulated.copy(y, x, blocking)
    assert emulated.read(y, blocking) == [0x01010101] * N
    emulated.fill(x, 2, blocking)
    assert emulated.read(x) == [0x02020202] * N


def test_early_order_runs_other_streams_first(emulated: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a stream before the usual one, so that a missing wait reads unwritten memory."""
    monkeypatch.setenv("EMULATED_CUDA_ORDER", "early")
    usual, other = emulated.stream(0), emulated.stream()
    x, y = emulated.memory(), emulated.memory()
    emulated.fill(x, 1, usual)
    emulated.copy(y, x, other)
    assert emulated.driver.cuStreamSynchronize(usual) == 0
    assert emulated.read(y, other) != [0x01010101] * N


def test_eager_order_is_that_of_the_calls(emulated: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMULATED_CUDA_ORDER", "eager")
    first, second = emulated.stream(), emulated.stream()
    x, y = emulated.memory(), emulated.memory()
    emulated.fill(x, 1, first)
    emulated.copy(y, x, second)
    assert emulated.read(y, second) == [0x01010101] * N


def test_memory_used_after_its_stream_freed_it(emulated: Device) -> None:
    first, second = emulated.stream(), emulated.stream()
    x, y = emulated.memory(), emulated.memory()
    emulated.copy(y, x, second)
    assert emulated.driver.cuMemFreeAsync(x, first) == 0
    assert emulated.driver.cuStreamSynchronize(first) == 0
    assert emulated.driver.cuStreamSynchronize(second) == ILLEGAL_ADDRESS
    emulated.driver.emulated_forget_errors()


def test_pinned_memory_is_read_when_the_copy_runs(emulated: Device) -> None:
    host, size = ctypes.c_void_p(), ctypes.c_size_t(4 * N)
    assert emulated.driver.cuMemAllocHost_v2(ctypes.byref(host), size) == 0
    x = emulated.memory()
    ctypes.memset(host, 1, 4 * N)
    assert emulated.driver.cuMemcpyHtoDAsync_v2(x, host, size, None) == 0
    ctypes.memset(host, 2, 4 * N)
    assert emulated.read(x) == [0x02020202] * N
    pageable = ctypes.create_string_buffer(b"\1" * 4 * N, 4 * N)
    assert emulated.driver.cuMemcpyHtoDAsync_v2(x, pageable, size, None) == 0
    ctypes.memset(pageable, 2, 4 * N)
    assert emulated.read(x) == [0x01010101] * N
    assert emulated.driver.cuMemFreeHost(host) == 0


# --- devices


def test_streams_and_memory_of_another_device_are_refused(emulated: Device) -> None:
    stream, x = emulated.stream(), emulated.memory()
    assert emulated.driver.cuStreamSynchronize(None) == 0
    function = emulated.function("a.x[threadIdx.x] = 1;")
    with emulator.context("cuda:1"):
        assert emulated.fill(x, 1, stream) == INVALID_HANDLE
        assert emulated.launch(function, x) == INVALID_HANDLE
        assert emulated.fill(x, 1) == 0
        assert emulated.driver.cuStreamSynchronize(None) == ILLEGAL_ADDRESS
        emulated.driver.emulated_forget_errors()


def test_errors_of_kernels_are_sticky(emulated: Device) -> None:
    function, x = emulated.function("*reinterpret_cast<volatile int*>(8) = 1;"), emulated.memory()
    argument = ctypes.c_ulonglong(x.value)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
    assert emulated.driver.cuLaunchKernel(function, 1, 1, 1, N, 1, 1, 0, None, parameters, None) == 0
    assert emulated.driver.cuStreamSynchronize(None) == ILLEGAL_ADDRESS
    assert emulated.fill(x, 1) == ILLEGAL_ADDRESS
    emulated.driver.emulated_forget_errors()


# --- threads


def test_threads_at_different_barriers(emulated: Device) -> None:
    x = emulated.memory()
    apart = emulated.function("if (threadIdx.x < 8) { __syncthreads(); } else { __syncthreads(); }")
    missing = emulated.function("if (threadIdx.x < 8) __syncthreads(); a.x[threadIdx.x] = 1;")
    together = emulated.function("for (int i = 0; i < 3; ++i) __syncthreads(); a.x[threadIdx.x] = 1;")
    assert emulated.launch(apart, x) == LAUNCH_FAILED
    assert emulated.launch(missing, x) == LAUNCH_FAILED
    assert emulated.launch(together, x) == 0
    assert emulated.read(x) == [1] * N


def test_threads_run_in_both_orders(emulated: Device) -> None:
    """So that a missing barrier shows in one of two runs."""
    function = emulated.function("a.x[0] = threadIdx.x;")
    values = set()
    for _ in range(2):
        x = emulated.memory()
        assert emulated.launch(function, x) == 0
        values.add(emulated.read(x)[0])
    assert values == {0, N - 1}


def test_shared_memory_is_not_kept_from_block_to_block(emulated: Device) -> None:
    body = "__shared__ int kept[4]; a.x[blockIdx.x] = kept[1]; __syncthreads(); kept[threadIdx.x % 4] = 7;"
    x = emulated.memory()
    assert emulated.launch(emulated.function(body), x, blocks=N) == 0
    assert emulated.read(x) == [np.int32(np.uint32(0xA5A5A5A5))] * N


# --- limits


def test_launch_limits(emulated: Device) -> None:
    x = emulated.memory(1 << 12)
    assert emulated.launch(emulated.function("a.x[threadIdx.x] = 1;"), x, threads=256) == 0
    assert emulated.launch(emulated.function("a.x[threadIdx.x] = 1;"), x, threads=257) == OUT_OF_RESOURCES
    with pytest.raises(MemoryError, match=str(OUT_OF_RESOURCES)):
        emulated.function("__shared__ char block[48 * 1024 + 16]; a.x[0] = block[0];")
    with pytest.raises(MemoryError, match=str(OUT_OF_RESOURCES)):
        emulated.function("a.x[0] = 1;", parameters="char more[4096];")


def test_misaligned_elements(emulated: Device) -> None:
    x = emulated.memory()
    at = ctypes.c_ulonglong(x.value + 2)
    assert emulated.launch(emulated.function("a.x[threadIdx.x / 2] = 1;"), at) == MISALIGNED


def test_allocation_that_fails(emulated: Device) -> None:
    number = ctypes.c_int.in_dll(emulated.driver, "emulated_failing_allocation")
    number.value = 2
    emulated.memory()
    size = ctypes.c_size_t(8)
    assert emulated.driver.cuMemAllocAsync(ctypes.byref(ctypes.c_ulonglong()), size, None) == OUT_OF_MEMORY
    emulated.memory()
    assert number.value == 0
