"""Model of a checkpoint, built without weights from its configuration."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.weak import WeakIdKeyDictionary

from accelera.capture import default_dtype
from accelera.errors import StoreFormatError, UnknownNameError
from accelera.extras import transformers_for

CONFIG = "config.json"

_GENERATION = "generation_config.json"


def config_of(folder: Path) -> Any:
    """Return the configuration in ``folder``, None where there is no ``config.json``.

    Raises StoreFormatError for one that cannot be read, BackendMissingError without transformers.
    """
    path = folder / CONFIG
    return _read(transformers_for("offload_checkpoint", path).AutoConfig, path) if path.is_file() else None


def architecture_of(folder: Path, config: Any) -> Any:
    """Return the class that ``config`` names.

    Raises StoreFormatError when it names none, UnknownNameError when transformers does not have it.
    """
    names = getattr(config, "architectures", None) or []
    if not names:
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


def _read(kind: Any, path: Path) -> Any:
    try:
        return kind.from_pretrained(path.parent)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
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
        raise TypeError(
            f"[offload_checkpoint] the model is a {type(module).__name__}; a torch.nn.Module is needed"
        )
    tie = getattr(module, "tie_weights", None)
    if callable(tie):
        tie()
    return module
