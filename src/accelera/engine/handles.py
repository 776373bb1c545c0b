"""What a caller holds, told apart without loading torch."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np

from accelera.engine.registry import unwrapped
from accelera.errors import ArgumentError, ShapeError
from accelera.settings import current
from accelera.stores import Store, is_foreign, is_sparse, open_store, result_path

_DIRECT = {"auto": None, "always": True, "never": False}


def open_operand(operand: Any) -> Store:
    """Return the store of whatever a caller hands in, read around the page cache as the settings say."""
    return open_store(unwrapped(operand), direct=direct_io())


def direct_io() -> bool | None:
    """Return whether files go around the page cache: always, never, or (None) where it pays."""
    return _DIRECT[current().direct_io]


def lies_in_store(operand: Any) -> bool:
    """Return whether ``operand`` is a path, a store or an array that no tensor library can take as it is.

    Such are the arrays of Zarr, h5py, dask and xarray, SciPy's sparse ones, and those in the other byte
    order.
    """
    if isinstance(operand, np.ndarray):
        return not operand.dtype.isnative
    known = isinstance(operand, (str, PathLike, Store, FileResult))
    return known or is_foreign(operand) or is_sparse(operand)


@dataclass(frozen=True)
class FileResult:
    """A Zarr array that a result goes to, and how it shall be laid out."""

    path: str | PathLike[str]
    chunks: tuple[int, ...] | None = None
    """Extent of a chunk along each axis; None for the usual 4 MiB."""
    codec: str | None = None
    """How chunks are compressed, such as ``"zstd"`` or ``"gzip:6"``; None stores them as they are."""

    def chunks_for(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the chunk shape for a result of ``shape``; raises ShapeError when it has other axes."""
        chunks = self.chunks or ()
        if len(chunks) != len(shape) or any(each < 1 for each in chunks):
            raise ShapeError(
                f"[out] chunks={chunks} for a result of shape {shape}: one positive size per axis is needed"
            )
        return tuple(min(each, max(1, size)) for each, size in zip(chunks, shape, strict=True))


def file_result(out: Any, chunks: Any, codec: str | None) -> Any:
    """Return ``out``, with the layout wanted of a new Zarr array where one is.

    Raises ArgumentError when ``chunks`` or ``codec`` is given for anything else.
    """
    if chunks is None and codec is None:
        return out
    if not isinstance(out, (str, PathLike)) or result_path(out).suffix.lower() != ".zarr":
        raise ArgumentError(
            f"[out] chunks={chunks!r} and codec={codec!r} lay out a new Zarr array; give out= a name that "
            "ends in .zarr, or leave them out"
        )
    try:
        sizes = None if chunks is None else tuple(operator.index(each) for each in chunks)
    except TypeError as error:
        raise ShapeError(
            f"[out] chunks={chunks!r}: {error}; give whole numbers, one for each axis"
        ) from error
    return FileResult(out, sizes, codec)
