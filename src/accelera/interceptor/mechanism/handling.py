"""Who handles an intercepted call, and how it is handed over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from accelera.interceptor.mechanism.operators import is_composite
from accelera.interceptor.mechanism.originals import original
from accelera.interceptor.mechanism.passing import COMPOSITES, EVERYTHING, put_back, raise_to

Handler = Callable[..., Any]


class Armed(NamedTuple):
    """What is in force, for all threads."""

    handlers: Mapping[str, Handler]
    """By operator."""
    least_bytes: int
    """Bytes of operands and result from which a call is handed over."""
    least_size: int
    """Longest dimension, in elements, from which it is."""


_in_force: list[Armed] = [Armed({}, 0, 0)]


def in_force() -> Armed:
    """Return what was put in force last; nothing at first."""
    return _in_force[0]


def put_in_force(armed: Armed) -> None:
    """Have calls handled by ``armed`` from now on."""
    _in_force[0] = armed


def handle(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Hand one call to its handler, or to the original kernel if there is none by now.

    A handler runs with interception off in its thread; one of a composite operator lets composite operators
    pass only, so that the products it makes are looked at. What a CUDA graph captures goes to the original: a
    graph has memory of its own, and nobody may ask the device how much is free meanwhile.
    """
    handler = in_force().handlers.get(name)
    if handler is None or _is_being_captured(args):
        return original(name)(*args, **kwargs)
    before = raise_to(COMPOSITES if is_composite(name) else EVERYTHING)
    try:
        return handler(*args, **kwargs)
    finally:
        put_back(before)


def _is_being_captured(args: tuple[Any, ...]) -> bool:
    on_cuda = any(each.is_cuda for each in args if isinstance(each, torch.Tensor))
    return on_cuda and torch.cuda.is_current_stream_capturing()
