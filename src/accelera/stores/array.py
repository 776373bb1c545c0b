"""Arrays in host RAM: used in place, never copied."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from accelera.errors import DTypeError, ShapeError, StoreError
from accelera.stores.contract import Layout, OutputStore, Store
from accelera.stores.dtypes import as_bytes_of, parse_dtype
from accelera.stores.regions import Region, check_transfer, view_key


@final
class ArrayStore(Store):
    """A NumPy array of any strides, seen as a store.

    The other byte order is swapped as elements are read and written. Raises DTypeError for elements a
    store cannot hold, and for masked ones.
    """

    tier = "ram"

    def __init__(self, array: np.ndarray[Any, Any], *, name: str = "array") -> None:
        self.dtype = parse_dtype(array.dtype, op="open_store")
        self._swapped = array.dtype != self.dtype
        self.shape = array.shape
        self.name = name
        self._array: np.ndarray[Any, Any] | None = plain_array("open_store", array)

    def _open(self, op: str) -> np.ndarray[Any, Any]:
        if self._array is None:
            raise StoreError(f"[{op}] {self.name} is closed; open it again")
        return self._array

    def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
        """Copy ``region`` into ``out``; return its bytes."""
        array = self._open("read")
        check_transfer("read", self.shape, self.dtype, region, out)
        _move(array[view_key(region)], out, self._swapped)
        return out.nbytes

    def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
        """Copy ``data`` into ``region``; return its bytes."""
        array = self._open("write")
        check_transfer("write", self.shape, self.dtype, region, data)
        if not array.flags.writeable:
            raise StoreError(f"[write] {self.name} {_FROZEN}")
        _move(data, array[view_key(region)], self._swapped)
        return data.nbytes

    @property
    def read_only(self) -> str | None:
        """Why nothing can be written into the array: its flag, or elements that share memory."""
        array = self._open("read_only")
        if not array.flags.writeable:
            return _FROZEN
        return "has elements that share memory; give an array of its own" if _overlaps_itself(array) else None

    @property
    def layout(self) -> Layout:
        """The array's strides."""
        return Layout.of_strides(self.shape, self._open("layout").strides, self.dtype.itemsize)

    def resident(self) -> np.ndarray[Any, Any] | None:
        """Return the array itself; None in the other byte order, and between the fields of records."""
        array = self._open("resident")
        return None if self._swapped or not has_whole_strides(array) else array

    def close(self) -> None:
        """Let go of the array."""
        self._array = None


_FROZEN = "is a read-only array; give a writeable one"


def plain_array(op: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return ``array`` without its subclass, sharing memory.

    Raises DTypeError when it has masked elements: no operation here leaves elements out.
    """
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        count = int(np.ma.getmaskarray(array).sum())
        raise DTypeError(
            f"[{op}] a masked array with {count} masked elements, and no operation leaves elements out; give "
            "array.filled(value), or array.data to use what is under the mask"
        )
    plain: np.ndarray[Any, Any] = array.view(np.ndarray) if type(array) is not np.ndarray else array
    return plain


def has_whole_strides(array: np.ndarray[Any, Any]) -> bool:
    """Return whether neighbours lie whole elements apart; those of a field of records may not."""
    steps = zip(array.strides, array.shape, strict=True)
    return bool(array.flags.aligned) and all(step % array.itemsize == 0 for step, size in steps if size > 1)


def _move(source: np.ndarray[Any, Any], target: np.ndarray[Any, Any], swap: bool) -> None:
    """Copy elements of the same type, one side in the other byte order where ``swap`` says so."""
    np.copyto(as_bytes_of(target), as_bytes_of(source))
    if swap:
        target.byteswap(inplace=True)


def _overlaps_itself(array: np.ndarray[Any, Any]) -> bool:
    """Return whether two elements share memory, or may: axes that reach into one another."""
    reach = array.itemsize
    steps = sorted(
        (abs(step), size) for step, size in zip(array.strides, array.shape, strict=True) if size > 1
    )
    for step, size in steps:
        if step < reach:
            return array.size > 0
        reach += step * (size - 1)
    return False


@final
class ArrayOutput(OutputStore):
    """A result written into a NumPy array; there is nothing to publish.

    Raises ShapeError, DTypeError or StoreError when ``array`` cannot take the result.
    """

    tier = "ram"

    def __init__(self, array: np.ndarray[Any, Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        if array.shape != shape:
            raise ShapeError(f"[create_store] an array of shape {array.shape} for a result of shape {shape}")
        if array.dtype.newbyteorder("=") != dtype:
            raise DTypeError(f"[create_store] an array of {array.dtype} for a result of {dtype}")
        self._store = ArrayStore(array)
        if self._store.read_only is not None:
            raise StoreError(f"[create_store] the result's array {self._store.read_only}")
        self.shape, self.dtype, self.name = shape, dtype, self._store.name

    def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
        """Copy ``region`` into ``out``; return its bytes."""
        return self._store.read(region, out)

    def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
        """Copy ``data`` into ``region``; return its bytes."""
        return self._store.write(region, data)

    @property
    def layout(self) -> Layout:
        """The array's strides."""
        return self._store.layout

    def resident(self) -> np.ndarray[Any, Any] | None:
        """Return the array itself."""
        return self._store.resident()

    def commit(self) -> None:
        """Do nothing: the array is the result."""

    def abort(self, *, keep_partial: bool = False) -> None:
        """Let go of the array."""
        self._store.close()

    def close(self) -> None:
        """Let go of the array."""
        self._store.close()
