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
    "list index out of range": FailureKind.USER,
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
