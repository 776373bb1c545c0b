"""CUDA devices: which there are, their streams, and the kernels compiled for them.

The driver and the run-time compiler (NVRTC) are loaded when they are first needed; nothing of CUDA is needed
to install the library. Kernels are compiled at their first use and kept in the cache folder (ACCELERA_CACHE).
Operations that have no kernel of their own copy their inputs to the CPU and the results back.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

from accelera import settings
from accelera.errors import ArgumentError
from accelera.tensora.core import native
from accelera.tensora.typing import Device

__all__ = [
    "ExternalStream",
    "Properties",
    "Stream",
    "absence",
    "current_stream",
    "device_count",
    "get_device_properties",
    "is_available",
    "kernel_counts",
    "memory_free",
    "memory_used",
    "stream",
    "synchronize",
]


class Properties(NamedTuple):
    """Properties of a CUDA device."""

    name: str
    total_memory: int
    """Bytes."""
    major: int
    """Compute capability, as in 9.0."""
    minor: int
    multi_processor_count: int


def is_available() -> bool:
    """Return whether there is a CUDA device."""
    return device_count() > 0


def device_count() -> int:
    """Return how many CUDA devices there are."""
    return int(native.cuda_device_count())


def absence() -> str:
    """Return why there is no CUDA device; an empty string where there is one."""
    return str(native.cuda_absence())


def get_device_properties(device: Device = "cuda") -> Properties:
    """Return name, memory and compute capability of a device; ValueError where it does not exist."""
    return Properties(*native.cuda_properties(str(device)))


def memory_free(device: Device = "cuda") -> int:
    """Return the bytes of a device that no process uses."""
    return int(native.cuda_free_bytes(str(device)))


def memory_used(device: Device = "cuda") -> int:
    """Return the bytes of a device in use by all processes: tensors, caches, contexts and libraries."""
    return int(get_device_properties(device).total_memory) - memory_free(device)


def synchronize(device: Device = "cuda") -> None:
    """Wait until a device has done all that it was given."""
    native.cuda_synchronize(str(device))


class Stream:
    """Queue of a device, whose operations run in order and beside those of other streams.

    A tensor belongs to the stream that used it last: another stream that comes to it waits for that one, so
    that no result depends on which streams are used.

    Parameters
    ----------
    device
        "cuda" or "cuda:1".

    """

    def __init__(self, device: Device = "cuda") -> None:
        self.device = native.device_named(str(device))
        self.handle = native.cuda_make_stream(self.device)

    def wait_stream(self, other: Stream) -> None:
        """Make later work of this stream wait for the work submitted to `other` so far."""
        native.cuda_order_streams(self.device, other.handle, self.handle)

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the version of this protocol, and the stream's handle, for other libraries."""
        return 0, self.handle

    def synchronize(self) -> None:
        """Wait until the stream has done all that it was given."""
        native.cuda_wait_for(self.device, self.handle)


class ExternalStream(Stream):
    """Stream that another library made, such as ``torch.cuda.current_stream()`` or a stream of CuPy.

    Operations in ``with stream(ExternalStream(...)):`` are in order with the other library's on that stream.
    It has to exist for as long as tensors that were used on it.

    Parameters
    ----------
    handle
        The stream's handle, an integer: ``torch.cuda.Stream.cuda_stream``, ``cupy.cuda.Stream.ptr``; or an
        object with ``__cuda_stream__``.
    device
        "cuda" or "cuda:1": the stream's device.

    Raises
    ------
    TypeError
        If the handle is neither.

    """

    def __init__(self, handle: Any, device: Device = "cuda") -> None:
        self.device = native.device_named(str(device))
        if hasattr(handle, "__cuda_stream__"):
            handle = handle.__cuda_stream__()[1]
        if not isinstance(handle, int):
            raise ArgumentError(
                f"[ExternalStream] a stream of type {type(handle).__name__}; expected an integer handle, or "
                "an object with __cuda_stream__"
            )
        self.handle = handle


class _CurrentStream(Stream):
    def __init__(self, device: str) -> None:
        self.device = device
        self.handle = native.cuda_current_stream(device)


def current_stream(device: Device = "cuda") -> Stream:
    """Return the stream that this thread's operations on a device go to."""
    return _CurrentStream(native.device_named(str(device)))


class stream:  # noqa: N801 - used as a context, like torch.cuda.stream
    """Context in which this thread's operations on a stream's device go to that stream."""

    def __init__(self, chosen: Stream) -> None:
        self._chosen = chosen
        self._before = 0

    def __enter__(self) -> Stream:
        self._before = native.cuda_current_stream(self._chosen.device)
        native.cuda_set_stream(self._chosen.device, self._chosen.handle)
        return self._chosen

    def __exit__(self, *_: object) -> None:
        native.cuda_set_stream(self._chosen.device, self._before)


def kernel_counts() -> dict[str, int]:
    """Return how many kernels this process compiled, and how many it took from the cache folder."""
    compiled, loaded = native.cuda_kernel_counts()
    return {"compiled": compiled, "loaded": loaded}


def _packaged_libraries() -> list[str]:
    """Return the shared libraries of NVIDIA's packages, whose folders the system's loader does not search."""
    found = importlib.util.find_spec("nvidia")
    folders = [] if found is None else list(found.submodule_search_locations or [])
    return [str(path) for folder in folders for path in sorted(Path(folder).glob("*/lib/*.so*"))]


native.cuda_set_packaged_libraries(_packaged_libraries())
native.cuda_set_kernel_folder(str(settings.cache_folder() / "kernels"))
