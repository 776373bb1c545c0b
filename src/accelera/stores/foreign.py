"""Arrays and frames of other libraries, recognized without importing any of them.

The libraries are Zarr, h5py, dask, xarray, pandas, polars and SciPy. What can be read chunk by chunk is; what
could only be loaded whole is refused, unless it is small.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from typing import Any, final

import numpy as np

from accelera.errors import DTypeError, ShapeError, StoreError, StoreFormatError
from accelera.memory._internal import ALWAYS_FITS_BYTES
from accelera.stores.chunked import ChunkedStore
from accelera.stores.frames import open_pandas, open_polars
from accelera.stores.regions import Borders, Region
from accelera.units import format_bytes

_ARRAYS = (
    ("zarr", "Array"),
    ("h5py", "Dataset"),
    ("dask.array", "Array"),
    ("xarray", "DataArray"),
    ("xarray", "Variable"),
)


def open_foreign(x: Any) -> Any:
    """Return the store of another library's array; an array inside it to be opened; None for neither.

    Raises DTypeError for sparse matrices, StoreError for groups and data sets of several arrays.
    """
    if _is_a(x, "zarr", "Array"):
        from accelera.stores.zarrstore import open_zarr_object

        return open_zarr_object(x)
    if _is_a(x, "h5py", "Dataset"):
        from accelera.stores.hdf5 import H5Store

        return H5Store(x)
    if _is_a(x, "dask.array", "Array"):
        return DaskStore(x)
    if _is_a(x, "xarray", "DataArray"):
        return _inside_xarray(x.variable, str(x.name or "DataArray"))
    if _is_a(x, "xarray", "Variable"):
        return _inside_xarray(x, "Variable")
    for library, kind in (("zarr", "Group"), ("h5py", "Group"), ("xarray", "Dataset")):
        if _is_a(x, library, kind):
            raise StoreFormatError(f"[open_store] a {library}.{kind} holds several arrays; give one of them")
    if _is_a(x, "polars", "LazyFrame"):
        raise DTypeError("[open_store] a LazyFrame is a query; compute it: frame.collect()")
    for library, open_data in (("pandas", open_pandas), ("polars", open_polars)):
        if _is_a(x, library, "DataFrame") or _is_a(x, library, "Series"):
            return open_data(x)
    if is_sparse(x):
        raise DTypeError(
            f"[open_store] a sparse matrix of shape {x.shape}: only matmul takes one; give x.toarray() to "
            "use all its elements, zeros included"
        )
    return None


def refuse_foreign_result(out: Any) -> None:
    """Raise StoreError for arrays of other libraries into which nothing can be written."""
    if _is_a(out, "dask.array", "Array"):
        raise StoreError("[out] a dask array cannot be written; give a path such as 'C.zarr', and open that")
    if _is_a(out, "xarray", "DataArray") or _is_a(out, "xarray", "Variable"):
        raise StoreError("[out] an xarray object cannot be written; give its array: out=x.values, or a path")


def is_foreign(x: Any) -> bool:
    """Return whether ``x`` is an array of Zarr, h5py, dask or xarray: its elements may lie anywhere."""
    return any(_is_a(x, library, kind) for library, kind in _ARRAYS)


def is_sparse(x: Any) -> bool:
    """Return whether ``x`` is a sparse matrix or array of SciPy."""
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(x))


def within_small(x: Any) -> Any:
    """Return an object with ``__array__`` when NumPy shares its memory, or copies no more than 1 MiB.

    Raises StoreError for others: they would be loaded whole, outside any budget.
    """
    if hasattr(x, "__array_interface__") or _has_buffer(x):
        return x
    size = _size_of(x)
    if size is not None and size <= ALWAYS_FITS_BYTES:
        return x
    said = "of a size that it does not tell" if size is None else f"of {format_bytes(size)}"
    raise StoreError(
        f"[open_store] a {type(x).__name__} {said} could only be loaded whole, outside the budget; load it "
        "yourself with np.asarray(x), or save it to a file and give that"
    )


def _has_buffer(x: Any) -> bool:
    try:
        memoryview(x).release()
    except TypeError:
        return False
    return True


def _size_of(x: Any) -> int | None:
    """Return the bytes of an array-like by its ``nbytes`` or columns, or 16 per element."""
    size = getattr(x, "nbytes", None)
    if not isinstance(size, int):
        column_bytes = [int(getattr(dtype, "itemsize", 0)) for dtype in getattr(x, "dtypes", ())]
        if column_bytes and all(column_bytes):
            return len(x) * sum(column_bytes)
        shape = getattr(x, "shape", None)
        try:
            return None if shape is None else 16 * math.prod(int(each) for each in shape)
        except (TypeError, ValueError):
            return None
    return size


def _is_a(x: Any, module: str, name: str) -> bool:
    library = sys.modules.get(module)
    kind = getattr(library, name, None)
    return isinstance(kind, type) and isinstance(x, kind)


@final
class DaskStore(ChunkedStore):
    """A dask array, whose chunks are computed, one at a time by each reader, when they are read.

    A few chunks are counted for that. What else a graph holds while it computes one, only dask knows.
    """

    fault = "dask could not compute it"
    copies = 4

    def __init__(self, array: Any) -> None:
        if any(math.isnan(size) for size in array.shape):
            raise StoreError(
                "[open_store] a dask array of unknown chunk sizes; call its compute_chunk_sizes() first"
            )
        if not isinstance(array._meta, np.ndarray) or isinstance(array._meta, np.ma.MaskedArray):
            raise DTypeError(
                f"[open_store] a dask array of {type(array._meta).__name__}; NumPy's arrays are needed"
            )
        super().__init__(array, "dask array", [max((*sizes, 1)) for sizes in array.chunks])

    def _fetch(self, array: Any, part: Region, out: np.ndarray[Any, Any]) -> None:
        _copy_same_shape(out, array[part].compute(scheduler="synchronous"), self.name)

    def _borders(self) -> Borders:
        chunks: Borders = self._open("read").chunks
        return chunks

    def __reduce__(self) -> Any:
        """Pickle as dask pickles its arrays."""
        return DaskStore, (self._open("pickle"),)

    def fingerprint(self) -> Mapping[str, Any]:
        """Return dask's name for the computation, which tells its inputs apart as far as dask does."""
        return {"kind": "dask", "name": self._open("fingerprint").name}


@final
class XarrayStore(ChunkedStore):
    """A variable of xarray that is not loaded yet: regions are loaded, the rest is left alone."""

    fault = "xarray could not load it"
    copies = 6  # the file library's and those in which values are decoded

    def __init__(self, variable: Any, name: str) -> None:
        super().__init__(variable, name, _encoded_chunk(variable))

    def _fetch(self, array: Any, part: Region, out: np.ndarray[Any, Any]) -> None:
        _copy_same_shape(out, np.asarray(array[part].values), self.name)

    def __reduce__(self) -> Any:
        """Pickle as xarray pickles its variables: the file is opened again."""
        return XarrayStore, (self._open("pickle"), self.name)

    def fingerprint(self) -> Mapping[str, Any] | None:
        """Return size, time and inode of the file that the variable comes from; None where it names none."""
        variable = self._open("fingerprint")
        try:
            status = os.stat(variable.encoding.get("source", ""))
        except (OSError, ValueError, TypeError):
            return None
        return {
            "kind": "xarray",
            "variable": self.name,
            "shape": list(self.shape),
            "size": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "inode": status.st_ino,
        }


def _copy_same_shape(out: np.ndarray[Any, Any], values: Any, name: str) -> None:
    """Copy ``values`` to ``out``; raises ShapeError instead of broadcasting them."""
    if np.shape(values) != out.shape:
        raise ShapeError(
            f"[read] {name}: a region of shape {out.shape} was computed with shape {np.shape(values)}; "
            "correct the shapes that the array announces (for map_blocks: give chunks=)"
        )
    np.copyto(out, values)


def _inside_xarray(variable: Any, name: str) -> Any:
    """Return what a variable holds when that can be opened, or a store that loads regions of it."""
    data = variable._data
    if isinstance(data, np.ndarray) or _is_a(data, "dask.array", "Array"):
        return data
    if type(data).__module__.startswith("xarray."):
        return XarrayStore(variable, name)
    raise DTypeError(f"[open_store] an xarray object over a {type(data).__name__}; give that array itself")


def _encoded_chunk(variable: Any) -> tuple[int, ...] | None:
    """Return the chunk shape of the file that a variable comes from."""
    for name in ("chunksizes", "chunks"):
        chunk = variable.encoding.get(name)
        if chunk is not None and len(chunk) == variable.ndim and all(isinstance(each, int) for each in chunk):
            return tuple(chunk)
    return None
