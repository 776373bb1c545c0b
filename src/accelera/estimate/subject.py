"""Subject of an estimate: a model without contents, and the inputs it is run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from accelera.capture import CopiesOfFakes, ShapeMode, initializers_of_shapes
from accelera.estimate import huggingface
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
    module, inputs = _built(model, inputs)
    if inputs is not None:
        if batch is not None or context is not None:
            raise ValueError("[estimate] batch= and context= shape inputs that are made; inputs= are given")
        known = inputs if callable(inputs) else _on_meta(inputs)
        return Subject(type(module).__name__, module, None, None, lambda _train: known, False)
    if not huggingface.makes_own_inputs(module):
        raise TypeError(
            f"[estimate] the inputs of a {type(module).__name__} do not follow from it; give inputs= "
            "(on the command line --input SHAPE), a tensor, a tuple, a dictionary, or a function making them"
        )
    return _of_transformers(module, batch or 1, context)


def _of_transformers(module: torch.nn.Module, batch: int, context: int | None) -> Subject:
    tokens = context or huggingface.usual_context(module)
    return Subject(
        type(module).__name__,
        module,
        batch,
        tokens,
        lambda train: huggingface.inputs_for(module, batch, tokens, train=train),
        huggingface.generates(module),
    )


def _built(model: Any, inputs: Any) -> tuple[torch.nn.Module, Any]:
    if isinstance(model, (str, Path)):
        return huggingface.build(huggingface.read_config(Path(model))), inputs
    if huggingface.is_config(model):
        return huggingface.build(model), inputs
    if not isinstance(model, torch.nn.Module) and callable(model):
        with ShapeMode(allow_non_fake_inputs=True), CopiesOfFakes(), initializers_of_shapes():
            return _without_contents(model(), inputs)
    return _without_contents(model, inputs)


def _without_contents(model: Any, inputs: Any) -> tuple[torch.nn.Module, Any]:
    """Return the twin of a module, or of a pair of module and inputs."""
    module, own_inputs = model if isinstance(model, tuple) and len(model) == 2 else (model, None)
    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            f"[estimate] the model is a {type(module).__name__}; give a torch.nn.Module, a function that "
            "builds one, a configuration of transformers, or the path of its config.json"
        )
    return twin(module), _on_meta(own_inputs) if inputs is None else inputs


def _on_meta(values: Any) -> Any:
    return pytree.tree_map_only(
        torch.Tensor, lambda each: shape_of(each).requires_grad_(each.requires_grad), values
    )


def _in_type(values: Any, dtype: torch.dtype | None) -> Any:
    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if dtype is None or not tensor.is_floating_point() or tensor.dtype == dtype:
            return tensor
        return tensor.detach().to(dtype).requires_grad_(tensor.requires_grad)

    return pytree.tree_map_only(torch.Tensor, convert, values)
