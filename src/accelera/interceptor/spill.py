"""Spilled results: written to a file tile by tile, then mapped, so that no private memory holds them.

The file has no name, so it is gone when nobody holds the tensor, whatever happens to the process.
Writing through the mapping would take a page fault for every 4 KiB; tiles go through the descriptor.
"""

from __future__ import annotations

import ctypes
import math
import os
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from accelera._descriptors import reserve_space
from accelera.devices._internal import shim_library
from accelera.errors import BudgetExceededError, StoreError
from accelera.interceptor.config import InterceptionConfig, active_config, stays_in_memory
from accelera.interceptor.file_mapping import FileMapping
from accelera.interceptor.statistics import statistics
from accelera.interceptor.tiling import Region, ResultLayout, contiguous_strides, nbytes
from accelera.stores._internal import FlatFile, Placement, is_in_memory
from accelera.units import format_bytes

_NUMBERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_NAME_ANOTHER = "name a folder on a disk with spill_dir= or ACCELERA_SPILL, or raise the budget"


@final
class FileTarget:
    """A result whose pieces are written to a file; takes over ``descriptor``."""

    def __init__(self, path: Path, descriptor: int, result: ResultLayout) -> None:
        self.memory: torch.Tensor | None = None
        self.shape, self.strides, self.dtype = result
        steps = tuple(stride * self.dtype.itemsize for stride in self.strides)
        placement = Placement(self.shape, same_size(self.dtype), 0, steps)
        self._path, self._descriptor = path, descriptor
        self._file = FlatFile(path, descriptor, placement, writable=True, direct=False)

    def put(self, region: Region, piece: torch.Tensor) -> None:
        """Write one piece, from any device."""
        self._file.write(region, as_array(piece.to("cpu", self.dtype)))

    def flat(self) -> FileTarget:
        """Return the same file as a vector."""
        as_vector = ResultLayout((math.prod(self.shape),), (1,), self.dtype)
        return FileTarget(self._path, os.dup(self._descriptor), as_vector)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@final
class SpilledResult:
    """One result in a file of the spill folder.

    Raises StoreError when the folder cannot take it.
    """

    def __init__(self, op: str, folder: Path, result: ResultLayout) -> None:
        size = max(nbytes(result.shape, result.dtype), result.dtype.itemsize)
        descriptor = _unnamed_file(op, folder, size)
        self._result = result
        self._mapping = _mapping(op, descriptor, size)
        self.target = FileTarget(folder / op, descriptor, result)
        """Where pieces are put."""
        statistics.file_begun(op, size)
        weakref.finalize(self._mapping, statistics.file_ended, size)

    def tensor(self) -> torch.Tensor:
        """Return the result, mapped; the file lives as long as a tensor that shows it."""
        shape, strides, dtype = self._result
        flat = torch.frombuffer(self._mapping, dtype=dtype)
        _make_resizable(flat)
        return flat.as_strided(shape, strides)

    def close(self) -> None:
        """Close the file, which the mapping keeps."""
        self.target.close()


Empty = Callable[[tuple[int, ...], torch.dtype, torch.device], torch.Tensor]
"""Source of memory for results: shape, dtype and device to a contiguous tensor of any contents."""


def empty(
    op: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, kept_bytes: int = 0
) -> torch.Tensor:
    """Return a dense tensor of any contents for a result: in memory if it fits, else over a mapped file.

    A file is filled through its mapping, in any order, which costs several times what ``FileTarget.put``
    does. ``kept_bytes`` are needed besides for the work.

    Raises
    ------
    BudgetExceededError
        It does not fit, and may not or cannot go to a file.
    StoreError
        The spill folder cannot take it.
    """
    config, size = active_config(), nbytes(shape, dtype)
    if config is None or stays_in_memory(size + kept_bytes, device):
        return torch.empty(shape, dtype=dtype, device=device)
    if config.spill is None or device.type != "cpu":
        budget = config.limit(device).budget()
        raise BudgetExceededError(
            f"[{op}] a result of {format_bytes(size)} on {device} and {format_bytes(kept_bytes)} to work in "
            f"are more than the {budget.allowance}; {budget.remedy(size + kept_bytes)}",
            needed_bytes=size + kept_bytes,
            budget_bytes=budget.limit_bytes,
        )
    layout = ResultLayout(shape, contiguous_strides(shape), dtype)
    spill = SpilledResult(op, spill_folder(op, config), layout)
    spill.close()
    return spill.tensor()


def spill_folder(op: str, config: InterceptionConfig) -> Path:
    """Return the folder for results; raises StoreError when nobody named one and the usual is in RAM."""
    folder = config.spill
    assert folder is not None
    if not config.names_spill and is_in_memory(folder):
        raise StoreError(
            f"[{op}] the result exceeds the budget, and the temporary folder {folder} lies in memory itself; "
            f"{_NAME_ANOTHER}"
        )
    return folder


def as_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a NumPy view of a CPU tensor, whatever its elements: as numbers of their size."""
    if tensor.itemsize == 16:
        return tensor.numpy()
    return tensor.view(_NUMBERS[tensor.itemsize]).numpy()


def same_size(dtype: torch.dtype) -> np.dtype[Any]:
    """Return the element type in which files hold elements of ``dtype``."""
    return np.dtype("c16") if dtype.itemsize == 16 else np.dtype(f"i{dtype.itemsize}")


def _make_resizable(tensor: torch.Tensor) -> None:
    """Let the storage of ``tensor`` be resized: torch then copies the contents to memory of its own.

    Without the shim torch refuses after ``resize_`` has changed the shape, as for ``torch.frombuffer``.
    """
    library = shim_library()
    if library is not None and hasattr(library, "accelera_make_resizable"):
        make_resizable = library.accelera_make_resizable
        make_resizable.restype, make_resizable.argtypes = None, [ctypes.c_void_p]
        make_resizable(tensor.untyped_storage()._cdata)


def _unnamed_file(op: str, folder: Path, nbytes: int) -> int:
    """Return a descriptor of a new file of ``nbytes`` that no folder lists; raises StoreError."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            descriptor = os.dup(file.fileno())
    except OSError as error:
        raise StoreError(
            f"[{op}] a result of {format_bytes(nbytes)} cannot be put into {folder}: {error.strerror}; "
            f"{_NAME_ANOTHER}"
        ) from error
    try:
        reserve_space(descriptor, nbytes)
    except OSError as error:
        os.close(descriptor)
        status = os.statvfs(folder)
        free = format_bytes(status.f_bavail * status.f_frsize)
        raise StoreError(
            f"[{op}] a result of {format_bytes(nbytes)} cannot be put into {folder}, where {free} are free: "
            f"{error.strerror}; {_NAME_ANOTHER}"
        ) from error
    return descriptor


def _mapping(op: str, descriptor: int, nbytes: int) -> FileMapping:
    """Map a file; raises StoreError when the system maps no more."""
    try:
        return FileMapping(os.dup(descriptor), nbytes)
    except OSError as error:
        os.close(descriptor)
        raise StoreError(
            f"[{op}] a result of {format_bytes(nbytes)} in a file cannot be mapped: {error.strerror}; let go "
            "of earlier results, or raise the limit of address space (ulimit -v, vm.max_map_count)"
        ) from error
