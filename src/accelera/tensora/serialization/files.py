"""Files of tensors by name in the safetensors format, which other libraries read and write as well."""

from __future__ import annotations

import fcntl
import itertools
import json
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from accelera.errors import ArgumentError, DTypeError, StateError, StoreError, StoreFormatError
from accelera.stores._internal import tensor_entries
from accelera.tensora.core import DType, Tensor, native
from accelera.tensora.inspection import placed
from accelera.tensora.serialization.memory import (
    fill,
    first_names,
    over_bytes,
    require_named_tensors,
    staged_bytes,
)
from accelera.tensora.typing import Device, SupportsStateDict

_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
}
_TYPES = {theirs: native.to_dtype(ours) for ours, theirs in _NAMES.items()}
_METADATA = "__metadata__"
_ALIGNMENT = 64
_count = itertools.count()

Named = Mapping[str, Any]


# --- writing ----------------------------------------------------------------------------------------------


def save_file(tensors: Named, path: str | os.PathLike[str], metadata: dict[str, str] | None = None) -> None:
    """Write tensors to a file, one after the other.

    The file appears under its name when it is complete and on the disk; what was there before stays until
    then. Beside the tensors at most 4 MiB are needed, and a copy of one tensor that is not contiguous.

    Parameters
    ----------
    tensors
        By name. Tensors that share memory are written once each.
    path
        Of the file, usually with the suffix ``.safetensors``.
    metadata
        Strings by name, which the file carries along.

    Raises
    ------
    TypeError
        If something else than tensors and strings is given, or a complex128 tensor, which the format lacks.
    StoreError
        If the file cannot be written.

    """
    ordered = in_file_order(tensors)
    with replaced(path) as file:
        file.write(header_of(ordered, metadata or {}))
        write_elements(file.write, ordered)


def in_file_order(tensors: Named) -> dict[str, Any]:
    """Tensors by name, the widest elements first, so that all are aligned in a file."""
    require_named_tensors(tensors)
    return dict(sorted(tensors.items(), key=lambda item: (-native.itemsize(item[1].dtype), item[0])))


def header_of(tensors: Named, metadata: Mapping[str, str]) -> bytes:
    """Return the header of a file: size and JSON index of its tensors, before the first element."""
    fields: dict[str, Any] = {}
    for key, value in metadata.items():
        if not all(isinstance(each, str) for each in (key, value)):
            raise ArgumentError(f"[save_file] metadata {key!r}: {value!r:.60}; give strings by strings")
    if metadata:
        fields[_METADATA] = dict(metadata)
    place = 0
    for name, tensor in tensors.items():
        end = place + tensor.size * native.itemsize(tensor.dtype)
        fields[name] = {
            "dtype": _stored_name(name, tensor.dtype),
            "shape": [*tensor.shape],
            "data_offsets": [place, end],
        }
        place = end
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    length = -(-(8 + len(text)) // _ALIGNMENT) * _ALIGNMENT - 8
    return length.to_bytes(8, "little") + text.ljust(length)


def _stored_name(name: str, dtype: DType) -> str:
    if name == _METADATA:
        raise ArgumentError(f"[save_file] a tensor named {_METADATA!r}, which the format keeps for strings")
    if dtype.name not in _NAMES:
        raise DTypeError(
            f"[save_file] {name!r} is of {dtype.name}, which the safetensors format has no name for; "
            "convert it, or save its real and imaginary parts"
        )
    return _NAMES[dtype.name]


def write_elements(write: Callable[[memoryview], Any], tensors: Named) -> None:
    """Hand the elements of all tensors to a function, piece by piece."""
    for piece in staged_bytes(tensors.values()):
        write(piece)


@contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new file beside `path`, which takes its place when all went well and it is on the disk.

    What writers that were killed have left behind is removed.

    Raises
    ------
    StoreError
        If a file cannot be written there.

    """
    target = Path(os.path.realpath(path))
    partial = target.with_name(f".{target.name}.{os.getpid()}-{next(_count)}.partial")
    try:
        _remove_abandoned(target)
        with open(partial, "xb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # for as long as its writer lives
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(partial, target)
        _sync_folder(target.parent)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(
            f"[save] {target} cannot be written: {error.strerror or error}; "
            "name another folder, or free some space"
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink()


def _remove_abandoned(target: Path) -> None:
    for partial in target.parent.glob(f".{_escaped(target.name)}.*-*.partial"):
        writer = partial.name.split(".")[-2].split("-")[0]
        if Path("/proc", writer).exists():
            continue  # its writer lives, though it may not have locked the file yet
        with suppress(OSError), open(partial, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            partial.unlink()


def _escaped(name: str) -> str:
    """Return the `glob` pattern that matches exactly this name."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- reading ----------------------------------------------------------------------------------------------


class TensorFile:
    """Tensors of a file, mapped: their bytes are read when they are used.

    Parameters
    ----------
    path
        Of a file in the safetensors format.
    writable
        Let the tensors be written to, in memory alone.

    Raises
    ------
    StoreError
        If it cannot be read; StoreFormatError if it is damaged.

    """

    def __init__(self, path: str | os.PathLike[str], *, writable: bool = False) -> None:
        self.path = Path(path)
        access = mmap.ACCESS_COPY if writable else mmap.ACCESS_READ
        same = False
        while not same:  # unless another file took its place in between
            with _opened(self.path) as file:
                entries = tensor_entries(self.path)
                self.buffer = mmap.mmap(file.fileno(), 0, access=access)
                same = _is_same_file(self.path, file)
        self.entries = dict(sorted(entries.items(), key=lambda item: item[1].offset))
        """Position, shape and type of each tensor, in the order of the file."""
        self.data_begin = 8 + int.from_bytes(self.buffer[:8], "little")
        """Position of the first byte of the first tensor."""
        found = json.loads(self.buffer[8 : self.data_begin]).get(_METADATA) or {}
        if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
            raise StoreFormatError(f"[load_file] {path}: its metadata are no strings by name; write it again")
        self.metadata: dict[str, str] = found
        """Strings that the file carries along."""

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def tensor(self, name: str) -> Tensor:
        """Tensor over the mapped file.

        Raises
        ------
        DTypeError
            If its element type is one that tensors do not have, as 8-bit floating-point numbers.

        """
        entry = self.entries[name]
        if entry.dtype not in _TYPES:
            raise DTypeError(
                f"[load_file] {self.path}: {name!r} has elements of type {entry.dtype}, which tensora lacks; "
                "convert it with the library that wrote it, to BF16 for instance"
            )
        return over_bytes(self.buffer, _TYPES[entry.dtype], entry.shape, entry.offset)


def _opened(path: Path) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        raise StoreError(f"[load_file] {path} cannot be read: {error.strerror}; check the path") from error


def _is_same_file(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def load_file(path: str | os.PathLike[str], device: Device = "cpu") -> dict[str, Any]:
    """Tensors of a file by name, each read straight into its own memory.

    Parameters
    ----------
    path
        Of a file in the safetensors format, by whichever library.
    device
        Where the tensors are to be.

    Returns
    -------
    dict
        Tensors by name, in the order of the file.

    Raises
    ------
    StoreError
        If it cannot be read; StoreFormatError if it is damaged.
    DTypeError
        If it has elements of a type that tensors do not have.

    """
    file = TensorFile(path)
    mapped = {name: file.tensor(name) for name in file.entries}
    return {name: _copy_to_device(each, device) for name, each in mapped.items()}


def _copy_to_device(mapped: Any, device: Device) -> Any:
    moved = placed(mapped, device)
    return native.copy(mapped) if moved is mapped else moved


# --- modules ----------------------------------------------------------------------------------------------


def save_model(
    module: SupportsStateDict, path: str | os.PathLike[str], metadata: dict[str, str] | None = None
) -> None:
    """Write the parameters and persistent buffers of a module to a file, as `save_file` does.

    A tensor that has several names is written once, under the first in alphabetical order; the metadata has
    the others.

    Parameters
    ----------
    module
        Has ``state_dict()``.
    path
        Of the file.
    metadata
        Strings by name, which the file carries along.

    Raises
    ------
    TypeError
        If the state of the module is not tensors alone.
    StoreError
        If the file cannot be written.

    """
    state = module.state_dict()
    kept = first_names(state)
    twins = {name: first for name, first in kept.items() if name != first}
    save_file({name: state[name] for name in kept if name not in twins}, path, {**(metadata or {}), **twins})


def load_model(
    module: SupportsStateDict, path: str | os.PathLike[str], strict: bool = True
) -> tuple[list[str], list[str]]:
    """Read the parameters and buffers of a module from a file, into the memory that they have.

    Elements of another type are converted. Nothing is changed if something does not fit.

    Parameters
    ----------
    module
        Has ``state_dict()``, whose tensors are over the memory of its parameters and buffers.
    path
        Of a file by `save_model`, or by another library.
    strict
        Refuse a file that lacks a tensor of the module, or has others.

    Returns
    -------
    tuple
        Names that the file lacks, and names that the module lacks; both are empty if `strict`.

    Raises
    ------
    RuntimeError
        If names (where `strict`) or shapes do not fit.
    StoreError
        If the file cannot be read; StoreFormatError if it is damaged.

    """
    file = TensorFile(path)
    state = module.state_dict()
    kept = first_names(state)
    given = {name: file.tensor(name) for name in file.entries if name in state}
    filled = {kept[name] for name in given}
    missing = [name for name, first in kept.items() if first not in filled]
    unexpected = [name for name in file.entries if name not in state]
    faults = misfits(state, given)
    if strict:
        faults += [f"{path} has no {name!r}" for name in missing]
        faults += [f"the module has no {name!r}" for name in unexpected]
    if faults:
        raise StateError(f"[load_model] {type(module).__name__}: {'; '.join(faults[:20])}")
    for name, tensor in given.items():
        fill(state[name], tensor)
    return missing, unexpected


def misfits(wanted: Named, given: Named) -> list[str]:
    """Sentences about the tensors whose shapes differ from those of the same name."""
    return [
        f"{name!r} has the shape {tuple(tensor.shape)} instead of {tuple(wanted[name].shape)}"
        for name, tensor in given.items()
        if tuple(tensor.shape) != tuple(wanted[name].shape)
    ]
