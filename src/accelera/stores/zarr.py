"""Zarr arrays (a folder of chunks), through the optional ``zarr`` package, version 3: opened and begun.

bfloat16 has no name in Zarr.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import shutil
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import numpy as np

from accelera._atomic import keep_mode, sync
from accelera.errors import (
    ArgumentError,
    DTypeError,
    ShapeError,
    StoreError,
    StoreFormatError,
    UnknownNameError,
)
from accelera.stores.chunked import COPIES
from accelera.stores.contract import Layout, OutputStore, Store
from accelera.stores.dtypes import BFLOAT16
from accelera.stores.flatoutput import check_folder, claim, require_writable
from accelera.stores.formats import Source, Target, partial_path
from accelera.stores.regions import Region
from accelera.stores.urls import Url
from accelera.stores.viewing import Viewing
from accelera.stores.zarrgroups import DIMENSIONS, array_before, refresh_consolidated
from accelera.stores.zarrstore import (
    METADATA,
    ZarrStore,
    is_array_folder,
    open_array,
    open_zarr_url,
    zarr_library,
)
from accelera.units import format_bytes

_CHUNK_BYTES = 4 << 20
_CODECS: dict[str, tuple[str, dict[str, str], str]] = {
    "zstd": ("ZstdCodec", {}, "level"),
    "gzip": ("GzipCodec", {}, "level"),
    "blosc-lz4": ("BloscCodec", {"cname": "lz4"}, "clevel"),
    "blosc-zstd": ("BloscCodec", {"cname": "zstd"}, "clevel"),
}
"""By name: the library's class, its fixed arguments, and the name of its level argument."""
_DEFAULT_LEVEL = 5
"""Level of a compressor where none is given."""
SCRATCH_BYTES = (COPIES + 1) * _CHUNK_BYTES
"""Bytes that one write to a new array takes besides its data."""


def chunk_scratch_bytes(chunk: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the bytes that one write to an array of that chunk shape takes besides its data."""
    return (COPIES + 1) * math.prod(chunk) * dtype.itemsize


def open_path(source: Source) -> ZarrStore:
    """Open a Zarr array for reading, or the array called ``key`` of a group.

    Raises BackendMissingError without zarr, StoreFormatError when the folder holds no readable array.
    """
    source.refuse("offset")
    path = source.path / source.key if source.key else source.path
    if not os.path.isdir(path):  # also for names that no folder has, at which Path.is_dir raises
        raise StoreError(f"[open_store] no folder {path}; check the path")
    if not any((path / name).is_file() for name in METADATA):
        raise StoreFormatError(
            f"[open_store] {path} is a folder, but not a Zarr array; give a file or an array"
        )
    return ZarrStore(path, open_array(path, "r"))


def open_remote(url: Url, source: Source) -> ZarrStore:
    """Open a Zarr array behind a URL, or the array called ``key`` of a group.

    Raises BackendMissingError without zarr or the package of the protocol, StoreFormatError when there is no
    readable array.
    """
    source.refuse("offset")
    return open_zarr_url(url)


def create_path(target: Target) -> ZarrOutput:
    """Begin a new Zarr array.

    Raises DTypeError for bfloat16, StoreError when the folder cannot be made or the disk is too small.
    """
    target.refuse("key", "order")
    zarr_library()
    compressors_of(target.codec)
    return ZarrOutput(target)


def load_library() -> None:
    """Load ``zarr`` and its codecs; raises BackendMissingError without them."""
    zarr_library()


@final
class ZarrOutput(OutputStore):
    """A Zarr array being written in ``<name>.partial``, renamed when it is complete."""

    tier = "disk"

    def __init__(self, target: Target) -> None:
        if target.dtype == BFLOAT16:
            raise DTypeError("[create_store] Zarr has no bfloat16; write .safetensors, or convert the result")
        self.path, self._partial = target.path, target.partial
        self._target = target
        self.name = str(target.path)
        self.shape, self.dtype = target.shape, target.dtype
        self._is_published = False
        _check_target(target)
        self._release = weakref.finalize(self, os.close, _claim_folder(target))
        try:
            if not target.joined:
                _restore(target.path)
            array = _open_partial(target) if target.resume else _create_array(target)
        except BaseException:
            self._release()
            if not target.resume:
                shutil.rmtree(self._partial, ignore_errors=True)
            raise
        self._store = ZarrStore(self._partial, array, writable=True)

    @property
    def partial(self) -> Path:
        """The partial folder."""
        return self._partial

    def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
        """Read what was written."""
        return self._store.read(region, out)

    def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
        """Write ``data`` into ``region``; return its bytes."""
        return self._store.write(region, data)

    @property
    def layout(self) -> Layout:
        """The chunks."""
        return self._store.layout

    @property
    def scratch_bytes(self) -> int:
        """Bytes that one write takes besides its data."""
        return self._store.scratch_bytes

    def fingerprint(self) -> Mapping[str, Any] | None:
        """Return the identity of the partial array, or of the published one."""
        return self._store.fingerprint()

    def sample(self) -> int | None:
        """Return a checksum of a few kilobytes of it."""
        return self._store.sample()

    def flush(self) -> None:
        """Wait until every chunk is on the disk."""
        self._store.flush()

    def close(self) -> None:
        """Leave the partial array for a later ``resume``."""
        self._store.close()
        self._release()

    def commit(self) -> None:
        """Publish the finished array under its name, at once; an older array there is removed afterwards.

        From then on this store reads the published array. Raises StoreError, and leaves the partial
        array, when the system refuses.
        """
        self._target.refuse_commit()
        self._store.flush()
        self._store.close()
        try:
            _replace(self._partial, self.path)
            sync(self.path.parent)
        except OSError as error:
            raise StoreError(
                f"[commit] {self._partial} cannot become {self.path}: {error.strerror}; rename it by hand"
            ) from error
        finally:
            self._release()
        remove_leftovers(self.path)
        self._is_published = True
        refresh_consolidated(self.path)
        with contextlib.suppress(StoreError):  # another run may already have replaced it
            self._store = self._target.reopened()

    def viewing(self) -> tuple[Store, Viewing]:
        """Return the published array once there is one, else this output."""
        return self._store.viewing() if self._is_published else super().viewing()

    @property
    def read_only(self) -> str | None:
        """Why nothing more can be written: it is complete."""
        return "is complete; write to a new name" if self._is_published else None

    def abort(self, *, keep_partial: bool = False) -> None:
        """Remove the partial array unless it is to be resumed."""
        self.close()
        if not keep_partial and not self._target.joined and not self._is_published:
            shutil.rmtree(self._partial, ignore_errors=True)


def _replace(partial: Path, path: Path) -> None:
    """Rename ``partial`` to ``path``, and an older array of that name to its backup name.

    Where names cannot be exchanged, the older array is renamed first: ``_restore`` renames it back if the
    process is killed in between.
    """
    older = _backup_path(path)
    if not path.exists():
        os.rename(partial, path)
    elif exchange(partial, path):
        os.rename(partial, older)
    else:
        os.rename(path, older)
        os.rename(partial, path)


def remove_leftovers(path: Path) -> None:
    """Remove what a run leaves beside the array that it published at ``path``."""
    for leftover in (_backup_path(path), partial_path(path)):
        shutil.rmtree(leftover, ignore_errors=True)


def _backup_path(path: Path) -> Path:
    return path.with_name(path.name + ".replaced")


def _restore(path: Path) -> None:
    """Rename the backup of a killed run back where its name is free, else remove the backup."""
    older = _backup_path(path)
    if older.is_dir() and not path.exists():
        os.rename(older, path)
    else:
        shutil.rmtree(older, ignore_errors=True)


def _check_target(target: Target) -> None:
    path = target.path
    check_folder(path)
    require_writable(path)
    if path.exists() and not is_array_folder(path):
        raise StoreError(
            f"[create_store] {path} exists and is not a Zarr array (the members of a group "
            "would be lost); choose another name"
        )
    needed = math.prod(target.shape) * target.dtype.itemsize
    status = os.statvfs(path.parent)
    free = status.f_bavail * status.f_frsize
    if needed > free and not target.resume and target.codec is None:
        raise StoreError(
            f"[create_store] {path} needs {needed} bytes ({format_bytes(needed)}), and {free} "
            f"({format_bytes(free)}) are free; free some space or choose another disk"
        )


def _claim_folder(target: Target) -> int:
    """Lock the partial folder, making it first unless it is to be resumed."""
    if target.resume and not target.partial.is_dir():
        raise StoreError(
            f"[create_store] nothing to resume: there is no {target.partial}; start without resume"
        )
    target.partial.mkdir(exist_ok=True)
    descriptor = os.open(target.partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if not target.joined:
        claim(descriptor, target.partial)
        keep_mode(target.path, descriptor)
    return descriptor


def _create_array(target: Target) -> Any:
    chunk = target.chunk or default_chunk(target.shape, target.dtype.itemsize)
    if len(chunk) != len(target.shape) or 0 in chunk:
        raise ShapeError(
            f"[create_store] chunk={chunk} for shape {target.shape}: one positive size per axis is needed"
        )
    for entry in target.partial.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    older = array_before(target.path)
    zarr_format = older.zarr_format
    named = older.names_for(len(target.shape))
    return zarr_library().create_array(
        store=str(target.partial),
        shape=target.shape,
        dtype=target.dtype.name,
        chunks=chunk,
        compressors=compressors_of(target.codec, zarr_format),
        fill_value=0,
        zarr_format=zarr_format,
        dimension_names=named if zarr_format == 3 else None,
        attributes={DIMENSIONS: named} if named and zarr_format == 2 else None,
        config={"write_empty_chunks": True},
    )


def _open_partial(target: Target) -> Any:
    array = open_array(target.partial, "r+")
    if tuple(array.shape) != target.shape or array.dtype != target.dtype:
        raise StoreError(
            f"[create_store] {target.partial} was begun for {array.dtype}{list(array.shape)}, not "
            f"{target.dtype}{list(target.shape)}; start without resume"
        )
    if target.chunk is not None and tuple(array.chunks) != target.chunk:
        raise StoreError(
            f"[create_store] {target.partial} was begun for chunks of {tuple(array.chunks)}, not "
            f"{target.chunk}; start without resume"
        )
    if not target.joined:
        for unfinished in target.partial.rglob("*.partial"):  # by a process that was killed meanwhile
            unfinished.unlink()
    return array


def compressors_of(codec: str | None, zarr_format: int = 3) -> Any:
    """Return the library's compressor for a name such as ``"zstd"`` or ``"gzip:6"``; None for none.

    Raises UnknownNameError for another name, ArgumentError for a level that it does not have.
    """
    if codec in (None, "none"):
        return None
    name, mark, level = str(codec).partition(":")
    if name not in _CODECS:
        raise UnknownNameError.among("codec", name, ["none", *_CODECS])
    kind, fixed, amount = _CODECS[name]
    if zarr_format == 2:
        import numcodecs as codecs

        kind = kind.removesuffix("Codec").replace("Gzip", "GZip")
    else:
        from zarr import codecs
    try:
        return getattr(codecs, kind)(**fixed, **{amount: int(level) if mark else _DEFAULT_LEVEL})
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"[create_store] codec={codec!r}: {error}; write for example {name}:5") from error


def default_chunk(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return a chunk of at most 4 MiB: halve the longest axis until it fits.

    >>> default_chunk((16384, 16384), 4)
    (1024, 1024)
    """
    chunk = [max(1, size) for size in shape]
    while math.prod(chunk) * itemsize > _CHUNK_BYTES:
        longest = chunk.index(max(chunk))
        chunk[longest] = -(-chunk[longest] // 2)
    return tuple(chunk)


_CURRENT_FOLDER = -100
"""``AT_FDCWD``: names are relative to the current folder."""
_EXCHANGE = 2
"""``RENAME_EXCHANGE`` of Linux' ``renameat2``."""
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two files or folders atomically; return False where the system cannot.

    Raises OSError when the system can exchange names, but refuses.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    first, second = (ctypes.c_char_p(os.fsencode(each)) for each in (one, other))
    done = rename(_CURRENT_FOLDER, first, _CURRENT_FOLDER, second, ctypes.c_uint(_EXCHANGE))
    code = 0 if done == 0 else ctypes.get_errno()
    if code and code not in _UNSUPPORTED:
        raise OSError(code, os.strerror(code), os.fspath(one))
    return code == 0
