"""Tensors over raw bytes, raw bytes of tensors, and tensors that share their memory."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from accelera.errors import ArgumentError
from accelera.tensora.core import DType, Tensor, native
from accelera.tensora.inspection import placed

_BFLOAT16 = native.dtype.bfloat16
_UINT16 = native.dtype.uint16
_STAGING_BYTES = 4 << 20

# Places in DLPack's `DLManagedTensorVersioned`, and its codes of kinds.
_DATA, _CODE = 32, 52
_KINDS = {_UINT16: 1, _BFLOAT16: 4}

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _exported(tensor: Any) -> tuple[Any, int]:
    """Return a DLPack capsule of a tensor, and the address of its `DLManagedTensorVersioned`."""
    capsule = tensor.detach().__dlpack__(max_version=(1, 0))
    return capsule, int(_pointer_of(capsule, b"dltensor_versioned") or 0)


class _Relabelled:
    """Memory of a tensor as elements of another kind of the same size, for `from_dlpack`."""

    def __init__(self, tensor: Any, dtype: DType) -> None:
        self._tensor, self._dtype = tensor, dtype

    def __dlpack__(self, **_: Any) -> Any:
        capsule, address = _exported(self._tensor)
        ctypes.c_uint8.from_address(address + _CODE).value = _KINDS[self._dtype]
        return capsule


def relabelled(tensor: Any, dtype: DType) -> Tensor:
    """Bits of a uint16 or bfloat16 tensor as the other of these types, over the same memory."""
    return native.from_dlpack(_Relabelled(tensor, dtype), None)


def over_bytes(buffer: Any, dtype: DType, shape: tuple[int, ...], offset: int = 0) -> Tensor:
    """Tensor over a buffer, which it keeps alive; a copy of those bytes that are not aligned.

    Parameters
    ----------
    buffer
        Object with the buffer protocol; the tensor is as writable as it.
    dtype
        Element type.
    shape
        Of the tensor.
    offset
        Bytes of the buffer before the first element.

    """
    count = math.prod(shape)
    if not count:
        return native.empty(shape, dtype)
    stored = np.dtype("uint16" if dtype == _BFLOAT16 else dtype.name)
    flat = np.frombuffer(buffer, np.uint8, count * stored.itemsize, offset)
    if flat.ctypes.data % stored.itemsize:
        flat = flat.copy()
    made = native.from_buffer(flat.view(stored).reshape(shape))
    return relabelled(made, _BFLOAT16) if dtype == _BFLOAT16 else made


def bytes_of(tensor: Any) -> Any:
    """Elements of a tensor in row-major order as a NumPy array of bytes, over its memory where that is so."""
    plain = native.contiguous(placed(tensor.detach(), "cpu"))
    if not plain.size:
        return np.empty(0, np.uint8)
    if plain.dtype == _BFLOAT16:
        plain = relabelled(plain, _UINT16)
    return np.asarray(memoryview(plain)).reshape(-1).view(np.uint8)


def staged_bytes(tensors: Iterable[Any]) -> Iterator[memoryview]:
    """Elements of tensors in row-major order, in pieces of at most 4 MiB that are valid until the next one.

    The memory of a tensor is not lent, so that operations on it may be deferred afterwards as before.
    """
    given = [each for each in tensors if each.size]
    staging = np.empty(min(_STAGING_BYTES, max((each.nbytes for each in given), default=0)), np.uint8)
    for tensor in given:
        size = native.itemsize(tensor.dtype)
        pieces = staging.size // size
        window = over_bytes(staging, tensor.dtype, (pieces,))
        flat = native.reshape(native.contiguous(tensor.detach()), (tensor.size,))
        for first in range(0, tensor.size, pieces):
            piece = flat[first : first + pieces]
            window[: piece.size] = placed(piece, "cpu")
            yield staging[: piece.size * size].data
        del flat, piece


def fill(target: Any, source: Any) -> None:
    """Write the elements of a tensor into another of the same shape, of any type and on any device."""
    target.detach()[...] = placed(source, target.device)


def _same_memory(a: Any, b: Any) -> bool:
    """Return whether two tensors of the same shape and type have the same memory and strides."""
    if not native.shares_memory(a, b) or a.strides != b.strides:
        return False
    if a.device != "cpu":
        return a is b
    exports = [_exported(each) for each in (a, b)]
    first, second = (ctypes.c_uint64.from_address(address + _DATA).value for _, address in exports)
    return first == second


def first_names(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Name under which each tensor is kept: of those with the same memory, the first in alphabetical order.

    Raises
    ------
    TypeError
        If something else than tensors is given, or a name is no string.

    """
    kept: dict[str, str] = {}
    alike: dict[tuple[Any, ...], list[str]] = {}
    for name in sorted(require_named_tensors(tensors)):
        tensor = tensors[name]
        others = alike.setdefault((tensor.dtype, tuple(tensor.shape)), [])
        twin = next((each for each in others if tensor.size and _same_memory(tensors[each], tensor)), name)
        kept[name] = twin
        if twin == name:
            others.append(name)
    return kept


def require_named_tensors(tensors: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the mapping if it is tensors by name; TypeError otherwise."""
    for name, each in tensors.items():
        if not isinstance(name, str):
            raise ArgumentError(f"[serialization] {name!r} as the name of a tensor; give strings")
        if not isinstance(each, Tensor):
            raise ArgumentError(
                f"[serialization] {name!r} is a {type(each).__name__}, and a file holds tensors; "
                "convert it with tensora.asarray, or leave it out"
            )
    return tensors
