"""The buffer protocol of tensors of all layouts, with every set of flags, as NumPy answers."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import accelera.tensora as ts

FLAGS = {"WRITABLE": 0x1, "FORMAT": 0x4, "ND": 0x8, "STRIDES": 0x18}
FLAGS |= {"C": 0x38, "F": 0x58, "ANY": 0x98, "INDIRECT": 0x118}
COMBINATIONS = sorted(
    {
        sum({bit for bit in (1, 4, 8, 16, 32, 64, 128, 256) if any(FLAGS[name] & bit for name in names)})
        for count in range(len(FLAGS) + 1)
        for names in itertools.combinations(FLAGS, count)
    }
)

FORMATS = {b"l": b"q", b"L": b"Q"}
"""NumPy's names of formats that are the same on 64-bit systems."""

LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "rows": lambda x: x,
    "transposed": lambda x: x.T,
    "every second column": lambda x: x[:, ::2],
    "every second row": lambda x: x[::2],
    "middle rows": lambda x: x[1:4],
    "one column": lambda x: x[:, 2:3],
    "one row": lambda x: x[2:3],
    "element": lambda x: x[1, 2:3],
    "column": lambda x: x[:, 1],
    "no row": lambda x: x[2:2],
    "no element of a column": lambda x: x[:, 2:2].T,
    "new axes": lambda x: x[None, :, None],
    "transposed with a new axis": lambda x: x.T[:, None],
}


class View(ctypes.Structure):
    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


_request = ctypes.pythonapi.PyObject_GetBuffer
_request.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = [ctypes.c_void_p]


def _granted(owner: Any, flags: int) -> dict[str, Any] | None:
    """Fields of the buffer that `owner` lends for these flags, or None if it refuses."""
    view = View()
    try:
        _request(owner, ctypes.addressof(view), flags)
    except (BufferError, ValueError):
        return None
    axes = range(view.ndim)
    has_strides = bool(view.strides) and view.ndim > 0
    fields = {
        "len": view.len,
        "itemsize": view.itemsize,
        "readonly": view.readonly,
        "ndim": view.ndim,
        "format": FORMATS.get(view.format, view.format),
        "shape": [view.shape[i] for i in axes] if view.shape and view.ndim else None,
        "strides": [view.strides[i] for i in axes] if has_strides else None,
        "contents": None if has_strides else ctypes.string_at(view.buf, view.len) if view.len else b"",
    }
    _release(ctypes.addressof(view))
    return fields


def _same(actual: dict[str, Any] | None, expected: dict[str, Any] | None) -> bool:
    if actual is None or expected is None or actual["len"] or actual["strides"] is None:
        return actual == expected
    # Strides of no elements mean nothing.
    return {**actual, "strides": None} == {**expected, "strides": None}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_flags_are_granted_as_numpy_grants_them(layout):
    array = LAYOUTS[layout](np.arange(30, dtype=np.int32).reshape(5, 6))
    tensor = LAYOUTS[layout](ts.asarray(np.arange(30, dtype=np.int32).reshape(5, 6)))
    for flags in COMBINATIONS:
        assert _same(_granted(tensor, flags), _granted(array, flags)), hex(flags)


@pytest.mark.parametrize("flags", COMBINATIONS)
def test_memory_that_is_read_only_is_not_lent_for_writing(flags):
    array = np.arange(6.0)
    array.flags.writeable = False
    assert _granted(ts.from_dlpack(array), flags) == _granted(array, flags)


@st.composite
def views(draw: st.DrawFn) -> tuple[Any, Any]:
    """A view of an array and the same view of a tensor."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    dtype = draw(st.sampled_from([np.bool_, np.uint8, np.int64, np.float16, np.float32, np.float64]))
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    tensor = ts.asarray(array.copy())
    if not shape:
        return array, tensor
    order = tuple(draw(st.permutations(range(len(shape)))))
    steps = tuple(slice(None, None, draw(st.integers(1, 3))) for _ in shape)
    return array.transpose(order)[steps], ts.permute_dims(tensor, order)[steps]


@given(pair=views(), flags=st.sampled_from(COMBINATIONS))
def test_buffers_of_views_equal_numpys(pair, flags):
    array, tensor = pair
    assert _same(_granted(tensor, flags), _granted(array, flags))


@given(pair=views())
def test_memoryviews_of_views_equal_numpys(pair):
    array, tensor = pair
    actual, expected = memoryview(tensor), memoryview(array)
    for name in ("shape", "itemsize", "nbytes", "ndim", "readonly"):
        assert getattr(actual, name) == getattr(expected, name)
    if array.size:
        for name in ("strides", "c_contiguous", "f_contiguous", "contiguous"):
            assert getattr(actual, name) == getattr(expected, name)
    assert actual.tobytes() == expected.tobytes()
    assert np.dtype(actual.format) == array.dtype
    if actual.format != "e":
        assert actual.tolist() == expected.tolist()


@pytest.mark.parametrize("consume", [bytes, bytearray, hashlib.sha256, zlib.crc32])
@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.T, lambda x: x[:, ::2]])
def test_consumers_of_bytes_read_in_order_or_refuse(consume, view):
    array = np.arange(12, dtype=np.int16).reshape(3, 4)
    try:
        expected = consume(view(array))
    except (BufferError, ValueError):
        with pytest.raises(BufferError):
            consume(view(ts.asarray(array)))
        return
    actual = consume(view(ts.asarray(array)))
    assert getattr(actual, "digest", lambda: actual)() == getattr(expected, "digest", lambda: expected)()
