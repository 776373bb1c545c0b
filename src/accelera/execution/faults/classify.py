"""Classification of failures: out of memory, transient, sticky, or the user's own exception."""

from __future__ import annotations

import enum
import re
import sys

from accelera.devices import is_out_of_memory, says_out_of_memory
from accelera.devices import words_of as words_of
from accelera.errors import DeviceError


class FailureKind(enum.Enum):
    """What kind of failure it is."""

    MEMORY = "out of memory"
    """Fewer tasks at once may fit."""
    TRANSIENT = "transient"
    """May go well the next time."""
    STICKY = "sticky"
    """The device is of no use until it is restarted."""
    USER = "user"
    """The user's own exception: no failure of a device."""
    UNKNOWN = "unknown"
    """What no device raises, where the CPU could do the tasks: an executor or a form for many is at fault."""


_STICKY = re.compile(
    r"illegal memory access|device-side assert|unspecified launch failure|misaligned address"
    r"|illegal instruction|hardware stack error|uncorrectable ECC|\bXid \d+|fallen off the bus"
    r"|CUDA_ERROR_(ILLEGAL_ADDRESS|ASSERT|LAUNCH_FAILED|LAUNCH_TIMEOUT|ECC_UNCORRECTABLE)|launch timed out"
    r"|no kernel image is available|no NVIDIA driver|driver version is insufficient|no CUDA-capable device",
    re.IGNORECASE,
)
_TRANSIENT = re.compile(
    r"CUDA (driver )?error|CUDA_ERROR_|hipError|cu(BLAS|DNN|FFT|SOLVER|SPARSE)\w* error"
    r"|CUBLAS_STATUS_|CUDNN_STATUS_|NCCL error|GPU is lost|driver (error|shutting down)"
    r"|launch failure|device (unavailable|lost)",
    re.IGNORECASE,
)
_LIBRARIES = frozenset(
    ("cupy", "cupy_backends", "jaxlib", "numba", "pycuda", "pyopencl", "tensorflow", "torch", "triton")
)
"""Packages whose own exceptions are read by their words, whatever their base class."""


def kind_of(error: BaseException) -> FailureKind:
    """Return what ``error``, raised by work on a device, says of it: by its type first, then by its words."""
    if is_out_of_memory(error):
        return FailureKind.MEMORY
    if not isinstance(error, DeviceError | RuntimeError) and not _is_a_librarys(error):
        return FailureKind.USER
    words = words_of(error)
    if says_out_of_memory(words):
        return FailureKind.MEMORY
    for kind, pattern in ((FailureKind.STICKY, _STICKY), (FailureKind.TRANSIENT, _TRANSIENT)):
        if pattern.search(words):
            return kind
    return (
        FailureKind.TRANSIENT
        if isinstance(error, DeviceError) or _is_torch(error, "AcceleratorError")
        else FailureKind.USER
    )


def _is_a_librarys(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in _LIBRARIES


def _is_torch(error: BaseException, name: str) -> bool:
    torch = sys.modules.get("torch")
    kind = getattr(torch, name, None)
    return kind is not None and isinstance(error, kind)
