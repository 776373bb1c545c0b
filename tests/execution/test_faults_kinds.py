"""What an exception says of a device, and how many tasks fit: by bisection, remembered."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelera.errors import BudgetExceededError, DeviceError, DeviceMemoryError
from accelera.execution.faults.batch_size import SUCCESSES_BEFORE_DOUBT, BatchSizer
from accelera.execution.faults.classify import FailureKind, kind_of

WORDS = {
    "CUDA out of memory. Tried to allocate 2.00 GiB": FailureKind.MEMORY,
    "HIP out of memory": FailureKind.MEMORY,
    "MPS backend out of memory": FailureKind.MEMORY,
    "CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate": FailureKind.MEMORY,
    "RESOURCE_EXHAUSTED: Out of memory while trying to allocate": FailureKind.MEMORY,
    "CUDA error: an illegal memory access was encountered": FailureKind.STICKY,
    "CUDA error: device-side assert triggered": FailureKind.STICKY,
    "CUDA error: unspecified launch failure": FailureKind.STICKY,
    "CUDA error: the launch timed out and was terminated": FailureKind.STICKY,
    "NVRM: Xid 79, GPU has fallen off the bus": FailureKind.STICKY,
    "CUDA driver version is insufficient for CUDA runtime version": FailureKind.STICKY,
    "CUDA error: invalid configuration argument": FailureKind.TRANSIENT,
    "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED": FailureKind.TRANSIENT,
    "driver error": FailureKind.TRANSIENT,
    "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)": FailureKind.MEMORY,
    "GET was unable to find an engine to execute this computation": FailureKind.MEMORY,
    "vk::Device::allocateMemory: ErrorOutOfDeviceMemory": FailureKind.MEMORY,
    "[METAL] failed (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)": FailureKind.MEMORY,
    "cudaErrorMemoryAllocation": FailureKind.MEMORY,
    "Failed to allocate memory for requested buffer of size 1048576": FailureKind.MEMORY,
    "No CUDA GPUs are available": FailureKind.STICKY,
    "The NVIDIA driver on your system is too old (found version 10020).": FailureKind.STICKY,
    "Cannot re-initialize CUDA in forked subprocess": FailureKind.STICKY,
    "CUDA driver initialization failed, you might not have a CUDA gpu.": FailureKind.STICKY,
    "Failed to initialize NVML: Driver/library version mismatch": FailureKind.STICKY,
    "vk::Queue::submit: ErrorDeviceLost": FailureKind.STICKY,
    "HIP error: invalid device function": FailureKind.TRANSIENT,
    "CUDA failure 999: unknown error": FailureKind.TRANSIENT,
    "list index out of range": FailureKind.USER,
    "memory of the past": FailureKind.USER,
    "engine failure in vehicle 7": FailureKind.USER,
    "the device memory report is missing": FailureKind.USER,
    "out of range for a memory view": FailureKind.USER,
}


@pytest.mark.parametrize("words", WORDS)
def test_runtime_errors_are_read_by_their_words(words: str) -> None:
    assert kind_of(RuntimeError(words)) is WORDS[words]


@pytest.mark.parametrize("kind", [ValueError, TypeError, OSError, MemoryError, KeyError])
@pytest.mark.parametrize("words", WORDS)
def test_other_types_are_the_users_whatever_they_say(kind: type[Exception], words: str) -> None:
    assert kind_of(kind(words)) is FailureKind.USER


def test_our_own_errors_go_by_their_type() -> None:
    assert kind_of(DeviceMemoryError("full")) is FailureKind.MEMORY
    assert kind_of(DeviceError("anything")) is FailureKind.TRANSIENT
    assert kind_of(BudgetExceededError("out of memory", needed_bytes=2, budget_bytes=1)) is FailureKind.USER


def test_exceptions_of_gpu_libraries_are_read_whatever_their_base() -> None:
    library_error = type("OutOfMemoryError", (MemoryError,), {"__module__": "cupy.cuda.memory"})
    assert kind_of(library_error("Out of memory allocating 512 bytes")) is FailureKind.MEMORY
    assert kind_of(library_error("something else")) is FailureKind.USER


def test_an_error_that_cannot_say_what_it_is_says_nothing_of_a_device() -> None:
    class Mute(RuntimeError):
        def __str__(self) -> str:
            raise KeyError("no words")

    assert kind_of(Mute()) is FailureKind.USER


@given(b=st.integers(1, 5000), cap=st.integers(1, 5000))
def test_bisection_finds_nine_tenths_of_the_cap(b: int, cap: int) -> None:
    size, failures = BatchSizer(), 0
    for _ in range(200):
        count = min(b, size.limit or b)
        if count > cap and count > 1:
            failures += 1
            size.ran_out(count)
        else:
            size.succeeded(count)
    assert min(b, size.limit or b) >= 0.9 * min(b, cap)
    assert failures <= math.log2(b) + 4


@given(b=st.integers(2, 3000), caps=st.lists(st.integers(1, 3000), min_size=2, max_size=5))
def test_a_cap_that_falls_is_followed(b: int, caps: list[int]) -> None:
    size = BatchSizer()
    for cap in sorted(caps, reverse=True):
        for _ in range(100):
            count = min(b, size.limit or b)
            if count > cap and count > 1:
                size.ran_out(count)
            else:
                size.succeeded(count)
        assert min(b, size.limit or b) <= max(cap, 1)


def test_a_cap_that_rises_is_found_in_time() -> None:
    size, cap = BatchSizer(), 10
    for piece in range(20 * SUCCESSES_BEFORE_DOUBT):
        cap = 10 if piece < 100 else 1000
        count = min(500, size.limit or 500)
        if count > cap:
            size.ran_out(count)
        else:
            size.succeeded(count)
    assert size.limit == 500 or (size.limit or 0) > 450


def test_failures_grow_rare_where_the_cap_stays() -> None:
    size, failures = BatchSizer(), []
    for piece in range(4000):
        count = min(500, size.limit or 500)
        if count > 10:
            failures.append(piece)
            size.ran_out(count)
        else:
            size.succeeded(count)
    assert len([piece for piece in failures if piece > 100]) <= 1 + math.log2(4000 / SUCCESSES_BEFORE_DOUBT)


def test_what_memory_allows_is_where_it_begins() -> None:
    assert BatchSizer(7).limit == 7
    assert BatchSizer(0).limit == 1
    assert BatchSizer().limit is None


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("builtins", "std::bad_alloc: out_of_memory: CUDA error (failed to allocate 4294967296 bytes)"),
        ("builtins", "std::bad_alloc: out_of_memory: RMM failure at:limit.hpp:152: Exceeded memory limit"),
        (
            "onnxruntime.capi",
            "BFCArena: Available memory of 12058 is smaller than requested bytes of 37748",
        ),
        ("cv2", "error: (-217:Gpu API call) out of memory in function 'allocate'"),
    ],
)
def test_memory_errors_of_further_libraries(module: str, words: str) -> None:
    base = MemoryError if module == "builtins" else Exception
    assert kind_of(type("Raised", (base,), {"__module__": module})(words)) is FailureKind.MEMORY
    assert kind_of(MemoryError("std::bad_alloc")) is FailureKind.USER


def test_a_build_without_a_device_says_so_in_an_assertion() -> None:
    assert kind_of(AssertionError("Torch not compiled with CUDA enabled")) is FailureKind.STICKY
    assert kind_of(AssertionError("not compiled")) is FailureKind.USER


def test_an_exception_without_a_module_is_the_users() -> None:
    assert kind_of(type("Homeless", (OSError,), {"__module__": None})("lost")) is FailureKind.USER
