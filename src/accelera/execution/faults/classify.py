"""Exceptions of tasks and devices: their classification, their notes, and the frames that they keep alive."""

from __future__ import annotations

import contextlib
import enum
import logging
import re
import sys
import traceback
from collections.abc import Iterable

from accelera.devices._internal import is_out_of_memory, says_out_of_memory, words_of
from accelera.errors import DeviceError

_LOGGER = logging.getLogger("accelera.execution")


class FailureKind(enum.Enum):
    """Kind of a failure on a device."""

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
    r"|no kernel image is available|no NVIDIA driver|driver version is insufficient|no CUDA-capable device"
    r"|No CUDA GPUs are available|NVIDIA driver on your system is too old|Failed to initialize NVML"
    r"|Cannot re-initialize CUDA in forked subprocess|CUDA driver initialization failed"
    r"|DEVICE_LOST|DeviceLost",
    re.IGNORECASE,
)
_TRANSIENT = re.compile(
    r"CUDA (driver )?(error|failure)|CUDA_ERROR_|cudaError|hipError|HIP error"
    r"|cu(BLAS|DNN|FFT|SOLVER|SPARSE)\w* error"
    r"|CUBLAS_STATUS_|CUDNN_STATUS_|NCCL error|GPU is lost|driver (error|shutting down)"
    r"|launch failure|device (unavailable|lost)",
    re.IGNORECASE,
)
_NOT_COMPILED = re.compile(r"Torch not compiled with \w+ enabled")
"""What PyTorch says in an ``AssertionError``."""
_LIBRARIES = frozenset(
    (
        "cupy",
        "cupy_backends",
        "cv2",
        "jaxlib",
        "numba",
        "onnxruntime",
        "pycuda",
        "pyopencl",
        "rmm",
        "tensorflow",
        "torch",
        "triton",
    )
)
"""Packages whose own exceptions are read by their words, whatever their base class."""


def kind_of(error: BaseException) -> FailureKind:
    """Return what ``error``, raised by work on a device, says of it: by its type first, then by its words."""
    if is_out_of_memory(error):
        return FailureKind.MEMORY
    if isinstance(error, AssertionError) and _NOT_COMPILED.match(words_of(error)):
        return FailureKind.STICKY
    if not isinstance(error, DeviceError | RuntimeError) and not _is_raised_by_library(error):
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


def _is_raised_by_library(error: BaseException) -> bool:
    module: object = type(error).__module__  # a class may set it to anything
    return isinstance(module, str) and module.partition(".")[0] in _LIBRARIES


def _is_torch(error: BaseException, name: str) -> bool:
    torch = sys.modules.get("torch")
    kind = getattr(torch, name, None)
    return kind is not None and isinstance(error, kind)


def clear_caller_frames(errors: Iterable[BaseException]) -> None:
    """Drop the local variables of the calls that led to where ``errors`` were caught, those that are over.

    An exception keeps them all: if one of them knows it in turn, neither goes before the collector comes.
    """
    seen: set[int] = set()
    for error in errors:
        frame = None if error.__traceback__ is None else error.__traceback__.tb_frame
        while frame is not None and id(frame) not in seen:
            seen.add(id(frame))
            with contextlib.suppress(RuntimeError):
                frame.clear()
            frame = frame.f_back


def release_attempt(error: BaseException, executor: object) -> None:
    """Drop the local variables of the calls that ``error``, a device's own, came through; empty the cache.

    Variables of the errors that it was raised from go as well. ``executor`` may offer ``empty_cache()``.
    """
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        each = chain.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            traceback.clear_frames(each.__traceback__)
            chain += [each.__cause__, each.__context__]
    clear_caller_frames([error])
    empty_cache = getattr(executor, "empty_cache", None)
    if empty_cache is None:
        return
    try:
        empty_cache()
    except Exception:
        _LOGGER.exception("empty_cache() of %r raised; the work goes on", executor)


def add_note(error: BaseException, note: str) -> None:
    """Add ``note`` unless it is there, also to an exception whose class forbids to set attributes."""
    notes = [*getattr(error, "__notes__", ())]
    if note not in notes:
        error.__dict__["__notes__"] = [*notes, note]
