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

    Raises DTypeError for elements a store cannot hold; a foreign byte order is refused as well.
    """

    tier = "ram"

    def __init__(self, array: np.ndarray[Any, Any], *, name: str = "array") -> None:
        self.dtype = parse_dtype(array.dtype, op="open_store")
        if array.dtype != self.dtype:
            raise DTypeError(
                f"[open_store] {name} has the foreign byte order {array.dtype.str}; "
                "convert it with array.astype(array.dtype.newbyteorder('='))"
            )
        self.shape = array.shape
        self.name = name
        self._array: np.ndarray[Any, Any] | None = array

    def _open(self, op: str) -> np.ndarray[Any, Any]:
        if self._array is None:
            raise StoreError(f"[{op}] {self.name} is closed; open it again")
        return self._array

    def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
        """Copy ``region`` into ``out``; return its bytes."""
        array = self._open("read")
        check_transfer("read", self.shape, self.dtype, region, out)
        np.copyto(as_bytes_of(out), as_bytes_of(array[view_key(region)]))
        return out.nbytes

    def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
        """Copy ``data`` into ``region``; return its bytes."""
        array = self._open("write")
        check_transfer("write", self.shape, self.dtype, region, data)
        if not array.flags.writeable:
            raise StoreError(f"[write] {self.name} is a read-only array; give a writeable one")
        np.copyto(as_bytes_of(array[view_key(region)]), as_bytes_of(data))
        return data.nbytes

    @property
    def layout(self) -> Layout:
        """The array's strides."""
        return Layout.of_strides(self.shape, self._open("layout").strides, self.dtype.itemsize)

    def resident(self) -> np.ndarray[Any, Any]:
        """Return the array itself."""
        return self._open("resident")

    def close(self) -> None:
        """Let go of the array."""
        self._array = None


@final
class ArrayOutput(OutputStore):
    """A result written into a NumPy array; there is nothing to publish.

    Raises ShapeError, DTypeError or StoreError when ``array`` cannot take the result.
    """

    tier = "ram"

    def __init__(self, array: np.ndarray[Any, Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        if array.shape != shape:
            raise ShapeError(f"[create_store] an array of shape {array.shape} for a result of shape {shape}")
        if array.dtype != dtype:
            raise DTypeError(f"[create_store] an array of {array.dtype} for a result of {dtype}")
        if not array.flags.writeable:
            raise StoreError("[create_store] the result's array is read-only; give a writeable one")
        self._store = ArrayStore(array)
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

    def resident(self) -> np.ndarray[Any, Any]:
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
