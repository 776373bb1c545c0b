"""Zarr arrays as stores: chunk by chunk, straight between a decoded chunk and the caller's buffer.

One transfer takes no more than a few chunks of memory, whatever its size.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import threading
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np

from accelera.errors import BackendMissingError, StoreError, StoreFormatError
from accelera.extras import needed_for
from accelera.stores.contract import Layout, Store
from accelera.stores.dtypes import parse_dtype
from accelera.stores.flatoutput import sync
from accelera.stores.regions import Region, check_transfer, view_key
from accelera.stores.sampling import sample_of_zarr

METADATA = ("zarr.json", ".zarray", ".zgroup")
"""Files one of which makes a folder an array or a group."""
COPIES = 3
"""Of a chunk, in memory: encoded bytes, decoded chunk, and the chunk being assembled for a write."""


def zarr_library() -> Any:
    """Return the ``zarr`` package; raise BackendMissingError without version 3 of it."""
    with needed_for("zarr"):
        import zarr
    if int(zarr.__version__.split(".")[0]) < 3:
        raise BackendMissingError(
            f"[zarr] zarr {zarr.__version__} is installed, version 3 is needed (Python >= 3.11): "
            "pip install 'zarr>=3'"
        )
    return zarr


def open_array(path: Path, mode: str) -> Any:
    """Open a folder with the library; raise StoreFormatError when it holds no readable array."""
    library = zarr_library()
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
        self._unsynced = {path / name for name in METADATA} if writable else set()
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
        return COPIES * int(np.prod(granule, dtype=np.int64)) * self.dtype.itemsize

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
        return b"".join((self.path / m).read_bytes() for m in METADATA if (self.path / m).is_file())

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
