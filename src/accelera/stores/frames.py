"""Data frames of pandas and polars: read column by column from their memory, without a copy of the frame."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np

from accelera.errors import DTypeError, StoreError
from accelera.stores.array import ArrayStore
from accelera.stores.contract import Layout, Store
from accelera.stores.dtypes import as_bytes_of, parse_dtype
from accelera.stores.joined import JoinedStore
from accelera.stores.regions import Region, check_transfer


@final
class ColumnsStore(Store):
    """Columns of one element type in memory, each an array or several, seen as a matrix; it is read only."""

    tier = "ram"

    def __init__(self, columns: Sequence[Sequence[np.ndarray[Any, Any]]], name: str) -> None:
        self.name = name
        self.dtype = parse_dtype(columns[0][0].dtype, op="open_store")
        self.shape = (sum(map(len, columns[0])), len(columns))
        self._columns: Sequence[Sequence[np.ndarray[Any, Any]]] | None = columns

    def _open(self, op: str) -> Sequence[Sequence[np.ndarray[Any, Any]]]:
        if self._columns is None:
            raise StoreError(f"[{op}] {self.name} is closed; open it again")
        return self._columns

    def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
        """Copy ``region`` into ``out``, column by column; return its bytes."""
        columns = self._open("read")
        check_transfer("read", self.shape, self.dtype, region, out)
        rows, along = region
        target = as_bytes_of(out)
        for place, column in enumerate(columns[along]):
            for source, within in _pieces(column, rows):
                np.copyto(target[within, place], as_bytes_of(source))
        return out.nbytes

    def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
        """Raise StoreError: frames are read only."""
        self._open("write")
        raise StoreError(f"[write] {self.name} {self.read_only}")

    @property
    def read_only(self) -> str:
        """Reason that nothing can be written here."""
        return "is read only; write into an array, or to a path"

    @property
    def layout(self) -> Layout:
        """Columns, in which neighbors are adjacent."""
        self._open("layout")
        return Layout((1, 0), self.dtype.itemsize)

    def close(self) -> None:
        """Release the columns."""
        self._columns = None


def _pieces(
    column: Sequence[np.ndarray[Any, Any]], rows: slice
) -> Iterator[tuple[np.ndarray[Any, Any], slice]]:
    """Yield the elements of ``rows`` in each array of a column, and their place among the rows."""
    indices = range(rows.start, rows.stop, rows.step or 1)
    ends = list(itertools.accumulate(map(len, column)))
    done = 0
    for part, end in zip(column, ends, strict=True):
        count = len(range(indices[done], end, indices.step)) if done < len(indices) else 0
        here = indices[done : done + count]
        if here:
            first = end - len(part)
            yield part[here[0] - first : here[-1] - first + 1 : indices.step], slice(done, done + len(here))
            done += len(here)


def open_polars(frame: Any) -> Store | np.ndarray[Any, Any] | None:
    """Return the store of a polars frame or series, or an array over its memory.

    None if its elements must be converted. A series has one axis, a frame two.

    Raises DTypeError for nulls and for columns that hold no numbers.
    """
    series = [frame] if not hasattr(frame, "columns") else frame.get_columns()
    for column in series:
        _require_numbers(column)
    array = shared_array(frame)
    if array is not None:
        return array
    try:
        parts = [[part.to_numpy(allow_copy=False) for part in each.get_chunks()] for each in series]
    except RuntimeError:  # Booleans are bits there
        return None
    if len(series) == 1 and series[0] is frame:
        return JoinedStore([ArrayStore(part, name="Series") for part in parts[0]], 0)
    return _joined_columns(parts)


def open_pandas(frame: Any) -> Store | np.ndarray[Any, Any] | None:
    """Return the store of a pandas frame or series, or an array over its memory.

    None if its elements must be converted.
    """
    array = shared_array(frame)
    if array is not None or frame.ndim != 2 or any(not isinstance(each, np.dtype) for each in frame.dtypes):
        return array
    return _joined_columns([[frame.iloc[:, place].to_numpy()] for place in range(frame.shape[1])])


def shared_array(frame: Any) -> np.ndarray[Any, Any] | None:
    """Return an array over the memory of a frame, None if NumPy would have to copy its columns."""
    try:
        array = np.array(frame, copy=False)
    except (ValueError, TypeError, RuntimeError):
        return None
    return None if array.dtype == object else array


def _joined_columns(columns: Sequence[Sequence[np.ndarray[Any, Any]]]) -> ColumnsStore | None:
    dtypes = {part.dtype for column in columns for part in column}
    return ColumnsStore(columns, "DataFrame") if len(dtypes) == 1 and dtypes != {np.dtype(object)} else None


def _require_numbers(series: Any) -> None:
    """Raise DTypeError, which names the column, for nulls and for elements that are no numbers."""
    nulls = series.null_count()
    if nulls:
        raise DTypeError(
            f"[open_store] nulls in column {series.name!r} of a polars frame: {nulls} found, none expected, "
            "since no operation leaves elements out. Replace them: frame.fill_null(value)"
        )
    kind = series.dtype
    if not (kind.is_numeric() or kind.is_nested() or str(kind) == "Boolean"):
        raise DTypeError(
            f"[open_store] column {series.name!r} of a polars frame holds {kind}, numbers expected. Leave it "
            "out: frame.select(...)"
        )
