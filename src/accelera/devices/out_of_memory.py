"""Recognition of errors that say that memory ran out, in the words of every library that is called."""

from __future__ import annotations

import re
import sys

from accelera.errors import AcceleraError, DeviceMemoryError, OutOfMemoryError

_WORDS = re.compile(
    r"out of memory|can't allocate memory|not enough memory|ALLOC_FAILED|ALLOCATION_FAILURE"
    r"|OUT_OF_(DEVICE_|HOST_)?MEMORY|hipErrorOutOfMemory|RESOURCE_EXHAUSTED|OOM when allocating"
    r"|CUDNN_STATUS_NOT_SUPPORTED.*non-contiguous|cudaErrorMemoryAllocation|RMM failure.*memory limit"
    r"|BFCArena.*smaller than requested|Failed to allocate memory for requested buffer"
    r"|unable to find an engine to execute this computation|OutOf(Device|Host)?Memory\b"
    r"|Device memory allocation of size \d+ failed|CallbackErrorOutOfMemory"
    r"|BLAS_STATUS_NOT_INITIALIZED.*blas(Lt)?Create|CUDNN_STATUS_(NOT_INITIALIZED|INTERNAL_ERROR)"
    r"|CUSOLVER_STATUS_(NOT_INITIALIZED|INTERNAL_ERROR).*cusolver\w*Create",
    re.IGNORECASE,
)
"""PyTorch's allocators, cuBLAS and its kin, Level Zero, HIP, OpenCL, XLA, TensorFlow, RMM, ONNX Runtime,
Vulkan and Metal. cuDNN reports a copy that did not fit as not contiguous, or finds no engine. Without
memory for their handles, it, cuBLAS and cuSOLVER report an internal error or a missing initialization."""
_RMM = re.compile(r"std::bad_alloc: (out_of_memory|CUDA error|RMM failure)")
"""RMM and cuDF raise ``MemoryError`` with these words, which nothing on the CPU says."""


def says_out_of_memory(words: str) -> bool:
    """Return whether ``words``, the message of an error, say that memory ran out."""
    return _WORDS.search(words) is not None


def words_of(error: BaseException) -> str:
    """Return the message of ``error``; nothing where it cannot say it."""
    try:
        return str(error)
    except Exception:
        return ""


def is_out_of_memory(error: BaseException, *, of_python: bool = False) -> bool:
    """Return whether ``error`` says that the memory of a device, or of the host, ran out while working.

    True for ``DeviceMemoryError`` and torch's ``OutOfMemoryError``, and for a ``RuntimeError`` whose message
    says so; other errors of Accelera mean what their type says. With ``of_python`` also for a ``MemoryError``
    of Python, which NumPy raises; it may as well be one of the user's own code.
    """
    if isinstance(error, DeviceMemoryError) or _is_torchs(error):
        return True
    if isinstance(error, AcceleraError) and type(error) is not OutOfMemoryError:
        return False
    if isinstance(error, MemoryError):
        return of_python or _RMM.match(words_of(error)) is not None
    return isinstance(error, RuntimeError) and says_out_of_memory(words_of(error))


def _is_torchs(error: BaseException) -> bool:
    kind = getattr(sys.modules.get("torch"), "OutOfMemoryError", None)
    return kind is not None and isinstance(error, kind)
