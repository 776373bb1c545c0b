"""Zarr arrays as stores: chunk by chunk, straight between a decoded chunk and the caller's buffer.

One transfer takes no more than a few chunks of memory, whatever its size.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import threading
import zlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np

from accelera._atomic import sync
from accelera._extras import needed_for, require
from accelera._json_values import parse_json
from accelera.errors import BackendMissingError, StoreChangedError, StoreError, StoreFormatError
from accelera.stores.bounded_decoding import DecodedSizeError, bound_decoding
from accelera.stores.chunked import COPIES, ChunkedStore
from accelera.stores.contract import Layout
from accelera.stores.regions import Borders, Region, whole
from accelera.stores.sampling import sample_of_zarr
from accelera.stores.urls import Url, without_secrets

_MOST_EXPANSION = 8
"""Most bytes of a chunk file per byte of its elements, which filters may widen."""
_CHUNK_OVERHEAD_BYTES = 64 << 10
"""Headers, checksums and the index of a shard."""
METADATA = ("zarr.json", ".zarray", ".zgroup")
"""Files one of which makes a folder an array or a group."""


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


def is_array_folder(path: Path) -> bool:
    """Return whether a folder holds the metadata of a Zarr array; a group, which has members, does not."""
    if (path / ".zarray").is_file():
        return not (path / ".zgroup").exists()
    try:
        metadata = parse_json((path / "zarr.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(metadata, dict) and metadata.get("node_type") == "array"


def open_array(path: Path, mode: str) -> Any:
    """Open a folder with the library; raise StoreFormatError when it holds no readable array."""
    library = zarr_library()
    try:
        return library.open_array(store=str(path), mode=mode)
    except Exception as error:  # the library raises whatever its JSON and codecs raise
        raise StoreFormatError(f"[open_store] {path} is not a readable Zarr array: {error}") from error


@final
class ZarrStore(ChunkedStore):
    """A Zarr array in a folder, or, where ``path`` is None, wherever the library keeps it."""

    def __init__(self, path: Path | None, array: Any, *, writable: bool = False, name: str = "zarr") -> None:
        super().__init__(
            bound_decoding(array), name if path is None else str(path), array.chunks, writable=writable
        )
        self.path = path
        self._url: Url | None = None
        self._opened_metadata = b"" if path is None else _metadata(path)
        self.tier = "ram" if type(array.store).__name__ == "MemoryStore" else "disk"
        self.copies = COPIES + bool(
            array.compressors
        )  # a compressed chunk is read, and read again as a buffer
        self._granule = tuple(array.shards or array.chunks)
        """Extent of what is written at once."""
        self._writing, self._flushing = threading.Lock(), threading.Lock()
        self._unsynced = {path / name for name in METADATA} if writable and path is not None else set()
        """Files that may not be on the disk yet."""

    def _fetch(self, array: Any, part: Region, out: np.ndarray[Any, Any]) -> None:
        if self.path is not None:
            self._require_plausible_file(array, part)
        array.get_basic_selection(part, out=_buffer(out))

    def _require_plausible_file(self, array: Any, part: Region) -> None:
        """Raise DecodedSizeError for a chunk file, read as a whole, that is much larger than its elements."""
        place = tuple(along.start // size for along, size in zip(part, self._granule, strict=True))
        file = self.path / str(array.metadata.encode_chunk_key(place)) if self.path else None
        limit = _MOST_EXPANSION * math.prod(self._granule) * self.dtype.itemsize + _CHUNK_OVERHEAD_BYTES
        try:
            size = 0 if file is None else os.stat(file).st_size
        except OSError:
            return  # a chunk of fill values, or one whose error the library reports
        if size > limit:
            raise DecodedSizeError(f"{file} has {size} bytes, at most {limit} are plausible for its shape")

    def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
        """Encode ``data`` into the chunks under ``region``; return its bytes.

        Chunks that are covered in part are read, changed and written again, one writer at a time.
        """
        with self._writing:
            return super().write(region, data)

    def _put(self, array: Any, part: Region, data: np.ndarray[Any, Any]) -> None:
        if self.path is not None:
            place = tuple(along.start // size for along, size in zip(part, self._granule, strict=True))
            self._unsynced.add(self.path / str(array.metadata.encode_chunk_key(place)))
        array.set_basic_selection(part, data)

    def _write_borders(self) -> Borders:
        return self._granule

    @property
    def layout(self) -> Layout:
        """Chunks; shards where the array is open for writing, because each is encoded as a whole."""
        layout = super().layout
        return replace(layout, chunk=self._granule) if self._writable and layout.chunk else layout

    @property
    def scratch_bytes(self) -> int:
        """The encoded and decoded copies of one chunk (or shard, when writing)."""
        self._open("scratch_bytes")
        granule = self._granule if self._writable else self.transfer_chunk
        return self.copies * math.prod(granule) * self.dtype.itemsize

    def require_current(self) -> None:
        """Raise StoreChangedError when the array has other metadata than when it was opened."""
        if self.path is not None and not self._writable and _metadata(self.path) != self._opened_metadata:
            raise StoreChangedError(
                f"[read] {self.name} has other metadata than when it was opened; open it again"
            )

    def __reduce__(self) -> Any:
        """Pickle as an array to be opened again, in this or in another process.

        Raises StoreError for an array that is closed, open for writing, or in no folder.
        """
        self._open("pickle")
        if self._url is not None:
            return open_zarr_url, (self._url,)
        if self.path is None or self._writable:
            return super().__reduce__()
        self.require_current()
        path = Path(os.path.abspath(self.path))
        if not path.is_dir() or _metadata(path) != self._opened_metadata:
            raise StoreError(
                f"[pickle] {self.name} is relative to another folder than the current one; open it by its "
                "absolute path"
            )
        return _open_sent, (path, self._opened_metadata)

    def fingerprint(self) -> Mapping[str, Any] | None:
        """Return a checksum of the metadata and a digest of every chunk file's name, size and times.

        None for an array that is not stored in a folder; of an array behind a URL the metadata alone.
        """
        return self.fingerprint_of(whole(self.shape))

    def fingerprint_of(self, region: Region) -> Mapping[str, Any] | None:
        """Return the same of the chunks that a region touches, in constant memory."""
        array = self._open("fingerprint")
        if self._url is not None:
            metadata = json.dumps(array.metadata.to_dict(), default=str, sort_keys=True)
            return {"kind": "zarr", "url": self.name, "header": zlib.crc32(metadata.encode())}
        if self.path is None:
            return None
        digest, size = hashlib.sha256(), 0
        encode, folder = array.metadata.encode_chunk_key, str(self.path)
        for place in itertools.product(*map(_granules, region, self._granule)):
            key = encode(place)
            try:
                status = os.stat(f"{folder}/{key}")
            except (FileNotFoundError, NotADirectoryError):
                continue  # a chunk of fill values has no file
            size += status.st_size
            digest.update(f"{key}:{status.st_size}:{status.st_mtime_ns}:{status.st_ino};".encode())
        header = zlib.crc32(_metadata(self.path))
        return {"kind": "zarr", "size": size, "header": header, "chunks": digest.hexdigest()}

    def sample(self) -> int | None:
        """Return a checksum of the metadata and of a few kilobytes of chunks: the same for equal copies.

        None for an array that lies in no folder.
        """
        array = self._open("sample")
        if self.path is None:
            return None
        return sample_of_zarr(self.path, array, _metadata(self.path))

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
        within = 0 if self.path is None else len(self.path.parts)
        for folder in {each for file in files for each in file.parents if len(each.parts) >= within}:
            with contextlib.suppress(FileNotFoundError):
                sync(folder)


def _open_sent(path: Path, metadata: bytes) -> ZarrStore:
    """Return the store of a folder that a pickled one names; raises StoreChangedError for another array."""
    store = ZarrStore(path, open_array(path, "r"))
    if store._opened_metadata != metadata:
        store.close()
        raise StoreChangedError(f"[unpickle] {path} is not the array that was sent; open it again")
    return store


def open_zarr_object(array: Any) -> ZarrStore:
    """Return the store of an array of the ``zarr`` package, writable where the array is.

    Raises BackendMissingError for arrays of version 2 of the package.
    """
    zarr_library()
    root = getattr(array.store, "root", None) if type(array.store).__name__ == "LocalStore" else None
    path = None if root is None else Path(root) / array.path
    return ZarrStore(path, array, writable=not array.read_only, name=str(array.store_path))


def open_zarr_url(url: Url) -> ZarrStore:
    """Return the store of an array behind a URL, or of the array called ``key`` in a group behind it.

    Raises BackendMissingError without ``zarr``, ``fsspec`` or the package of the protocol, StoreFormatError
    when there is no readable array.
    """
    library = zarr_library()
    require("open_store", "fsspec")
    address = f"{url.address.rstrip('/')}/{url.key}" if url.key else url.address
    try:
        folder = library.storage.FsspecStore.from_url(address, read_only=True)
        array = library.open_array(store=folder, mode="r")
    except ImportError as error:
        raise BackendMissingError(f"[open_store] {url.name}: {error}") from error
    except Exception as error:  # the library raises whatever its JSON, codecs and file systems raise
        reason = without_secrets(str(error).replace(address, url.name))
        raise StoreFormatError(f"[open_store] {url.name} is not a readable Zarr array: {reason}") from error
    store = ZarrStore(None, array, name=url.name if url.key is None else f"{url.name}::{url.key}")
    store._url = url
    return store


def _metadata(path: Path) -> bytes:
    return b"".join((path / m).read_bytes() for m in METADATA if (path / m).is_file())


def _buffer(array: np.ndarray[Any, Any]) -> Any:
    from zarr.buffer import cpu

    return cpu.NDBuffer.from_numpy_array(array)


def _granules(along: slice, size: int) -> range:
    """Return the positions of the chunks that hold indices ``along`` an axis."""
    indices = range(along.start, along.stop, along.step or 1)
    return range(indices[0] // size, indices[-1] // size + 1) if indices else range(0)
