"""DLPack from the side of another library, which reads and changes the fields of a capsule."""

from __future__ import annotations

import ctypes
from typing import Any


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("n_dims", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Managed(ctypes.Structure):
    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.argtypes = (ctypes.py_object, ctypes.c_char_p)
USED = b"used_dltensor"


class Imported:
    """Array of another library over the memory of a tensor, which it releases with `release`.

    Parameters
    ----------
    source
        Tensor, or object with `__dlpack__`.
    stream
        Handle of the stream that uses the memory; 1 is the default stream.

    """

    def __init__(self, source: Any, stream: int = 1) -> None:
        self._capsule = source.__dlpack__(stream=stream)
        self._managed = Managed.from_address(_pointer(self._capsule, b"dltensor"))
        _rename(self._capsule, USED)

    @property
    def tensor(self) -> Tensor:
        """The fields, which may be changed before another import."""
        return self._managed.tensor

    @property
    def address(self) -> int:
        return int(self.tensor.data or 0) + int(self.tensor.byte_offset)

    def release(self) -> None:
        deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._managed.deleter)
        deleter(ctypes.addressof(self._managed))


class Producer:
    """Array of another library that shares the memory of a tensor, and counts its releases."""

    def __init__(self, source: Any) -> None:
        self.imported, self.releases = Imported(source), 0
        self._deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._release)
        shape, strides = self.imported.tensor.shape, self.imported.tensor.strides
        self._copy = Managed(self.imported.tensor, None, ctypes.cast(self._deleter, ctypes.c_void_p))
        self._copy.tensor.shape, self._copy.tensor.strides = shape, strides

    def _release(self, _: Any) -> None:
        self.releases += 1

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.imported.tensor.device_type, self.imported.tensor.device_id

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        del stream
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self._copy), b"dltensor", None)

    @property
    def tensor(self) -> Tensor:
        return self._copy.tensor
