"""Objects in unnamed memory that processes share: arrays and tensors in it are used where they lie."""

from __future__ import annotations

import io
import mmap
import os
import pickle
import struct
import sys
from typing import Any

import cloudpickle

from accelera._descriptors import anonymous_file
from accelera.tensora.core import Tensor, native
from accelera.tensora.serialization.memory import bytes_of, over_bytes

_ALIGNMENT = 64
_MAPPED_BYTES = 256 << 10
"""A smaller parcel is copied out: until Python 3.13 a mapped one keeps a file descriptor for its life."""

_TRACKED: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickler that also takes local functions and classes, and passes tensor elements out of band."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not Tensor:
            return super().reducer_override(obj)
        elements = pickle.PickleBuffer(bytes_of(obj))
        return _rebuilt, (elements, obj.dtype.name, tuple(obj.shape), obj.requires_grad)


def _rebuilt(elements: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    made = over_bytes(elements, native.to_dtype(dtype), shape)
    if requires_grad:
        made.requires_grad = True
    return made


def pack(content: Any) -> int:
    """Pickle an object into new shared memory, tensors as CPU tensors, and return its file descriptor.

    The elements of arrays and tensors are copied once, straight into that memory.
    """
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(content)
    parts = [file.getbuffer(), *(each.raw() for each in buffers)]
    lengths = struct.pack(f"<{len(parts) + 1}Q", len(parts), *map(len, parts))
    descriptor = anonymous_file("accelera-parcel")
    try:
        place = _written(descriptor, memoryview(lengths), 0)
        for part in parts:
            place = _written(descriptor, part, _aligned(place))
        os.ftruncate(descriptor, _aligned(place))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _written(descriptor: int, part: memoryview, place: int) -> int:
    """Write a part at an offset; return the offset behind it."""
    done = 0
    while done < len(part):
        done += os.pwrite(descriptor, part[done:], place + done)
    return place + done


def _aligned(place: int) -> int:
    return -(-place // _ALIGNMENT) * _ALIGNMENT


def unpack(descriptor: int, *, private: bool = False) -> Any:
    """Return the object in memory made by `pack`, without a copy where mapped; close the descriptor.

    Parameters
    ----------
    descriptor
        As returned by `pack`, here or in another process.
    private
        Writing to the arrays changes nothing for other processes.

    """
    try:
        whole = memoryview(_contents(descriptor, private))
    finally:
        os.close(descriptor)
    (count,) = struct.unpack_from("<Q", whole)
    parts, place = [], 8 * (count + 1)
    for length in struct.unpack_from(f"<{count}Q", whole, 8):
        place = _aligned(place)
        parts.append(whole[place : place + length])
        place += length
    return pickle.loads(parts[0], buffers=parts[1:])


def _contents(descriptor: int, private: bool) -> mmap.mmap | bytearray:
    size = os.fstat(descriptor).st_size
    if size >= _MAPPED_BYTES:
        access = mmap.ACCESS_COPY if private else mmap.ACCESS_WRITE
        return mmap.mmap(descriptor, size, access=access, **_TRACKED)
    found = bytearray(size)
    os.preadv(descriptor, [found], 0)
    return found
