"""Mapping from the tensors of a checkpoint to the parameters and buffers of a model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from accelera.errors import DTypeError, ShapeError, StoreError
from accelera.offload.checkpoints.shards import Shards, Stored

_SHOWN = 12


@dataclass(frozen=True)
class ModelSlot:
    """One tensor that a model wants, and every place in which it stands."""

    tensor: torch.Tensor
    places: tuple[tuple[nn.Module, str], ...]
    """Modules and the attribute's name in each."""
    names: tuple[str, ...]
    """The name of each place from the root."""

    @property
    def is_parameter(self) -> bool:
        """Whether it is a parameter, not a buffer."""
        return isinstance(self.tensor, nn.Parameter)


def slots_of(module: nn.Module) -> list[ModelSlot]:
    """Return the parameters and persistent buffers of ``module``; tied ones are one slot."""
    found: dict[int, list[tuple[nn.Module, str, str]]] = {}
    tensors: dict[int, torch.Tensor] = {}
    for path, part in module.named_modules():
        persistent = {
            name: each for name, each in part._buffers.items() if name not in part._non_persistent_buffers_set
        }
        for name, tensor in (*part._parameters.items(), *persistent.items()):
            if tensor is not None:
                tensors[id(tensor)] = tensor
                place = (part, name, f"{path}.{name}".lstrip("."))
                found.setdefault(id(tensor), []).append(place)
    return [
        ModelSlot(
            tensors[key], tuple((part, name) for part, name, _ in places), tuple(full for *_, full in places)
        )
        for key, places in found.items()
    ]


@dataclass(frozen=True)
class Matched:
    """A model's slots with the stored tensor of each."""

    pairs: tuple[tuple[ModelSlot, str, Stored], ...]
    """Slot, the checkpoint's name for it, and the tensor."""
    unexpected: tuple[str, ...]
    """Names in the checkpoint that nothing in the model has."""


def matched(module: nn.Module, shards: Shards) -> Matched:
    """Find every slot of ``module`` in ``shards``.

    Names may lack the prefix of the model without its head (``transformer.`` …), or have one too many, as
    Hugging Face's own loader takes them.

    Raises
    ------
    StoreError
        Names that the model needs and the checkpoint lacks.
    ShapeError
        Tensors of another shape.
    DTypeError
        Whole numbers where the model has floating-point ones, or the other way round.
    """
    renamed = _Renaming(module, shards)
    pairs, missing = [], []
    for slot in slots_of(module):
        name = next((renamed(each) for each in slot.names if renamed(each) in shards), None)
        if name is not None:
            pairs.append((slot, name, shards[name]))
        elif not _ignored(slot.names, _patterns(module, "_keys_to_ignore_on_load_missing")):
            missing.append(slot.names[0])
    _refuse_missing(missing, shards, module)
    _refuse_shapes(pairs)
    _refuse_kinds(pairs)
    used = {renamed(name) for slot, *_ in pairs for name in slot.names}
    others = [name for name in shards.names() if name not in used]
    ignored = _patterns(module, "_keys_to_ignore_on_load_unexpected")
    return Matched(tuple(pairs), tuple(name for name in others if not _ignored([name], ignored)))


def listed(names: Iterable[str]) -> str:
    """Return names for a message, the first few and how many more there are."""
    given = list(names)
    more = f" and {len(given) - _SHOWN} more" if len(given) > _SHOWN else ""
    return ", ".join(given[:_SHOWN]) + more


class _Renaming:
    """From a model's name for a tensor to the checkpoint's."""

    def __init__(self, module: nn.Module, shards: Shards) -> None:
        prefix = str(getattr(module, "base_model_prefix", ""))
        self._prefix = f"{prefix}." if prefix else ""
        self._shards = shards
        has_base = bool(prefix) and hasattr(module, prefix)
        stored_with = any(name.startswith(self._prefix) for name in shards.names())
        self._drop = has_base and not stored_with
        self._add = bool(prefix) and not has_base and stored_with

    def __call__(self, name: str) -> str:
        if name in self._shards:
            return name
        if self._drop:
            return name.removeprefix(self._prefix)
        return self._prefix + name if self._add else name


def _patterns(module: nn.Module, attribute: str) -> list[str]:
    given: Any = getattr(module, attribute, None)
    return [str(each) for each in given or ()]


def _ignored(names: Iterable[str], patterns: list[str]) -> bool:
    return any(re.search(pattern, name) for pattern in patterns for name in names)


def _refuse_missing(missing: list[str], shards: Shards, module: nn.Module) -> None:
    if missing:
        raise StoreError(
            f"[offload_checkpoint] {shards.folder} lacks {len(missing)} tensors that {type(module).__name__} "
            f"needs: {listed(missing)}; it has {listed(shards.names())}; give the class and config that the "
            "checkpoint was saved with"
        )


def _refuse_shapes(pairs: list[tuple[ModelSlot, str, Stored]]) -> None:
    wrong = [
        f"{name} is {list(stored.shape)}, the model's {list(slot.tensor.shape)}"
        for slot, name, stored in pairs
        if tuple(slot.tensor.shape) != stored.shape
    ]
    if wrong:
        raise ShapeError(
            f"[offload_checkpoint] {len(wrong)} tensors have another shape than the model: {listed(wrong)}; "
            "give the config that the checkpoint was saved with"
        )


def _refuse_kinds(pairs: list[tuple[ModelSlot, str, Stored]]) -> None:
    wrong = [
        f"{name} is {stored.dtype}, the model's {slot.tensor.dtype}"
        for slot, name, stored in pairs
        if _kind(slot.tensor.dtype) != _kind(stored.dtype)
    ]
    if wrong:
        raise DTypeError(
            f"[offload_checkpoint] {len(wrong)} tensors are of another kind of number than the model's: "
            f"{listed(wrong)}; give the class and config that the checkpoint was saved with, or convert it"
        )


def _kind(dtype: torch.dtype) -> tuple[bool, bool]:
    return dtype.is_floating_point, dtype.is_complex
