"""What a checkpoint says of its model besides tensors, read by ``transformers``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
