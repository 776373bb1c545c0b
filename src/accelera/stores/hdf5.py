"""HDF5 files (``file.h5::group/dataset``), through the optional ``h5py`` package.

A dataset without chunks is read from its place in the file as any flat array is; others go through the
library, chunk by chunk. A result is a new file with one dataset without chunks.
"""

from __future__ import annotations

import errno
import io
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import numpy as np

from accelera._atomic import sync
from accelera._extras import needed_for
from accelera.errors import (
    AcceleraError,
    DTypeError,
    StoreChangedError,
    StoreError,
    StoreFormatError,
    UnknownNameError,
)
from accelera.stores.chunked import ChunkedStore
from accelera.stores.contract import Store
from accelera.stores.dtypes import BFLOAT16, parse_dtype
from accelera.stores.flatfile import FlatFile, Placement, open_descriptor, read_at
from accelera.stores.flatoutput import FlatOutput
from accelera.stores.formats import DATA_ALIGNMENT, Source, Target
from accelera.stores.hdf5_deflate import read_deflated, require_sound_index
from accelera.stores.regions import Region
from accelera.stores.sampling import sample_of_file

_DEFAULT_KEY = "data"
_LONGEST_HEADER = 1 << 20
"""Bytes before a dataset that its fingerprint looks at."""
_CACHE_BYTES = 0
"""Decoded chunks that the library keeps of a file opened here: each is read once, and many may be open."""
_SMALL_BYTES = 1 << 15
"""Smaller datasets need no alignment."""


def open_path(source: Source) -> Store:
    """Open one dataset of a file: the one called ``key``, or the only one there is.

    Raises BackendMissingError without h5py, StoreFormatError for a damaged file and when several datasets
    are there and none is named, UnknownNameError for a name that is not, DTypeError for elements that no
    store holds.
    """
    source.refuse("offset")
    with _failures_reported("open_store", str(source.path)):
        return _open_dataset(source, source.path)


def _open_dataset(source: Source, path: Path) -> Store:
    os.close(open_descriptor(path))
    file = _opened(path)
    try:
        if not source.external_files:
            _refuse_external_links(path, file, source.key)
        dataset = _selected(path, file, source.key)
        if not source.external_files:
            _refuse_external_data(path, dataset)
        placement = _placement(path, dataset)
        if placement is None:
            return H5Store(dataset, file)
        file.close()
    except BaseException:
        file.close()
        raise
    descriptor = open_descriptor(path)
    header = zlib.crc32(read_at(descriptor, min(placement.offset, _LONGEST_HEADER)))
    return FlatFile(path, descriptor, placement, header=header, direct=source.direct)


def create_path(target: Target) -> FlatOutput:
    """Begin a file with one dataset, called ``"data"`` unless ``"file.h5::name"`` says else.

    Raises BackendMissingError without h5py, StoreFormatError for ``order="F"``, DTypeError for bfloat16,
    and StoreError when the file is there and holds other datasets, which would be lost.
    """
    target.refuse("chunk", "codec")
    if target.order != "C":
        raise StoreFormatError(f"[create_store] {target.path}: HDF5 has C order only; leave order out")
    if target.dtype == BFLOAT16:
        raise DTypeError("[create_store] HDF5 has no bfloat16; write .safetensors, or convert the result")
    key = _DEFAULT_KEY if target.key is None else target.key.strip("/")
    with _failures_reported("create_store", str(target.path)):
        _check_sole_entry(target, key)
        header = h5_header(key, target.shape, target.dtype)
    return FlatOutput(target, header, Placement.dense(target.shape, target.dtype, offset=len(header)))


@final
class H5Store(ChunkedStore):
    """A dataset read and written through the library, chunk by chunk."""

    def __init__(self, dataset: Any, file: Any = None) -> None:
        self._file = file
        """The file, where it was opened here and is to be closed here."""
        with _failures_reported("open_store", "an HDF5 dataset"):
            if not dataset:
                raise StoreError("[open_store] an HDF5 dataset whose file is closed; open the file again")
            check_dataset(dataset)
            name = f"{dataset.file.filename}::{dataset.name}"
            super().__init__(dataset, name, dataset.chunks or None, writable=dataset.file.mode == "r+")
            is_growing = self._writable or dataset.file.swmr_mode
            self._opened_as = None if is_growing else self.fingerprint()
            self._is_index_sound = False

    def _open(self, op: str) -> Any:
        dataset = super()._open(op)
        with _failures_reported(op, self.name):
            if not dataset:
                raise StoreError(f"[{op}] {self.name} is closed; open the file again")
        return dataset

    def _fetch(self, array: Any, part: Region, out: np.ndarray[Any, Any]) -> None:
        decoded = None
        if array.chunks and part and not self._writable:
            self._check_index(array)
            decoded = read_deflated(array, part)
        if decoded is not None:
            np.copyto(out, decoded)
        elif part and out.flags.c_contiguous:
            array.read_direct(out, source_sel=part)
        else:
            np.copyto(out, array[part])

    def _check_index(self, dataset: Any) -> None:
        """Check the index of the chunks once, before the first read; that of a growing file changes."""
        if self._opened_as is not None and not self._is_index_sound:
            require_sound_index(dataset)
            self._is_index_sound = True

    def _put(self, array: Any, part: Region, data: np.ndarray[Any, Any]) -> None:
        array[part] = data

    @property
    def cache_bytes(self) -> int:
        """Decoded chunks that the library keeps of this dataset until its file is closed."""
        dataset = self._open("cache_bytes")
        with _failures_reported("cache_bytes", self.name):
            cached: int = dataset.id.get_access_plist().get_chunk_cache()[1]
            return min(cached, self.nbytes) if dataset.chunks else 0

    def require_current(self) -> None:
        """Raise StoreChangedError when the file is another than when the dataset was opened for reading."""
        if self._opened_as is not None and self.fingerprint() != self._opened_as:
            raise StoreChangedError(
                f"[read] {self.name} was written or replaced since it was opened; open it again"
            )

    def fingerprint(self) -> Mapping[str, Any] | None:
        """Return size, modification time and inode of the file, and which dataset it is.

        None for a file that lies in memory.
        """
        dataset = self._open("fingerprint")
        with _failures_reported("fingerprint", self.name):
            if self._writable:
                dataset.file.flush()
            file, name = dataset.file.filename, dataset.name
        try:
            status = os.stat(file)
        except OSError:
            return None
        return {
            "kind": "hdf5",
            "size": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "inode": status.st_ino,
            "dataset": name,
            "dtype": str(self.dtype),
            "shape": list(self.shape),
        }

    def sample(self) -> int | None:
        """Return a checksum of some kilobytes spread over the file; None for one that lies in memory."""
        dataset = self._open("sample")
        with _failures_reported("sample", self.name):
            path = Path(os.fsdecode(dataset.file.filename))
            return sample_of_file(path) if path.is_file() else None

    def __reduce__(self) -> Any:
        """Pickle as a dataset to be opened again, in this or in another process.

        Raises StoreError for a dataset that is closed, open for writing, or in no file.
        """
        dataset = self._open("pickle")
        with _failures_reported("pickle", self.name):
            path = Path(os.path.abspath(os.fsdecode(dataset.file.filename)))
        if self._writable or not path.is_file():
            return super().__reduce__()
        self.require_current()
        return _open_sent, (path, dataset.name, self._file is None, self._opened_as)

    def flush(self) -> None:
        """Wait until everything written is on the disk."""
        dataset = self._open("flush")
        with _failures_reported("flush", self.name):
            dataset.file.flush()
            path = Path(os.fsdecode(dataset.file.filename))
            if path.is_file():
                sync(path)

    def close(self) -> None:
        """Let go of the dataset, and close the file where it was opened here."""
        super().close()
        if self._file is not None:
            with _failures_reported("close", self.name):
                self._file.close()


def _open_sent(path: Path, name: str, by_caller: bool, expected: Mapping[str, Any] | None) -> H5Store:
    """Return the store of a dataset that a pickled one names; raises StoreChangedError for another one.

    Links to other files were followed ``by_caller``, or not at all.
    """
    file = _opened(path)
    try:
        if not by_caller:
            _refuse_external_links(path, file, name)
        store = H5Store(_selected(path, file, name), file)
        identity = store.fingerprint()
        if identity is None or expected is None or identity["size"] != expected["size"]:
            raise StoreChangedError(f"[unpickle] {path} is not the file that was sent; open it again")
    except BaseException:
        file.close()
        raise
    return store


def check_dataset(dataset: Any) -> None:
    """Raise DTypeError or StoreFormatError for a dataset that is no array of numbers."""
    if dataset.shape is None:
        raise StoreFormatError(f"[open_store] {dataset.name} is an empty HDF5 dataset without a shape")
    parse_dtype(dataset.dtype, op=f"open_store {dataset.name}")


def h5_header(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Return the bytes of a file before the elements of its only dataset, as the library writes them."""
    library, image = h5py_library(), _Image()
    with _library_errors(f"[create_store] an HDF5 dataset {name!r} of {dtype}{list(shape)}"):
        offset = _written(library, image, name, shape, dtype)
    return image.start(offset)


def _written(
    library: Any, image: _Image, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> int | None:
    """Let the library lay out a file without its elements; return where those begin (None: nowhere)."""
    file = library.File(
        image, "w", libver="earliest", alignment_threshold=_SMALL_BYTES, alignment_interval=DATA_ALIGNMENT
    )
    try:
        with file:
            return _create_dataset(library, file.id, name, shape, dtype)
    finally:
        # A file that could not be closed would be written at exit, without an interpreter to call the image.
        if file.id.valid:
            file.id.close()


def _create_dataset(
    library: Any, file: Any, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> int | None:
    """Create the dataset and return the position of its elements, None if it has none."""
    create = library.h5p.create(library.h5p.DATASET_CREATE)
    create.set_layout(library.h5d.CONTIGUOUS)
    create.set_alloc_time(library.h5d.ALLOC_TIME_LATE)
    create.set_fill_time(library.h5d.FILL_TIME_NEVER)
    create.set_obj_track_times(False)
    link = library.h5p.create(library.h5p.LINK_CREATE)
    link.set_create_intermediate_group(True)
    spaces = library.h5s
    space = spaces.create_simple(shape) if shape else spaces.create(spaces.SCALAR)
    kind = library.h5t.py_create(dtype, logical=True)
    dataset = library.h5d.create(file, name.encode(), kind, space, create, link)
    if 0 in shape:
        return None
    # The first element makes the library give the dataset its place, after everything else.
    corner = (1,) * len(shape)
    selection = space.copy()
    if shape:
        selection.select_hyperslab((0,) * len(shape), corner)
    element_space = spaces.create_simple(corner) if shape else space
    dataset.write(element_space, selection, np.zeros(corner, dtype))
    offset: int = dataset.get_offset()
    return offset


class _Image(io.RawIOBase):
    """The start of a file that the library writes; its end is only counted."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._size = self._place = 0

    def start(self, count: int | None) -> bytes:
        """Return the first ``count`` bytes, or (None) all."""
        found = bytes(self._bytes[:count])
        return found if count is None else found.ljust(count, b"\0")

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._place = offset + (0, self._place, self._size)[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any) -> int:
        found = bytes(self._bytes[self._place : self._place + len(buffer)])
        buffer[:] = found.ljust(len(buffer), b"\0")
        self._place += len(buffer)
        return len(buffer)

    def write(self, data: Any) -> int:
        end = self._place + len(data)
        self._bytes.extend(bytes(max(0, end - len(self._bytes))))
        self._bytes[self._place : end] = bytes(data)
        self._place, self._size = end, max(self._size, end)
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        self._size = self._place if size is None else size
        return self._size


def h5py_library() -> Any:
    """Return the ``h5py`` package; raise BackendMissingError without it."""
    with needed_for("hdf5"):
        import h5py
    return h5py


def _opened(path: Path) -> Any:
    library = h5py_library()
    with _library_errors(f"[open_store] {path} is not a sound HDF5 file"):
        try:
            return library.File(path, "r", rdcc_nbytes=_CACHE_BYTES)
        except OSError as error:
            if error.errno is not None and not _is_in_use(error):
                raise StoreError(f"[open_store] {path}: {error}; {_remedy(error)}") from error
            if not _is_in_use(error):
                raise
            raise StoreError(
                f"[open_store] {path} is open for writing elsewhere, or its writer was killed ({error}). "
                "Wait until the writer has closed it; of a file in SWMR mode, give a dataset of "
                "h5py.File(path, 'r', swmr=True); after a killed writer, run h5clear -s; "
                "on a file system without locks, set HDF5_USE_FILE_LOCKING=FALSE"
            ) from error


def _is_in_use(error: OSError) -> bool:
    """Return whether the library refuses a file because of a lock, or of the mark that a writer sets."""
    text = str(error)
    return "unable to lock" in text or "already open for" in text


@contextmanager
def _failures_reported(op: str, name: str) -> Iterator[None]:
    """Turn what the library or the system raises while an open dataset is used into StoreError."""
    try:
        yield
    except AcceleraError:
        raise
    except Exception as error:  # h5py raises OSError, RuntimeError, ValueError, KeyError and TypeError
        raise StoreError(f"[{op}] {name}: {error}; {_remedy(error)}") from error


def _remedy(error: Exception) -> str:
    text = str(error)
    full = any(os.strerror(code) in text for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
    return (
        "the disk or a quota is full: free some space" if full else "check the disk, and open the file again"
    )


@contextmanager
def _library_errors(what: str) -> Iterator[None]:
    """Turn what the library raises for names and files that it cannot take into StoreFormatError."""
    try:
        yield
    except StoreError:
        raise
    except (OSError, RuntimeError, ValueError, TypeError, KeyError, UnicodeError) as error:
        raise StoreFormatError(f"[{what}] {error}") from error


def _selected(path: Path, file: Any, key: str | None) -> Any:
    if key is None:
        names = _dataset_names(file)
        if len(names) != 1:
            raise StoreFormatError(
                f"[open_store] {path} holds {len(names)} datasets ({', '.join(names[:20]) or 'none'}); "
                f"name one with key= or '{path.name}::name'"
            )
        key = names[0]
    with _library_errors(f"[open_store] {path}::{key}"):
        found = file.get(key) if key.strip("/") else None
    if not isinstance(found, h5py_library().Dataset):
        raise UnknownNameError.among("dataset", key, _dataset_names(file))
    check_dataset(found)
    return found


def _dataset_names(file: Any) -> list[str]:
    kind, names = h5py_library().Dataset, list[str]()
    with _library_errors(f"[open_store] {file.filename} is not a sound HDF5 file"):
        file.visititems(lambda name, entry: names.append(name) if isinstance(entry, kind) else None)
    return sorted(names)


_EXTERNAL_REMEDY = "pass open_store(path, external_files=True) if you trust the file"


def _refuse_external_links(path: Path, file: Any, key: str | None) -> None:
    """Raise StoreError when the path of a dataset leads through a link to another file."""
    library, parts = h5py_library(), [part for part in (key or "").split("/") if part]
    for count in range(1, len(parts) + 1):
        name = "/".join(parts[:count])
        with _library_errors(f"[open_store] {path}::{name}"):
            link = file.get(name, getlink=True)
        if isinstance(link, library.ExternalLink):
            raise StoreError(
                f"[open_store] {path}::{name} is a link to another file ({link.filename}); {_EXTERNAL_REMEDY}"
            )


def _refuse_external_data(path: Path, dataset: Any) -> None:
    """Raise StoreError for a dataset whose elements are stored in other files."""
    created = dataset.id.get_create_plist()
    is_elsewhere = os.path.realpath(os.fsdecode(dataset.file.filename)) != os.path.realpath(path)
    if created.get_external_count() or dataset.is_virtual or is_elsewhere:
        raise StoreError(
            f"[open_store] {path}::{dataset.name} is stored in other files, which this file names; "
            f"{_EXTERNAL_REMEDY}"
        )


def _placement(path: Path, dataset: Any) -> Placement | None:
    """Return where a dataset lies that is one run of plain elements in this file; None for any other."""
    library = h5py_library()
    created = dataset.id.get_create_plist()
    plain = created.get_layout() == library.h5d.CONTIGUOUS and created.get_external_count() == 0
    kind = dataset.id.get_type()
    if not plain or not kind.equal(library.h5t.py_create(dataset.dtype, logical=True)):
        return None
    dtype = parse_dtype(dataset.dtype, op=f"open_store {path.name}")
    offset = dataset.id.get_offset()
    elsewhere = os.path.realpath(os.fsdecode(dataset.file.filename)) != os.path.realpath(path)
    if offset is None or elsewhere or 0 in dataset.shape:
        return None
    return Placement.dense(dataset.shape, dtype, offset=offset, swapped=dataset.dtype != dtype)


def _check_sole_entry(target: Target, key: str) -> None:
    if not key:
        raise StoreFormatError(f"[create_store] {target.path}::{target.key}: name a dataset")
    if not target.path.is_file():
        return
    try:
        with _opened(target.path) as file:
            others = [name for name in _dataset_names(file) if name != key]
    except StoreError:
        return  # nothing that could be read
    if others:
        raise StoreError(
            f"[create_store] {target.path} holds other datasets ({', '.join(others[:20])}), and a result "
            "replaces the whole file; write to another one, or give the open h5py dataset as out"
        )
