"""Zarr arrays (a folder of chunks), through the optional ``zarr`` package, version 3.

Reads and writes go chunk by chunk, straight between a decoded chunk and the caller's buffer, so one
transfer takes no more than a few chunks of memory whatever its size. bfloat16 has no name in Zarr.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
import threading
import weakref
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np

from accelera.errors import BackendMissingError, DTypeError, ShapeError, StoreError, StoreFormatError
from accelera.stores.contract import Layout, OutputStore, Store
from accelera.stores.dtypes import BFLOAT16, parse_dtype
from accelera.stores.flatoutput import check_folder, claim, sync
from accelera.stores.formats import Source, Target
from accelera.stores.regions import Region, check_transfer, view_key
from accelera.stores.sampling import sample_of_zarr
from accelera.units import format_bytes

_METADATA = ("zarr.json", ".zarray", ".zgroup")
_CHUNK_BYTES = 4 << 20
_COPIES = 3
"""Encoded bytes, decoded chunk, and the chunk being assembled for a write."""
SCRATCH_BYTES = _COPIES * _CHUNK_BYTES
"""What one write to a new array takes besides its data."""


def open_path(source: Source) -> ZarrStore:
    """Open a Zarr array for reading, or the array called ``key`` of a group.

    Raises BackendMissingError without zarr, StoreFormatError when the folder holds no readable array.
    """
    source.refuse("offset")
    path = source.path / source.key if source.key else source.path
    if not path.is_dir():
        raise StoreError(f"[open_store] no folder {path}; check the path")
    if not any((path / name).is_file() for name in _METADATA):
        raise StoreFormatError(
            f"[open_store] {path} is a folder, but not a Zarr array; give a file or an array"
        )
    return ZarrStore(path, _open_array(path, "r"))


def create_path(target: Target) -> ZarrOutput:
    """Begin a new Zarr array.

    Raises DTypeError for bfloat16, StoreError when the folder cannot be made or the disk is too small.
    """
    target.refuse("key", "order", "align")
    _library()
    return ZarrOutput(target)


def _library() -> Any:
    try:
        import zarr
    except ImportError as error:
        raise BackendMissingError(
            "[zarr] Zarr arrays need the zarr package; install it: pip install 'accelera[zarr]'"
        ) from error
    if int(zarr.__version__.split(".")[0]) < 3:
        raise BackendMissingError(
            f"[zarr] zarr {zarr.__version__} is installed, version 3 is needed (Python >= 3.11): "
            "pip install 'zarr>=3'"
        )
    return zarr


def _open_array(path: Path, mode: str) -> Any:
    library = _library()
    try:
        return library.open_array(store=str(path), mode=mode)
    except Exception as error:  # the library raises whatever its JSON and codecs raise
        raise StoreFormatError(f"[open_store] {path} is not a readable Zarr array: {error}") from error


@final
class ZarrStore(Store):
    """A Zarr array in a folder."""

    tier = "disk"

    def __init__(self, path: Path, array: Any, *, writable: bool = False) -> None:
        self.path = path
        self.name = str(path)
        self.shape = tuple(array.shape)
        self.dtype = parse_dtype(array.dtype, op=f"open_store {path.name}")
        self._array: Any = array
        self._writable = writable
        self._writing, self._flushing = threading.Lock(), threading.Lock()
        self._unsynced = {path / name for name in _METADATA} if writable else set()
        """Files that may not be on the disk yet."""

    def _open(self, op: str) -> Any:
        if self._array is None:
            raise StoreError(f"[{op}] {self.name} is closed; open it again")
        return self._array

    def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
        """Decode the chunks under ``region`` into ``out``; return its bytes.

        Raises StoreError when a chunk cannot be read or decoded.
        """
        array = self._open("read")
        check_transfer("read", self.shape, self.dtype, region, out)
        for part, place in _parts(region, array.chunks):
            target = out[view_key(place)]
            try:
                array.get_basic_selection(part, out=_buffer(target))
            except Exception as error:  # whatever a codec or the filesystem raises
                raise StoreError(f"[read] {self.name} at {part}: {error}; the array is damaged") from error
        return out.nbytes

    def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
        """Encode ``data`` into the chunks under ``region``; return its bytes.

        Chunks that are covered in part are read, changed and written again, one writer at a time.
        """
        array = self._open("write")
        check_transfer("write", self.shape, self.dtype, region, data)
        if not self._writable:
            raise StoreError(f"[write] {self.name} is open for reading; write a new array with create_store")
        granule = array.shards or array.chunks
        with self._writing:
            for part, place in _parts(region, granule):
                self._unsynced.add(self._file_of(part, granule))
                try:
                    array.set_basic_selection(part, data[view_key(place)])
                except Exception as error:  # whatever a codec or the filesystem raises
                    raise StoreError(f"[write] {self.name} at {part}: {error}; check the disk") from error
        return data.nbytes

    @property
    def layout(self) -> Layout:
        """Chunks; inside a chunk the last axis is the fastest."""
        order = tuple(range(len(self.shape)))
        return Layout(order, self.dtype.itemsize, tuple(self._open("layout").chunks))

    @property
    def scratch_bytes(self) -> int:
        """The encoded and decoded copies of one chunk (or shard, when writing)."""
        array = self._open("scratch_bytes")
        granule = array.shards if self._writable and array.shards else array.chunks
        return _COPIES * int(np.prod(granule, dtype=np.int64)) * self.dtype.itemsize

    def fingerprint(self) -> Mapping[str, Any]:
        """Return a checksum of the metadata and a digest of every chunk file's name, size and times."""
        self._open("fingerprint")
        digest, size = hashlib.sha256(), 0
        for file in _files(self.path):
            status = file.stat()
            size += status.st_size
            entry = (
                file.relative_to(self.path).as_posix(),
                status.st_size,
                status.st_mtime_ns,
                status.st_ino,
            )
            digest.update(repr(entry).encode())
        header = zlib.crc32(self._metadata())
        return {"kind": "zarr", "size": size, "header": header, "chunks": digest.hexdigest()}

    def sample(self) -> int:
        """Return a checksum of the metadata and of a few kilobytes of chunks: the same for equal copies."""
        return sample_of_zarr(self.path, self._open("sample"), self._metadata())

    def _metadata(self) -> bytes:
        return b"".join((self.path / m).read_bytes() for m in _METADATA if (self.path / m).is_file())

    def flush(self) -> None:
        """Wait until every chunk that was written here is on the disk."""
        self._open("flush")
        with self._flushing:
            with self._writing:
                files = set(self._unsynced)
                self._unsynced.clear()
            try:
                self._sync(files)
            except BaseException:
                with self._writing:
                    self._unsynced |= files
                raise

    def _sync(self, files: Collection[Path]) -> None:
        """Make files and the folders that lead to them durable; a chunk that was removed has no file."""
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                sync(file)
        within = len(self.path.parts)
        for folder in {each for file in files for each in file.parents if len(each.parts) >= within}:
            with contextlib.suppress(FileNotFoundError):
                sync(folder)

    def _file_of(self, part: Region, granule: tuple[int, ...]) -> Path:
        """Return the file of the chunk (or shard) that ``part`` lies in."""
        place = tuple(along.start // size for along, size in zip(part, granule, strict=True))
        return self.path / str(self._array.metadata.encode_chunk_key(place))

    def close(self) -> None:
        """Let go of the array."""
        self._array = None


def _parts(region: Region, granule: tuple[int, ...]) -> Iterator[tuple[Region, Region]]:
    """Cut a region along chunk borders: pairs of the part, and its place in the region's buffer."""
    axes = [list(_cuts(part, size)) for part, size in zip(region, granule, strict=True)]
    for cuts in itertools.product(*axes):
        yield tuple(cut[0] for cut in cuts), tuple(cut[1] for cut in cuts)


def _cuts(part: slice, size: int) -> Iterator[tuple[slice, slice]]:
    indices = range(part.start, part.stop, part.step or 1)
    done = 0
    while done < len(indices):
        border = (indices[done] // size + 1) * size
        here = indices[done:][: -(-(border - indices[done]) // indices.step)]
        yield slice(here[0], here[-1] + 1, indices.step), slice(done, done + len(here))
        done += len(here)


def _buffer(array: np.ndarray[Any, Any]) -> Any:
    from zarr.buffer import cpu

    return cpu.NDBuffer.from_numpy_array(array)


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


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
        _check_target(target)
        self._release = weakref.finalize(self, os.close, _claim_folder(target))
        try:
            array = _resumed(target) if target.resume else _begun(target)
        except BaseException:
            self._release()
            if not target.resume:
                shutil.rmtree(self._partial, ignore_errors=True)
            raise
        self._store = ZarrStore(self._partial, array, writable=True)

    def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
        """Read back what was written."""
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
        """What one write takes beyond its buffer."""
        return self._store.scratch_bytes

    def fingerprint(self) -> Mapping[str, Any]:
        """Return the identity of the partial array."""
        return self._store.fingerprint()

    def flush(self) -> None:
        """Wait until every chunk is on the disk."""
        self._store.flush()

    def close(self) -> None:
        """Leave the partial array for a later ``resume``."""
        self._store.close()
        self._release()

    def commit(self) -> None:
        """Put the finished array in place; an older array there is set aside until that is done.

        Raises StoreError, and leaves the partial array, when the system refuses.
        """
        self._target.refuse_commit()
        self._store.flush()
        self.close()
        older = self.path.with_name(self.path.name + ".replaced")
        try:
            if self.path.exists():
                os.rename(self.path, older)
            os.rename(self._partial, self.path)
            sync(self.path.parent)
        except OSError as error:
            raise StoreError(
                f"[commit] {self._partial} cannot become {self.path}: {error.strerror}; rename it by hand"
            ) from error
        shutil.rmtree(older, ignore_errors=True)

    def abort(self, *, keep_partial: bool = False) -> None:
        """Remove the partial array unless it is to be resumed."""
        self.close()
        if not keep_partial and not self._target.joined:
            shutil.rmtree(self._partial, ignore_errors=True)


def _check_target(target: Target) -> None:
    path = target.path
    check_folder(path)
    if path.exists() and not any((path / name).is_file() for name in _METADATA):
        raise StoreError(f"[create_store] {path} exists and is not a Zarr array; choose another name")
    needed = int(np.prod(target.shape, dtype=np.int64)) * target.dtype.itemsize
    status = os.statvfs(path.parent)
    free = status.f_bavail * status.f_frsize
    if needed > free and not target.resume:
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
    return descriptor


def _begun(target: Target) -> Any:
    chunk = target.chunk or default_chunk(target.shape, target.dtype.itemsize)
    if len(chunk) != len(target.shape) or 0 in chunk:
        raise ShapeError(
            f"[create_store] chunk={chunk} for shape {target.shape}: one positive size per axis is needed"
        )
    for entry in target.partial.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    return _library().create_array(
        store=str(target.partial),
        shape=target.shape,
        dtype=target.dtype.name,
        chunks=chunk,
        compressors=None,
        fill_value=0,
        config={"write_empty_chunks": True},
    )


def _resumed(target: Target) -> Any:
    array = _open_array(target.partial, "r+")
    if tuple(array.shape) != target.shape or array.dtype != target.dtype:
        raise StoreError(
            f"[create_store] {target.partial} was begun for {array.dtype}{list(array.shape)}, not "
            f"{target.dtype}{list(target.shape)}; start without resume"
        )
    if not target.joined:
        for unfinished in target.partial.rglob("*.partial"):  # by a process that was killed meanwhile
            unfinished.unlink()
    return array


def default_chunk(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return a chunk of at most 4 MiB: halve the longest axis until it fits.

    >>> default_chunk((16384, 16384), 4)
    (1024, 1024)
    """
    chunk = [max(1, size) for size in shape]
    while int(np.prod(chunk, dtype=np.int64)) * itemsize > _CHUNK_BYTES:
        longest = chunk.index(max(chunk))
        chunk[longest] = -(-chunk[longest] // 2)
    return tuple(chunk)
