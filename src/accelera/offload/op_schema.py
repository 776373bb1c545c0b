"""Schema of an ATen operator: its arguments, which it changes, and the shapes of its results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map_only

from accelera.capture._internal import shape_rule

PLAIN_TYPES = (torch.Tensor, FakeTensor)


def is_plain(value: Any) -> bool:
    """Return whether ``value`` is a dense ordinary tensor, no parameter and no other subclass."""
    return type(value) in PLAIN_TYPES and value.layout == torch.strided


def has_bytes(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor`` has contents, and is not fake or on ``meta``."""
    return not (isinstance(tensor, FakeTensor) or tensor.is_meta)


def device_of(tensor: torch.Tensor) -> torch.device:
    """Return the device of ``tensor``; of a fake tensor the one that it stands for."""
    return tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device


_OVERWRITING = frozenset(
    f"{name}_"
    for name in (
        *("copy", "zero", "fill", "normal", "uniform", "exponential", "random", "cauchy", "log_normal"),
        *("geometric", "bernoulli"),
    )
)
"""In-place operations that give every element a value that does not depend on the old one."""


@dataclass(frozen=True)
class OpSchema:
    """The arguments of one operation."""

    op: str
    """The operation's name, for traces and messages."""
    names: tuple[str, ...]
    """Argument names in order; those that may be positional come first."""
    written: tuple[str, ...]
    """Arguments that are changed."""
    writes_given: bool
    """Whether what is changed is given to be written only: ``out=``."""
    overwrites: bool
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
def schema_of(func: Any) -> OpSchema:
    """Return the signature of an operation."""
    schema = func._schema
    written = tuple(one.name for one in schema.arguments if one.alias_info and one.alias_info.is_write)
    name = func.overloadpacket.__name__
    only_out = all(one.kwarg_only for one in schema.arguments if one.name in written)
    return OpSchema(
        op=str(func),
        names=tuple(one.name for one in schema.arguments),
        written=written,
        writes_given=bool(written) and only_out,
        overwrites=bool(written) and (only_out or name in _OVERWRITING),
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
    wanted = [
        (one.name, str(one.type)) for one in func._schema.arguments if one.name not in _RESULT_KIND_ARGUMENTS
    ]
    for overload in packet.overloads():
        form = getattr(packet, overload)
        outs = [one for one in form._schema.arguments if one.kwarg_only and one.alias_info is not None]
        rest = [(one.name, str(one.type)) for one in form._schema.arguments if one not in outs]
        if len(outs) == len(func._schema.returns) > 0 and rest == wanted:
            return form, tuple(one.name for one in outs)
    return None


_RESULT_KIND_ARGUMENTS = ("dtype", "layout", "device", "pin_memory")
"""Arguments that fix the result's kind; an ``out=`` form has none of them, its result fixes that."""


def is_composite(func: Any) -> bool:
    """Return whether ``func`` is made of other operations, which are what autograd knows."""
    return bool(func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))


def each_tensor(args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """Go through the tensors among arguments, those in lists as well."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (one for one in value if isinstance(one, torch.Tensor))


def written(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the first argument that ``func`` changes, or None."""
    return next((one for one in schema_of(func).changed(args, kwargs) if one is not None), None)


def meta_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same sizes, strides and type that has no memory."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def infer_meta(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the results of ``func`` as tensors without memory."""
    kwargs = {name: value for name, value in kwargs.items() if name not in ("device", "pin_memory")}
    if "device" in {argument.name for argument in func._schema.arguments} and not _has_tensor(args):
        kwargs["device"] = torch.device("meta")
    args, kwargs = tree_map_only(torch.Tensor, meta_copy, (args, kwargs))
    return (shape_rule(func) or func)(*args, **kwargs)


def _has_tensor(args: Any) -> bool:
    return any(isinstance(value, torch.Tensor) for value in args)


def bound(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return all arguments of a call by name, defaults included."""
    values = {argument.name: argument.default_value for argument in func._schema.arguments}
    values.update(zip(values, args, strict=False))
    return {**values, **kwargs}
