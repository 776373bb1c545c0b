"""One table of messages, held to by everyone who goes on with less when memory ran out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import accelera as acc
from accelera.devices._internal import is_out_of_memory
from accelera.devices.torch_types import translated
from accelera.errors import (
    BudgetExceededError,
    DeviceError,
    DeviceMemoryError,
    PoisonTaskError,
    TaskTooLargeError,
)
from accelera.execution.faults.classify import FailureKind, kind_of
from accelera.interceptor.router import with_less_scratch

MESSAGES = [
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
    "cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`",
    "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
    "cuFFT error: CUFFT_ALLOC_FAILED",
    "CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY",
    "HIP out of memory. Tried to allocate 20.00 MiB",
    "hipErrorOutOfMemory",
    "XPU out of memory. Tried to allocate 20.00 GiB",
    "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
    "Native API failed. Native API returns: 38 (UR_RESULT_ERROR_OUT_OF_HOST_MEMORY)",
    "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
    "MPS backend out of memory (MPS allocated: 17.65 GB, max allowed: 18.13 GB)",
    "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried",
    "DefaultCPUAllocator: not enough memory: you tried to allocate 80000000000 bytes.",
]
OTHERS = [
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasSgemm(handle)`",
    "CUDA error: an illegal memory access was encountered",
    "mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)",
]


@pytest.mark.parametrize("message", MESSAGES)
def test_everybody_takes_it_for_out_of_memory(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError(message)
    assert is_out_of_memory(error)
    with pytest.raises(DeviceMemoryError), translated("gemm"):
        raise error
    assert kind_of(error) is FailureKind.MEMORY
    rooms: list[int] = []

    def compute(room_bytes: int) -> int:
        rooms.append(room_bytes)
        if len(rooms) == 1:
            raise error
        return room_bytes

    assert with_less_scratch("mm", compute, 64, 1, None) == 32
    _product_goes_on(error, monkeypatch)


def _product_goes_on(error: RuntimeError, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the direct product fail, and see that the engine goes on in chunks."""

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(torch, "matmul", fail)
    a = torch.ones(8, 8)
    assert torch.equal((acc.Matrix(a) @ acc.Matrix(a)).tensor(), torch.full((8, 8), 8.0))


@pytest.mark.parametrize("message", OTHERS)
def test_other_failures_stay_what_they_are(message: str) -> None:
    error = RuntimeError(message)
    assert not is_out_of_memory(error)
    with pytest.raises(DeviceError), translated("gemm"):
        raise error


def test_types_say_it_too() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("anything"))
    assert is_out_of_memory(DeviceMemoryError("full"))
    assert not is_out_of_memory(MemoryError("out of memory"))
    assert is_out_of_memory(MemoryError(), of_python=True)
    too_large = TaskTooLargeError("out of memory", index=0, needed_bytes=2, budget_bytes=1)
    assert not is_out_of_memory(too_large, of_python=True)
    assert not is_out_of_memory(BudgetExceededError("out of memory", needed_bytes=2, budget_bytes=1))
    assert not is_out_of_memory(PoisonTaskError("it ran out of memory"))
