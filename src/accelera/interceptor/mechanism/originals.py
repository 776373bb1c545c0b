"""The kernels that were there before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from accelera.interceptor.mechanism.operators import check_name, is_composite
from accelera.interceptor.mechanism.passing import COMPOSITES, EVERYTHING, at_least

Kernel = Callable[..., Any]

replaced: dict[str, Kernel] = {}
"""Operators whose kernel does not look at what a thread lets pass, and how the kernel before it is called."""


def original(name: str) -> Kernel:
    """Return the kernel of an operator as it was before anything was armed.

    It is called as the operator is, armed or not, for the device of its arguments. Operators below autograd
    record no gradient, and nothing that they call is intercepted; those above autograd are composed of others
    as torch does it, and those others are looked at.

    Raises
    ------
    UnknownNameError
        No operator of this name can be intercepted.
    """
    composite = is_composite(check_name(name))
    operator = overload(name)

    def call(*args: Any, **kwargs: Any) -> Any:
        with at_least(COMPOSITES if composite else EVERYTHING), _below_autograd(composite):
            return replaced.get(name, operator)(*args, **kwargs)

    return call


def overload(name: str) -> Any:
    """Return torch's operator of this name, such as ``torch.ops.aten.mm.out`` for ``"mm.out"``."""
    packet, _, variant = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), variant or "default")


def _below_autograd(composite: bool) -> AbstractContextManager[Any]:
    if composite:
        return nullcontext()
    guard: AbstractContextManager[Any] = torch._C._AutoDispatchBelowAutograd()
    return guard
