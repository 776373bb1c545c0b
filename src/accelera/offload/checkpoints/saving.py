"""An offloaded model written as a checkpoint, one tensor after the other, with no memory for any of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accelera.atomic import atomic_write
from accelera.errors import DTypeError, StoreError
from accelera.offload.checkpoints.shards import SINGLE, stored_name_of
from accelera.offload.tensors.copies import as_mapped
from accelera.offload.tensors.tensor import OffloadedTensor

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
