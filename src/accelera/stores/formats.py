"""The file formats by suffix, and what is said to them when a file is opened or begun.

A format is a module with two functions: ``open_path(source: Source) -> Store`` and
``create_path(target: Target) -> OutputStore``. Adding one is that file and one line of the table.
A format that needs a separate library has a third, ``load_library()``; one whose files are read by URLs has
``open_remote(url: Url, source: Source) -> Store``.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from accelera.errors import StoreError, StoreFormatError, UnknownNameError

_MODULES: dict[str, str] = {
    ".npy": "accelera.stores.npy",
    ".safetensors": "accelera.stores.safetensors",
    ".bin": "accelera.stores.raw",
    ".raw": "accelera.stores.raw",
    ".dat": "accelera.stores.raw",
    ".zarr": "accelera.stores.zarr",
    ".h5": "accelera.stores.hdf5",
    ".hdf5": "accelera.stores.hdf5",
}


@dataclass(frozen=True)
class Source:
    """A file to open, and what the caller knows about it."""

    path: Path
    key: str | None = None
    """Which array of a file that holds several."""
    shape: tuple[int, ...] | None = None
    dtype: np.dtype[Any] | None = None
    offset: int = 0
    """File position of the first element, for files without a header."""
    direct: bool | None = None
    """Go around the page cache: always, never, or (None) for what is not in it."""
    max_header_size: int | None = None
    """Longest header, in bytes, that is read of a ``.npy`` file; None for the usual limit."""
    external_files: bool = False
    """Whether an HDF5 dataset may be stored in other files, which its file names."""
    url_name: str | None = None
    """Name of a file behind a URL in messages; None for a file of ``path``."""

    def refuse(self, *fields: str) -> None:
        """Raise StoreFormatError when one of ``fields`` was given, which this format has no use for."""
        _refuse("open_store", self.url_name or str(self.path), self, fields)


DATA_ALIGNMENT = 4096
"""Direct I/O transfers whole pages, so the data of a new file start at a multiple of this number of bytes."""


@dataclass(frozen=True)
class Target:
    """A file to write."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    key: str | None = None
    """The array's name in a file that holds several."""
    order: str = "C"
    """``"C"``: last axis fastest, ``"F"``: first axis fastest."""
    chunk: tuple[int, ...] | None = None
    """Chunk shape of a chunked format; None for its own choice."""
    resume: bool = False
    """Go on with the partial file of an interrupted run."""
    direct: bool | None = None
    """Go around the page cache: always, never, or (None) for what is not in it."""
    joined: bool = False
    """The partial file is that of a run which is alive, holds the lock, and will publish it."""
    codec: str | None = None
    """How chunks are compressed, such as ``"zstd"`` or ``"gzip:6"``; None stores them as they are."""

    def refuse(self, *fields: str) -> None:
        """Raise StoreFormatError when one of ``fields`` was given, which this format has no use for."""
        _refuse("create_store", str(self.path), self, fields)

    def refuse_commit(self) -> None:
        """Raise StoreError when another process publishes the result."""
        if self.joined:
            raise StoreError(
                f"[commit] {self.path} is published by the run that began it, not by who joined; close it"
            )

    def reopened(self) -> Any:
        """Return the store of the published result; raises StoreError when it is not there any more."""
        source = Source(self.path, self.key, self.shape, self.dtype, direct=self.direct)
        return format_of(self.path).open_path(source)

    @property
    def partial(self) -> Path:
        """Where the bytes are until the result is complete."""
        return partial_path(self.path)


def partial_path(path: Path) -> Path:
    """Return where the bytes of a result at ``path`` are until it is complete."""
    return path.with_name(path.name + ".partial")


def _refuse(op: str, name: str, given: Source | Target, fields: tuple[str, ...]) -> None:
    for field in fields:
        value, default = getattr(given, field), type(given).__dataclass_fields__[field].default
        if value != default:
            remedy = "leave it out"
            if field == "key" and op == "create_store" and name.lower().endswith(".zarr"):
                remedy = f"write to a folder in the group: out='{name}/{value}.zarr'"
            raise StoreFormatError(f"[{op}] {name}: {field}={value!r} means nothing to this format; {remedy}")


def register_format(suffix: str, module: str) -> None:
    """Let ``module`` (a dotted name, imported when first needed) handle files that end in ``suffix``."""
    _MODULES[suffix.lower()] = module


def is_known(path: Path) -> bool:
    """Return whether the suffix of a path is that of a format."""
    return path.suffix.lower() in _MODULES


def module_of(suffix: str) -> str | None:
    """Return the dotted name of the module that handles a suffix in lower case; None for an unknown one."""
    return _MODULES.get(suffix)


def known_suffixes() -> list[str]:
    """Return the suffixes that can be opened and written."""
    return sorted(_MODULES)


def load_format(path: str | PathLike[str]) -> None:
    """Load what writing a file of that name needs, before an operation's memory is budgeted.

    Names of no known format are left to ``format_of``. Raises BackendMissingError without the library.
    """
    module = _MODULES.get(Path(path).suffix.lower())
    load_library = getattr(importlib.import_module(module), "load_library", None) if module else None
    if load_library is not None:
        load_library()


def format_of(path: Path) -> Any:
    """Return the module that handles ``path``.

    Raises UnknownNameError naming the known suffixes.
    """
    suffix = ".zarr" if path.is_dir() else path.suffix.lower()
    if suffix == ".npz":
        raise StoreFormatError(
            f"[file format] {path} is an archive of arrays; save one of them: np.save('x.npy', "
            f"np.load({str(path)!r})['name'])"
        )
    if suffix not in _MODULES:
        raise UnknownNameError.among("file format", suffix or path.name, _MODULES)
    return importlib.import_module(_MODULES[suffix])
