"""Subject of an estimate: a model without contents, and the inputs it is run on.

Models of ``transformers`` are built from their configuration, with inputs to match.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from accelera._extras import transformers_for
from accelera.capture._internal import (
    CopiesOfFakes,
    ShapeMode,
    has_kept_value,
    initializers_of_shapes,
    refuse_lazy_layers,
)
from accelera.errors import ArgumentError, MissingFileError
from accelera.estimate.element_types import own_type, shape_of, twin


@dataclass(frozen=True)
class Subject:
    """A model and what it is run on, in shapes alone."""

    name: str
    module: torch.nn.Module
    """Its weights are on ``meta``."""
    batch: int | None
    context: int | None
    make_inputs: Callable[[bool], Any]
    """From whether it trains to its inputs on ``meta``, or to a function that makes them."""
    generates: bool

    @property
    def own(self) -> str:
        """The element type that the model was built in."""
        return own_type(self.module)

    def inputs(self, *, train: bool, dtype: torch.dtype | None) -> Any:
        """Return the inputs, or what makes them, floating-point ones in ``dtype``; None leaves theirs."""
        made = self.make_inputs(train)
        return (lambda: _in_type(made(), dtype)) if callable(made) else _in_type(made, dtype)

    def prompt(self) -> dict[str, Any]:
        """Return all tokens of the context but the last, which is decoded."""
        assert self.batch is not None
        assert self.context is not None
        rows = torch.zeros(self.batch, max(1, self.context - 1), dtype=torch.long, device="meta")
        return {"input_ids": rows}


def subject_of(model: Any, inputs: Any, batch: int | None, context: int | None) -> Subject:
    """Return the subject that ``model`` and ``inputs`` name; see ``estimate``."""
    module, inputs = _build_subject(model, inputs)
    if inputs is not None:
        if batch is not None or context is not None:
            raise ArgumentError(
                "[estimate] batch= and context= shape inputs that are made; inputs= are given"
            )
        known = inputs if callable(inputs) else _on_meta(inputs)
        return Subject(type(module).__name__, module, None, None, lambda _train: known, False)
    if not makes_own_inputs(module):
        raise ArgumentError(
            f"[estimate] the inputs of a {type(module).__name__} do not follow from it; give inputs= "
            "(on the command line --input SHAPE), a tensor, a tuple, a dictionary, or a function making them"
        )
    return _of_transformers(module, batch or 1, context)


def _of_transformers(module: torch.nn.Module, batch: int, context: int | None) -> Subject:
    tokens = context or usual_context(module)
    return Subject(
        type(module).__name__,
        module,
        batch,
        tokens,
        lambda train: inputs_for(module, batch, tokens, train=train),
        generates(module),
    )


def _build_subject(model: Any, inputs: Any) -> tuple[torch.nn.Module, Any]:
    if isinstance(model, (str, Path)):
        return build(read_config(Path(model))), inputs
    if is_config(model):
        return build(model), inputs
    if not isinstance(model, torch.nn.Module) and callable(model):
        with ShapeMode(allow_non_fake_inputs=True), CopiesOfFakes(), initializers_of_shapes():
            return _without_contents(model(), inputs)
    return _without_contents(model, inputs)


def _without_contents(model: Any, inputs: Any) -> tuple[torch.nn.Module, Any]:
    """Return the twin of a module, or of a pair of module and inputs."""
    module, own_inputs = model if isinstance(model, tuple) and len(model) == 2 else (model, None)
    if not isinstance(module, torch.nn.Module):
        raise ArgumentError(
            f"[estimate] the model is a {type(module).__name__}; give a torch.nn.Module, a function that "
            "builds one, a configuration of transformers, or the path of its config.json"
        )
    refuse_lazy_layers("estimate", module)
    return twin(module), _on_meta(own_inputs) if inputs is None else inputs


def _on_meta(values: Any) -> Any:
    """Return tensors without contents, except for small ones, whose values a model may ask for."""

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if has_kept_value(tensor):
            return tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return shape_of(tensor).requires_grad_(tensor.requires_grad)

    return pytree.tree_map_only(torch.Tensor, convert, values)


def _in_type(values: Any, dtype: torch.dtype | None) -> Any:
    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if dtype is None or not tensor.is_floating_point() or tensor.dtype == dtype:
            return tensor
        return tensor.detach().to(dtype).requires_grad_(tensor.requires_grad)

    return pytree.tree_map_only(torch.Tensor, convert, values)


_USUAL_CONTEXT = 2048
_LABELS_PER_TOKEN = ("LM", "Generation", "TokenClassification", "PreTraining")


def is_config(value: Any) -> bool:
    """Return whether ``value`` is a configuration of ``transformers``."""
    return hasattr(value, "model_type") and hasattr(value, "to_dict") and not callable(value)


def read_config(path: Path) -> Any:
    """Return the configuration in a file, or in the ``config.json`` of a folder; nothing is downloaded.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        A file that ``transformers`` cannot make a configuration of.
    BackendMissingError
        ``transformers`` is not installed.
    """
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise MissingFileError(
            f"[estimate] no file {file}; name a config.json, the folder that it is in, or a model in Python"
        )
    if file.suffix == ".py":
        raise ArgumentError(
            f"[estimate] {file} is a program; name what in it is the model, as in {file}:build"
        )
    from_pretrained = transformers_for("estimate", file).AutoConfig.from_pretrained
    try:
        return from_pretrained(str(file), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises whatever its checks of the fields raise
        raise ArgumentError(f"[estimate] {file} is no configuration of a model: {error}") from error


def build(config: Any) -> torch.nn.Module:
    """Return the model of a configuration with shapes and no contents, in the element type it names."""
    own = getattr(config, "dtype", None) or torch.float32
    with torch.device("meta"):
        model: torch.nn.Module = _class_of(config)._from_config(config, dtype=own)
    return model


def makes_own_inputs(module: Any) -> bool:
    """Return whether inputs for ``module`` follow from its configuration."""
    return getattr(module, "main_input_name", None) in ("input_ids", "pixel_values") and hasattr(
        module, "config"
    )


def generates(module: Any) -> bool:
    """Return whether ``module`` decodes token by token with a key-value cache."""
    can = getattr(module, "can_generate", lambda: False)()
    return bool(can) and not module.config.is_encoder_decoder and module.main_input_name == "input_ids"


def usual_context(module: Any) -> int | None:
    """Return the context to estimate with when none is asked for; None for models without tokens."""
    if module.main_input_name != "input_ids":
        return None
    text = module.config.get_text_config()
    own = getattr(text, "max_position_embeddings", None) or _USUAL_CONTEXT
    return min(int(own), _USUAL_CONTEXT)


def inputs_for(module: Any, batch: int, context: int | None, *, train: bool) -> dict[str, Any]:
    """Return named inputs without contents for one forward pass, with labels to train on."""
    accepted = inspect.signature(module.forward).parameters
    with torch.device("meta"):
        found: dict[str, Any] = (
            _tokens(module, batch, context) if context else {"pixel_values": _pixels(module, batch)}
        )
        if train and "labels" in accepted:
            found["labels"] = _labels(module, batch, context)
    if train and "use_cache" in accepted:
        found["use_cache"] = False
    return found


def kv_bytes_per_token(config: Any, itemsize: int) -> int:
    """Return the bytes that keys and values of one token take over all layers, by the usual formula.

    Models that keep something else, such as compressed keys or a window of them, keep less. 0 for models
    without attention.
    """
    text = config.get_text_config()
    if not hasattr(text, "num_attention_heads"):
        return 0
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * text.num_hidden_layers * heads * width * itemsize)


def _tokens(module: Any, batch: int, context: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {"input_ids": torch.zeros(batch, context or 1, dtype=torch.long)}
    if module.config.is_encoder_decoder:
        found["decoder_input_ids"] = torch.zeros(batch, context or 1, dtype=torch.long)
    return found


def _pixels(module: Any, batch: int) -> torch.Tensor:
    config = getattr(module.config, "vision_config", module.config)
    size = getattr(config, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    return torch.zeros(batch, getattr(config, "num_channels", 3), height, width)


def _labels(module: torch.nn.Module, batch: int, context: int | None) -> torch.Tensor:
    name = type(module).__name__
    per_token = context is not None and any(each in name for each in _LABELS_PER_TOKEN)
    return torch.zeros(*((batch, context) if per_token else (batch,)), dtype=torch.long)


def _class_of(config: Any) -> Any:
    """Return the class that a configuration names, else that of its usual task."""
    transformers = transformers_for("estimate", type(config).__name__)
    for name in getattr(config, "architectures", None) or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)
    tasks = ["CausalLM", "ImageClassification"]
    if config.is_encoder_decoder:
        tasks.insert(0, "Seq2SeqLM")
    elif not getattr(config, "is_decoder", False):
        tasks.insert(0, "MaskedLM")
    for auto in (*(getattr(transformers, f"AutoModelFor{task}") for task in tasks), transformers.AutoModel):
        if type(config) in auto._model_mapping:
            return auto._model_mapping[type(config)]
    raise ArgumentError(f"[estimate] transformers has no model for a {type(config).__name__}")
