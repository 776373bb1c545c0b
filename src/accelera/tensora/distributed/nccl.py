"""NVIDIA's collective operations between GPUs (NCCL), loaded when a tensor on a GPU is first reduced.

Only what a group needs is declared here, after NCCL's documentation of its C interface.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from accelera.errors import ArgumentError, BackendMissingError, ClusterError
from accelera.tensora import cuda
from accelera.tensora.core import Tensor, native

_NAMES = ("libnccl.so.2", "libnccl.so")
_TYPES = {
    "int8": 0,
    "bool": 1,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
    "complex64": 7,
    "complex128": 8,
}
_BYTE = 1
_OPERATIONS = {"sum": 0, "max": 2}
_MARK_BYTES = 128


class _UniqueId(ctypes.Structure):
    """Address by which the ranks of a communicator find one another."""

    _fields_ = (("internal", ctypes.c_char * _MARK_BYTES),)


class _DLTensor(ctypes.Structure):
    """DLPack's struct `DLTensor`: data pointer, element type, shape and strides of a tensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


@functools.cache
def _library() -> Any:
    """NCCL, with the kinds of its arguments."""
    for name in (*_NAMES, *_packaged()):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        _declare(library)
        return library
    raise BackendMissingError(
        f"[nccl] tensors on GPUs are reduced by NCCL, and none of {', '.join(_NAMES)} was found: pip install"
        " nvidia-nccl-cu12, or train on the CPU"
    )


def _packaged() -> list[str]:
    """Libraries in NVIDIA's Python packages."""
    found = importlib.util.find_spec("nvidia")
    folders = [] if found is None else list(found.submodule_search_locations or [])
    return [str(path) for folder in folders for path in sorted(Path(folder).glob("nccl/lib/libnccl.so*"))]


def _declare(library: Any) -> None:
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    library.ncclGetErrorString.argtypes = [number]
    library.ncclGetErrorString.restype = ctypes.c_char_p
    library.ncclGetUniqueId.argtypes = [ctypes.POINTER(_UniqueId)]
    library.ncclCommInitRank.argtypes = [ctypes.POINTER(pointer), number, _UniqueId, number]
    library.ncclCommAbort.argtypes = [pointer]
    library.ncclAllReduce.argtypes = [pointer, pointer, size, number, number, pointer, pointer]
    library.ncclBroadcast.argtypes = [pointer, pointer, size, number, number, pointer, pointer]


def _check(result: int, op: str) -> None:
    if result:
        reason = _library().ncclGetErrorString(result).decode()
        raise ClusterError(f"[{op}] NCCL failed: {reason}; NCCL_DEBUG=WARN in the environment tells more")


@contextlib.contextmanager
def _current_device(device: str, op: str) -> Iterator[None]:
    """Make a device the current one of this thread, which NCCL uses, and then the one from before."""
    if not cuda.is_available():
        raise BackendMissingError(
            f"[{op}] {device} was requested, and there is no CUDA device ({cuda.absence()}); train on the CPU"
        )
    before = native.cuda_enter_context(device)
    try:
        yield
    finally:
        native.cuda_leave_context(before)


def _address(tensor: Any) -> int:
    """Return the address of the first element of a contiguous tensor."""
    name = ctypes.pythonapi.PyCapsule_GetPointer
    name.restype, name.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = tensor.detach().__dlpack__(stream=-1)
    described = _DLTensor.from_address(name(capsule, b"dltensor"))
    return int(described.data or 0) + int(described.byte_offset)


class NcclCommunicator:
    """NCCL's communicator of one rank on one GPU; operations go to a stream of their own.

    Parameters
    ----------
    device
        As "cuda:1".
    mark
        As `new_mark` returned in one of the ranks.
    rank, size
        Of this rank, and how many there are.

    Raises
    ------
    BackendMissingError
        If there is no GPU, or no NCCL.
    ClusterError
        If NCCL fails.

    """

    def __init__(self, device: str, mark: bytes, rank: int, size: int) -> None:
        self._device = device
        self._stream = cuda.Stream(device)
        self._handle = ctypes.c_void_p()
        unique_id = _UniqueId.from_buffer_copy(mark)
        with _current_device(device, "nccl"):
            _check(_library().ncclCommInitRank(ctypes.byref(self._handle), size, unique_id, rank), "nccl")

    @staticmethod
    def new_mark(device: str) -> bytes:
        """Return the address of a new communicator, for all its ranks."""
        mark = _UniqueId()
        with _current_device(device, "nccl"):
            _check(_library().ncclGetUniqueId(ctypes.byref(mark)), "nccl")
        return bytes(mark)

    def all_reduce(self, tensor: Tensor, op: str) -> Callable[[], None]:
        """Begin to replace a tensor by its sum or maximum over ranks; return a function that waits for it.

        The sum of Booleans is true where one of them is.
        """
        kind = tensor.dtype.name
        if kind not in _TYPES:
            raise ArgumentError(f"[all_reduce] NCCL knows no {kind}; known are {', '.join(sorted(_TYPES))}")
        count = tensor.size * (2 if kind.startswith("complex") else 1)
        operation = _OPERATIONS["max" if kind == "bool" else op]  # bytes that are summed could become 0
        return self._begin("all_reduce", tensor, count, _TYPES[kind], operation)

    def broadcast(self, tensor: Tensor, source: int) -> Callable[[], None]:
        """Begin to replace a tensor by that of one rank; return a function that waits for it."""
        return self._begin("broadcast", tensor, tensor.nbytes, _BYTE, source)

    def close(self) -> None:
        """Abort the communicator, with the operations that are under way."""
        if self._handle.value is not None:
            _library().ncclCommAbort(self._handle)
            self._handle = ctypes.c_void_p()

    def _begin(self, op: str, tensor: Any, count: int, kind: int, fifth: int) -> Callable[[], None]:
        library = _library()
        call = library.ncclAllReduce if op == "all_reduce" else library.ncclBroadcast
        self._stream.wait_stream(cuda.current_stream(self._device))
        with cuda.stream(self._stream):
            address = _address(tensor)  # whose memory belongs to this stream then, also where it is released
        stream = ctypes.c_void_p(self._stream.handle)
        with _current_device(self._device, op):
            _check(call(address, address, count, kind, fifth, self._handle, stream), op)

        def wait(_kept: Any = tensor) -> None:
            cuda.current_stream(self._device).wait_stream(self._stream)

        return wait
