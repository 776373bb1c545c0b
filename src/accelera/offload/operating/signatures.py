"""What an operation's schema says of its arguments: which it changes, and which it gives back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

_SETS_ANEW = frozenset(
    f"{name}_"
    for name in (
        *("copy", "zero", "fill", "normal", "uniform", "exponential", "random", "cauchy", "log_normal"),
        *("geometric", "bernoulli"),
    )
)
"""In-place operations that give every element a value that does not depend on the old one."""


@dataclass(frozen=True)
class Signature:
    """The arguments of one operation."""

    op: str
    """The operation's name, for traces and messages."""
    names: tuple[str, ...]
    """Argument names in order; those that may be positional come first."""
    written: tuple[str, ...]
    """Arguments that are changed."""
    writes_given: bool
    """Whether what is changed is given to be written only: ``out=``."""
    sets_anew: bool
    """Whether the arguments that are changed get all their elements without regard to the old ones."""
    returned: tuple[str | None, ...]
    """For each result, the argument that it is, or None for a new one."""
    is_view: bool
    """Whether results may share the bytes of an argument that is not changed."""
    gives_tensors: bool
    """Whether any result is a tensor or a list of tensors."""

    def argument(self, name: str, args: Any, kwargs: Any) -> Any:
        """Return the value given for ``name``, or None."""
        if name in kwargs:
            return kwargs[name]
        place = self.names.index(name)
        return args[place] if place < len(args) else None

    def changed(self, args: Any, kwargs: Any) -> list[Any]:
        """Return the arguments that are changed."""
        return [self.argument(name, args, kwargs) for name in self.written]


@cache
def signature_of(func: Any) -> Signature:
    """Return the signature of an operation."""
    schema = func._schema
    written = tuple(one.name for one in schema.arguments if one.alias_info and one.alias_info.is_write)
    name = func.overloadpacket.__name__
    only_out = all(one.kwarg_only for one in schema.arguments if one.name in written)
    return Signature(
        op=str(func),
        names=tuple(one.name for one in schema.arguments),
        written=written,
        writes_given=bool(written) and only_out,
        sets_anew=bool(written) and (only_out or name in _SETS_ANEW),
        returned=tuple(_returned(one, schema.arguments) for one in schema.returns),
        is_view=any(one.alias_info and not one.alias_info.is_write for one in schema.returns),
        gives_tensors=any("Tensor" in str(one.type) for one in schema.returns),
    )


def _returned(result: Any, arguments: Any) -> str | None:
    if result.alias_info is None or not result.alias_info.is_write:
        return None
    for one in arguments:
        if one.alias_info is not None and one.alias_info.before_set == result.alias_info.before_set:
            return str(one.name)
    return None


@cache
def out_form(func: Any) -> tuple[Any, tuple[str, ...]] | None:
    """Return the form of ``func`` that writes into given tensors, with their names; None if it has none."""
    packet = func.overloadpacket
    wanted = [(one.name, str(one.type)) for one in func._schema.arguments if one.name not in _PLACES]
    for overload in packet.overloads():
        form = getattr(packet, overload)
        outs = [one for one in form._schema.arguments if one.kwarg_only and one.alias_info is not None]
        rest = [(one.name, str(one.type)) for one in form._schema.arguments if one not in outs]
        if len(outs) == len(func._schema.returns) > 0 and rest == wanted:
            return form, tuple(one.name for one in outs)
    return None


_PLACES = ("dtype", "layout", "device", "pin_memory")
"""Arguments that say what kind of tensor the result is: a given result says that itself."""


def is_composite(func: Any) -> bool:
    """Whether ``func`` is made of other operations, which are what autograd knows."""
    return bool(func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))
