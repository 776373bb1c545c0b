"""Safetensors files of a checkpoint: shards read in place, one file written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import nn

from accelera._atomic import atomic_write
from accelera._json_values import parse_json, shown
from accelera.errors import DTypeError, StoreError, StoreFormatError
from accelera.offload.backing import FileRegion, OpenFile
from accelera.offload.tensor import OffloadedTensor, as_mapped
from accelera.stores._internal import TensorEntry, tensor_entries

SINGLE = "model.safetensors"

INDEX = "model.safetensors.index.json"
_LONGEST_NAME = 255
"""Bytes of the longest name of a file."""

_PICKLE_FILES = ("pytorch_model.bin", "pytorch_model.bin.index.json")

_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}


def stored_name_of(dtype: torch.dtype) -> str | None:
    """Return what ``.safetensors`` calls an element type, None when it has no name for it."""
    return next((name for name, known in _DTYPES.items() if known == dtype), None)


class Stored(NamedTuple):
    """One tensor of a checkpoint, and where its bytes are."""

    file: OpenFile
    offset: int
    """File position of its first byte."""
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    def region(self, start: int, nbytes: int) -> FileRegion:
        """Return ``nbytes`` of it from byte ``start`` on, as the backing store of a block."""
        return FileRegion(self.file, self.offset + start, nbytes)

    def mapped(self) -> torch.Tensor:
        """Return it as an ordinary tensor whose pages are those of the file."""
        pages = self.region(0, self.nbytes).mapped()
        return torch.from_numpy(pages).view(self.dtype).view(self.shape)


@final
class Shards:
    """Every tensor of a folder; files are opened, and nothing of them is read but their headers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stored: dict[str, Stored] = {}
        for path in _files(folder):
            self._add(path)

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def __getitem__(self, name: str) -> Stored:
        return self._stored[name]

    def names(self) -> Iterable[str]:
        """Return the names of all tensors."""
        return self._stored.keys()

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(stored.nbytes for stored in self._stored.values())

    def _add(self, path: Path) -> None:
        file = OpenFile.existing(path)
        for name, entry in tensor_entries(path).items():
            if name in self._stored:
                first = self._stored[name].file.path.name
                raise StoreFormatError(
                    f"[offload_checkpoint] {name} is in {first} and in {path.name}; a tensor belongs to one "
                    "file of a checkpoint: save it again"
                )
            self._stored[name] = Stored(file, entry.offset, entry.shape, _dtype(path, name, entry))


def _files(folder: Path) -> list[Path]:
    """Return the weight files of ``folder``, all there."""
    if (folder / INDEX).is_file():
        return _indexed(folder)
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if not folder.is_dir():
        raise StoreError(f"[offload_checkpoint] {folder} is no folder; give the folder of a checkpoint")
    if any((folder / name).is_file() for name in _PICKLE_FILES):
        raise StoreFormatError(
            f"[offload_checkpoint] {folder} holds {_PICKLE_FILES[0]}, a pickle that cannot be read piece by "
            "piece; write it as safetensors once: model.save_pretrained(folder, safe_serialization=True), or "
            "safetensors.torch.save_file(state_dict, folder / 'model.safetensors')"
        )
    others = sorted(folder.glob("*.safetensors"))
    if len(others) != 1:
        found = ", ".join(path.name for path in others[:8]) or "no .safetensors file"
        raise StoreError(
            f"[offload_checkpoint] {folder} has neither {SINGLE} nor {INDEX}, but {found}; give the folder "
            "that save_pretrained wrote"
        )
    return others


def _indexed(folder: Path) -> list[Path]:
    try:
        by_name = parse_json((folder / INDEX).read_bytes())["weight_map"]
        names = sorted(set(by_name.values()))
        outside = [name for name in names if not _is_file_name(name)]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise StoreFormatError(
            f"[offload_checkpoint] {folder / INDEX} is no index of shards: a JSON object with 'weight_map' "
            f"is needed ({error})"
        ) from error
    if outside:
        raise StoreFormatError(
            f"[offload_checkpoint] {folder / INDEX} names {shown(outside[0], repr)}, expected the name of a "
            "file in its folder; get the checkpoint again"
        )
    files = [folder / name for name in names]
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise StoreError(
            f"[offload_checkpoint] {folder / INDEX} names {', '.join(missing[:8])}, which are not there; "
            f"{len(missing)} of {len(files)} files are missing: get the checkpoint again"
        )
    return files


def _is_file_name(name: str) -> bool:
    """Return whether ``name`` is one component of a path, which a file system takes."""
    return Path(name).name == name and "\0" not in name and len(os.fsencode(name)) <= _LONGEST_NAME


def _dtype(path: Path, name: str, entry: TensorEntry) -> torch.dtype:
    if entry.dtype not in _DTYPES:
        raise DTypeError(
            f"[offload_checkpoint] {path.name}::{name} has elements of type {entry.dtype}; known are "
            f"{', '.join(_DTYPES)}: convert the checkpoint"
        )
    return _DTYPES[entry.dtype]


_ALIGNMENT_BYTES = 4096


def save_checkpoint(model: nn.Module, folder: str | Path) -> Path:
    """Write the weights and persistent buffers of ``model`` to ``folder``; return the file.

    Each tensor is written once, under the first of its names. The file appears when it is complete. Raises
    StoreError when it cannot be written, DTypeError for an element type that the format lacks.
    """
    path = Path(folder) / SINGLE
    tensors = _distinct(model)
    header = _header(tensors)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, durable=True) as partial, open(partial, "wb") as file:
            file.write(header)
            for tensor in tensors.values():
                file.write(_bytes_of(tensor))
    except OSError as error:
        raise StoreError(
            f"[offload] {path} cannot be written: {error.strerror}; name another folder, or free some space"
        ) from error
    return path


def _distinct(model: nn.Module) -> dict[str, torch.Tensor]:
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor):
            found.setdefault(id(tensor), (name, tensor.detach()))
    return dict(found.values())


def _header(tensors: dict[str, torch.Tensor]) -> bytes:
    entries, place = {}, 0
    for name, tensor in tensors.items():
        offsets = [place, place + tensor.numel() * tensor.element_size()]
        entries[name] = {"dtype": _stored(name, tensor), "shape": [*tensor.shape], "data_offsets": offsets}
        place = offsets[1]
    text = json.dumps(entries, separators=(",", ":")).encode()
    length = -(-(8 + len(text)) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES - 8
    return length.to_bytes(8, "little") + text.ljust(length)


def _stored(name: str, tensor: torch.Tensor) -> str:
    stored = stored_name_of(tensor.dtype)
    if stored is None:
        raise DTypeError(
            f"[offload] {name} is of {tensor.dtype}, which .safetensors has no name for; convert it"
        )
    return stored


def _bytes_of(tensor: torch.Tensor) -> Any:
    """Return the elements in row-major order; those of an offloaded tensor are mapped."""
    plain = as_mapped(tensor) if isinstance(tensor, OffloadedTensor) else tensor
    flat = plain.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return flat.numpy()
