"""Results of one stage of an expression that a later stage reads: in RAM, or in a file without a name."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, final

import numpy as np

from accelera.errors import StoreError
from accelera.stores import STAGING_BYTES_PER_THREAD, ArrayStore, FlatFile, Layout, Placement, Region, Store
from accelera.units import format_bytes

Array = np.ndarray[Any, np.dtype[Any]]


@final
class Intermediate(Store):
    """An array between two stages, row by row; it takes no memory or disk before the first stage writes it.

    It is in RAM unless ``put_in`` names a folder: a file there has no name, and vanishes with the
    process, however that ends.
    """

    def __init__(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.name = name
        self.shape, self.dtype = shape, dtype
        self.tier = "ram"
        self._folder: Path | None = None
        self._file: FlatFile | None = None
        self._array: Array | None = None

    def put_in(self, folder: Path | None) -> None:
        """Say where it will be: in a file in ``folder``, or (None) in RAM."""
        self._folder = folder
        self.tier = "ram" if folder is None else "disk"

    @property
    def ram_bytes(self) -> int:
        """What it takes of the budget while it is needed."""
        return self.nbytes if self._folder is None else 0

    def resident(self) -> Array | None:
        """Return the array when it is in RAM; its pages are taken only as they are written."""
        if self._folder is not None:
            return None
        if self._array is None:
            self._array = np.empty(self.shape, self.dtype)
        return self._array

    def read(self, region: Region, out: Array) -> int:
        """Copy ``region`` into ``out``; return its bytes."""
        return self._opened().read(region, out)

    def write(self, region: Region, data: Array) -> int:
        """Copy ``data`` into ``region``; return its bytes."""
        return self._opened().write(region, data)

    def _opened(self) -> Store:
        array = self.resident()
        if array is not None:
            return ArrayStore(array, name=self.name)
        if self._file is None:
            self._file = self._unnamed_file()
        return self._file

    def _unnamed_file(self) -> FlatFile:
        folder = str(self._folder)
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                descriptor = os.dup(file.fileno())
            os.posix_fallocate(descriptor, 0, max(self.nbytes, 1))
        except OSError as error:
            raise StoreError(
                f"[evaluate] intermediate {self.name} needs {format_bytes(self.nbytes)} in {folder}: "
                f"{error.strerror}; free some space, give a larger budget, or set ACCELERA_SPILL to a folder "
                "on another disk"
            ) from error
        return FlatFile(
            Path(folder) / self.name, descriptor, Placement.dense(self.shape, self.dtype), writable=True
        )

    def release(self) -> None:
        """Give the memory or the disk space back."""
        self._array = None
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def layout(self) -> Layout:
        """Row by row."""
        strides = Placement.dense(self.shape, self.dtype).strides
        return Layout.of_strides(self.shape, strides, self.dtype.itemsize)

    @property
    def scratch_bytes(self) -> int:
        """The staging buffer of the calling thread, for a file."""
        return 0 if self._folder is None else STAGING_BYTES_PER_THREAD
