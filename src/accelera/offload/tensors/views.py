"""Views of offloaded tensors: other sizes, strides and types of the same bytes; no byte is touched."""

from __future__ import annotations

from typing import Any

import torch

from accelera.offload.tensors.tensor import kind_of


def view(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the view, or the views, that ``func`` gives of its first argument."""
    base = args[0]
    kind = kind_of(base.contents)
    with torch._C._DisableTorchDispatch():
        shown = func(*args, **kwargs)
        if isinstance(shown, torch.Tensor):
            return _same_bytes(kind, base, shown)
        return [_same_bytes(kind, base, each) for each in shown]


def reshape_in_place(func: Any, args: Any, kwargs: Any) -> Any:
    """Give the first argument other sizes and strides, as ``func`` does; return it."""
    with torch._C._DisableTorchDispatch():
        func(*args, **kwargs)
    return args[0]


def _same_bytes(kind: Any, base: Any, shown: torch.Tensor) -> Any:
    made: Any = torch.Tensor._make_subclass(kind, shown)
    made.contents = base.contents
    return made
