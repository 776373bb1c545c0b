"""The kernels that were there before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from accelera.interceptor.mechanism.operators import check_name, is_composite
from accelera.interceptor.mechanism.passing import COMPOSITES, EVERYTHING, put_back, raise_to

Kernel = Callable[..., Any]

replaced: dict[str, Kernel] = {}
"""Operators whose kernel does not look at what a thread lets pass, and how the kernel before it is called."""


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
