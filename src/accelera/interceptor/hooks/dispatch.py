"""Hand-over of a call to its handler or to the base kernel, and the re-entrancy level of each thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from accelera.interceptor.hooks.operators import COMPOSITE, check_name, is_above_autograd, is_composite

NOTHING, COMPOSITES, EVERYTHING = 0, 1, 2

_thread = threading.local()
_followers: list[Callable[[int], object]] = []


def level() -> int:
    """Return which calls of this thread pass uncaught: NOTHING, COMPOSITES or EVERYTHING."""
    found: int = getattr(_thread, "level", NOTHING)
    return found


def follow(setter: Callable[[int], object]) -> None:
    """Call ``setter`` with the present level, and with every later one in the thread that changes it."""
    if setter not in _followers:
        _followers.append(setter)
        setter(level())


def raise_to(wanted: int) -> int:
    """Let this thread pass at least what ``wanted`` says; return the level before, for ``put_back``."""
    before = level()
    if wanted > before:
        put_back(wanted)
    return before


def put_back(value: int) -> None:
    """Let this thread pass what ``value`` says."""
    if level() != value:
        _thread.level = value
        for setter in _followers:
            setter(value)


@contextmanager
def passing() -> Iterator[None]:
    """Switch interception off in this thread, until the end of the block.

    Nests. Other threads, those started inside too, go on as they were.
    """
    before = raise_to(EVERYTHING)
    try:
        yield
    finally:
        put_back(before)


Kernel = Callable[..., Any]

replaced: dict[str, Kernel] = {}
"""Torch's own kernel by operator, where the kernel put before it does not check the thread's level."""


def original(name: str) -> Kernel:
    """Return the kernel of an operator as it was before anything was armed.

    It is called as the operator is, armed or not, for the device of its arguments. Operators below autograd
    record no gradient, and nothing that they call is intercepted; those composed of others are composed as
    torch does it, and those others are looked at.

    Raises
    ------
    UnknownNameError
        No operator of this name can be intercepted.
    """
    composite = is_composite(check_name(name))
    operator = overload(name)
    wanted = COMPOSITES if composite else EVERYTHING

    def call(*args: Any, **kwargs: Any) -> Any:
        before = raise_to(wanted)
        try:
            if composite:
                return replaced.get(name, operator)(*args, **kwargs)
            with torch._C._AutoDispatchBelowAutograd():
                return replaced.get(name, operator)(*args, **kwargs)
        finally:
            put_back(before)

    return call


def overload(name: str) -> Any:
    """Return torch's operator of this name, such as ``torch.ops.aten.mm.out`` for ``"mm.out"``."""
    packet, _, variant = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), variant or "default")


Handler = Callable[..., Any]


class Armed(NamedTuple):
    """Handlers and thresholds in force, for all threads."""

    handlers: Mapping[str, Handler]
    """By operator."""
    least_bytes: int
    """Bytes of operands and result from which a call is handed over."""
    least_size: int
    """Longest dimension, in elements, from which it is."""


_armed: list[Armed] = [Armed({}, 0, 0)]


def armed() -> Armed:
    """Return what was put in force last; nothing at first."""
    return _armed[0]


def set_armed(value: Armed) -> None:
    """Have calls handled by ``value`` from now on."""
    _armed[0] = value


def handle(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Hand one call to its handler, or to the original kernel if there is none by now.

    A handler runs with interception off in its thread; one of a composite operator lets composite operators
    pass only, so that the products it makes are looked at. What a CUDA graph captures goes to the original: a
    graph has memory of its own, and nobody may ask the device how much is free meanwhile.
    """
    handler = armed().handlers.get(name)
    if handler is None or _is_being_captured(args):
        return original(name)(*args, **kwargs)
    before = raise_to(COMPOSITES if name in COMPOSITE else EVERYTHING)
    try:
        return handler(*args, **kwargs)
    finally:
        put_back(before)


def _is_being_captured(args: tuple[Any, ...]) -> bool:
    on_cuda = any(each.is_cuda for each in args if isinstance(each, torch.Tensor))
    return on_cuda and torch.cuda.is_current_stream_capturing()


def keys_of(name: str) -> tuple[str, ...]:
    """Return the keys of an operator, for the CPU and for the accelerator that torch was built for."""
    backends = backend_keys()
    if not is_above_autograd(name):
        return backends
    return (*backends, *(f"Autograd{backend}" for backend in backends))


def backend_keys() -> tuple[str, ...]:
    """Return ``("CPU",)``, or ``("CPU", "CUDA")`` and the like."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return ("CPU",)
    return ("CPU", _KEYS.get(accelerator.type, accelerator.type.upper()))


_KEYS = {"privateuseone": "PrivateUse1"}
