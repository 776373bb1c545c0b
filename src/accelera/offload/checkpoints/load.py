"""Loading of a checkpoint: a model built without weights, and its tensors found in the files."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.weak import WeakIdKeyDictionary

from accelera._extras import transformers_for
from accelera.capture._internal import default_dtype
from accelera.errors import (
    ArgumentError,
    DTypeError,
    ShapeError,
    StoreError,
    StoreFormatError,
    UnknownNameError,
)
from accelera.memory._internal import PoolBlock
from accelera.offload.block_cache import BlockCache
from accelera.offload.block_layout import row_parts
from accelera.offload.checkpoints.shards import Shards, Stored
from accelera.offload.tensor import BlockStorage, OffloadedTensor

CONFIG = "config.json"

_GENERATION = "generation_config.json"

_SHOWN = 12
"""Most names that a message lists."""


def config_of(folder: Path) -> Any:
    """Return the configuration in ``folder``, None where there is no ``config.json``.

    Raises StoreFormatError for one that cannot be read, also one that needs code of its own, and
    BackendMissingError without transformers.
    """
    path = folder / CONFIG
    if not path.is_file():
        return None
    kind = transformers_for("offload_checkpoint", path).AutoConfig
    return _read(kind, path, local_files_only=True, trust_remote_code=False)


def architecture_of(folder: Path, config: Any) -> Any:
    """Return the class that ``config`` names.

    Raises StoreFormatError when it names none, UnknownNameError when transformers does not have it.
    """
    names = getattr(config, "architectures", None)
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise StoreFormatError(
            f"[offload_checkpoint] {folder} has no config.json that names an architecture; give model_class"
        )
    found = getattr(transformers_for("offload_checkpoint", folder / CONFIG), names[0], None)
    if found is None:
        raise UnknownNameError(
            f"[offload_checkpoint] transformers has no {names[0]}, which {folder / CONFIG} names; "
            "give model_class"
        )
    return found


def generate_as(folder: Path, model: Any) -> None:
    """Let a model that generates do so as the checkpoint says."""
    path = folder / _GENERATION
    if hasattr(model, "generation_config") and path.is_file():
        model.generation_config = _read(transformers_for("offload_checkpoint", path).GenerationConfig, path)


def _read(kind: Any, path: Path, **options: bool) -> Any:
    try:
        return kind.from_pretrained(path.parent, **options)
    except Exception as error:  # transformers raises whatever its checks of the fields raise
        reason = str(error).strip().partition("\n")[0]
        raise StoreFormatError(
            f"[offload_checkpoint] {path} cannot be read as a configuration of transformers ({reason}); get "
            "the file again, or give model_class and config"
        ) from error


@contextmanager
def weightless() -> Iterator[None]:
    """Keep only the shape of each parameter that this thread registers meanwhile.

    What a module allocates for a parameter is given back at once, so never more than one is there, and
    torch's own modules do not touch that one. Parameters shared by modules stay shared.
    """
    building = threading.get_ident()
    shapes = WeakIdKeyDictionary()

    def register(_module: nn.Module, _name: str, parameter: nn.Parameter) -> Any:
        if threading.get_ident() != building or parameter.is_meta:
            return None
        if parameter not in shapes:
            shapes[parameter] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        shape: nn.Parameter = shapes[parameter]
        return shape

    handle = register_module_parameter_registration_hook(register)
    try:
        yield
    finally:
        handle.remove()


def skeleton_of(build: Callable[[], Any], dtype: torch.dtype | None) -> nn.Module:
    """Return the module that ``build`` makes, its parameters on ``meta`` and its buffers real.

    Raises TypeError when it makes something else.
    """
    with weightless(), default_dtype(dtype):
        module = build()
    if not isinstance(module, nn.Module):
        raise ArgumentError(
            f"[offload_checkpoint] the model is a {type(module).__name__}; a torch.nn.Module is needed"
        )
    tie = getattr(module, "tie_weights", None)
    if callable(tie):
        tie()
    return module


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


def fill(found: Matched, cache: BlockCache, dtype: torch.dtype | None) -> None:
    """Give every slot its tensor.

    Parameters
    ----------
    dtype
        Floating-point weights of another type are converted, into scratch space of ``cache``; None leaves
        all as they are stored.
    """
    for slot, name, stored in found.pairs:
        _assign(slot, _tensor(name, stored, _dtype_for(stored, dtype), cache, slot))


def _dtype_for(stored: Stored, wanted: torch.dtype | None) -> torch.dtype:
    converts = wanted is not None and stored.dtype.is_floating_point and stored.dtype.itemsize > 1
    return wanted if converts and wanted is not None else stored.dtype


def _tensor(
    name: str, stored: Stored, dtype: torch.dtype, cache: BlockCache, slot: ModelSlot
) -> torch.Tensor:
    nbytes = torch.Size(stored.shape).numel() * dtype.itemsize
    if not slot.is_parameter or nbytes < max(1, cache.least_bytes):
        return _load_ordinary(stored, dtype).to(cache.device)
    blocks = (
        _attach_blocks(name, stored, cache)
        if dtype == stored.dtype
        else _convert_blocks(name, stored, dtype, cache)
    )
    strides = torch.empty(stored.shape, device="meta").stride()
    return OffloadedTensor(BlockStorage(cache, blocks, stored.shape, dtype), stored.shape, strides)


def _load_ordinary(stored: Stored, dtype: torch.dtype) -> torch.Tensor:
    if not stored.nbytes:
        return torch.empty(stored.shape, dtype=dtype)
    return stored.mapped().to(dtype, copy=True)


def _attach_blocks(name: str, stored: Stored, cache: BlockCache) -> list[PoolBlock]:
    """Return blocks whose backing store is the file itself."""
    row_bytes = stored.nbytes // stored.shape[0] if stored.shape else stored.nbytes
    blocks = []
    for part in row_parts(stored.shape, stored.dtype.itemsize, cache.block_bytes):
        start, nbytes = part.start * row_bytes, (part.stop - part.start) * row_bytes
        blocks.append(cache.attach(stored.region(start, nbytes), nbytes, name))
    return blocks


def _convert_blocks(name: str, stored: Stored, dtype: torch.dtype, cache: BlockCache) -> list[PoolBlock]:
    """Return blocks with the elements in another type, a block converted at a time."""
    elements = stored.mapped().reshape(stored.shape or (1,))
    parts = row_parts(stored.shape, dtype.itemsize, cache.block_bytes)
    return [block for part in parts for block in cache.adopt(elements[part].to(dtype), name)]


def _assign(slot: ModelSlot, tensor: torch.Tensor) -> None:
    if slot.is_parameter:
        tensor = nn.Parameter(tensor, requires_grad=slot.tensor.requires_grad and tensor.is_floating_point())
    for module, name in slot.places:
        place: dict[str, Any] = module._parameters if slot.is_parameter else module._buffers
        place[name] = tensor
