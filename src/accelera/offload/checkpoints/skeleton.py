"""Modules built without memory for their weights, and with every buffer as its code computes it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.weak import WeakIdKeyDictionary

from accelera.capture import default_dtype


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
