"""Inputs that do not fit a model: which of its layers refused them, and the shapes there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple

import torch

from accelera.errors import DTypeError, ShapeError

_SHOWN = 4
_TORCHS = (RuntimeError, IndexError, TypeError, AssertionError)


class _Layer(NamedTuple):
    name: str
    module: torch.nn.Module
    given: list[torch.Tensor]


@contextmanager
def misfits_explained(op: str, model: torch.nn.Module) -> Iterator[None]:
    """Name the layer of ``model`` that torch's error came from, and the shapes that it was given.

    Raises ShapeError, or DTypeError where torch speaks of element types, with torch's error as its cause.
    """
    try:
        yield
    except _TORCHS as error:
        layer = _layer_of(error, model) if type(error) in _TORCHS else None
        if layer is None or not _is_torchs(error):
            raise
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        of_types = isinstance(error, TypeError) or "dtype" in reason or "scalar type" in reason
        raise (DTypeError if of_types else ShapeError)(
            f"[{op}] {layer.name or 'the model'}, {_form(layer.module)}, cannot take {_listed(layer.given)}: "
            f"{reason}; give inputs as the model takes them"
        ) from error


def _is_torchs(error: BaseException) -> bool:
    """Whether torch raised it: an assertion or a wrong type in the model's own code is the model's."""
    if not isinstance(error, (TypeError, AssertionError)):
        return True
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    module = "" if traceback is None else str(traceback.tb_frame.f_globals.get("__name__"))
    return module.partition(".")[0] == "torch"


def _layer_of(error: BaseException, model: torch.nn.Module) -> _Layer | None:
    """Return the innermost module of ``model`` whose code ``error`` passed."""
    names = {id(module): name for name, module in model.named_modules()}
    found = None
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        code, values = traceback.tb_frame.f_code, traceback.tb_frame.f_locals
        owner: Any = values.get("self")
        if code.co_name == "forward" and id(owner) in names:
            named = [values.get(name) for name in code.co_varnames[1 : code.co_argcount]]
            given = [each for each in named if isinstance(each, torch.Tensor)]
            found = _Layer(names[id(owner)], owner, given)
        traceback = traceback.tb_next
    return found


def _form(module: Any) -> str:
    own = [f"{name} {tuple(each.shape)}" for name, each in module.named_parameters(recurse=False)]
    return f"a {type(module).__name__}" + (f" of {', '.join(own[:_SHOWN])}" if own else "")


def _listed(tensors: list[torch.Tensor]) -> str:
    shown = [f"{tuple(each.shape)} of {str(each.dtype).removeprefix('torch.')}" for each in tensors]
    return " and ".join(shown[:_SHOWN]) or "what it is given"
