"""Collective operations on the emulated device, with a library that works on a stream as NCCL does."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from typing import Any

import pytest

import accelera.tensora as ts
from accelera.tensora import cuda
from accelera.tensora.distributed import nccl
from tests.tensora import emulator

N = 100


@pytest.fixture(autouse=True)
def fusion() -> None:
    """Once, as users have it."""


class Library:
    """NCCL of one rank: fills the bytes of the tensor with ones, on the stream, in the current context."""

    def __init__(self, driver: ctypes.CDLL) -> None:
        self.driver = driver
        self.calls: list[tuple[str, Any]] = []

    def _note(self, name: str, value: Any = None) -> int:
        context = ctypes.c_void_p()
        self.driver.cuCtxGetCurrent(ctypes.byref(context))
        assert context.value == 2, "the context of cuda:1"
        self.calls.append((name, value))
        return 0

    def ncclGetUniqueId(self, _: Any) -> int:  # noqa: N802
        return self._note("mark")

    def ncclCommInitRank(self, *_: Any) -> int:  # noqa: N802
        return self._note("communicator")

    def ncclAllReduce(self, address: int, _to: int, count: int, *rest: Any) -> int:  # noqa: N802
        _kind, operation, _communicator, stream = rest
        nbytes = ctypes.c_size_t(count)
        assert self.driver.cuMemsetD8Async(ctypes.c_ulonglong(address), 1, nbytes, stream) == 0
        return self._note("all_reduce", operation)


@pytest.fixture
def library(device: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    driver = emulator.driver()
    emulated = Library(driver)
    monkeypatch.setattr(nccl, "_library", lambda: emulated)
    yield emulated
    driver.emulated_forget_errors()


@pytest.fixture
def communicator(library: Library) -> nccl.NcclCommunicator:
    return nccl.NcclCommunicator("cuda:1", nccl.NcclCommunicator.new_mark("cuda:1"), 0, 1)


def test_context_of_the_device_is_current_in_calls_only(
    library: Library, communicator: nccl.NcclCommunicator
) -> None:
    with emulator.context("cuda:0") as driver:
        communicator.all_reduce(ts.zeros((N,), dtype=ts.uint8, device="cuda:1"), "sum")()
        context = ctypes.c_void_p()
        driver.cuCtxGetCurrent(ctypes.byref(context))
        assert context.value == 1
    assert [name for name, _ in library.calls] == ["mark", "communicator", "all_reduce"]


def test_result_is_ready_after_the_wait(library: Library, communicator: nccl.NcclCommunicator) -> None:
    x = ts.zeros((N,), dtype=ts.uint8, device="cuda:1")
    communicator.all_reduce(x, "sum")()
    assert (x + 1).tolist() == [2] * N


def test_tensor_is_freed_after_the_operation(library: Library, communicator: nccl.NcclCommunicator) -> None:
    """Also where nothing waits for it, as after an exception."""
    x = ts.zeros((N,), dtype=ts.uint8, device="cuda:1")
    wait = communicator.all_reduce(x, "sum")
    del x, wait
    gc.collect()
    assert ts.ones((N,), device="cuda:1").tolist() == [1] * N
    cuda.synchronize("cuda:1")


def test_sum_of_booleans_is_their_maximum(library: Library, communicator: nccl.NcclCommunicator) -> None:
    communicator.all_reduce(ts.zeros((N,), dtype=ts.bool, device="cuda:1"), "sum")()
    assert library.calls[-1] == ("all_reduce", 2)
