"""Dispatch mode that hears every operator a kernel computes, and the effect of each on its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_CREATES = {"aten::lift", "aten::lift_fresh"}
"""Views by their schema that bring a new tensor, a literal, into the program."""

_FILLS = {
    "aten::" + name
    for name in (
        "bernoulli_",
        "cauchy_",
        "copy_",
        "exponential_",
        "fill_",
        "geometric_",
        "log_normal_",
        "normal_",
        "random_",
        "uniform_",
        "zero_",
        "_foreach_copy_",
        "_foreach_zero_",
    )
}
"""Operators that change an argument without reading it first."""

_BATCH_NORMS = {"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"}
"""Operators that change their running mean and variance in training, though their schema does not say so."""

_RUNNING_STATS, _IS_TRAINING = (3, 4), 5
"""Positions of a batch norm's running mean and variance, and of its training flag, in the arguments."""

_INTERNAL_NAMESPACES = ("prim::", "profiler::")
"""Namespaces of operators that torch uses internally, for queries and profiling marks."""

_METADATA_OPERATORS = {
    "aten::" + name
    for name in (
        "_dimI",
        "_dimV",
        "_nnz",
        "dense_dim",
        "is_coalesced",
        "is_pinned",
        "is_same_size",
        "record_stream",
        "sparse_dim",
        "_coalesced_",
    )
}
"""Operators that ask about a tensor, or mark it, and leave its contents alone."""


class Effect(NamedTuple):
    """Effect of one operator on memory."""

    name: str
    """Its name, without the namespace ``aten``."""
    silent: bool = False
    """Whether it touches no contents: views, questions about a shape or a device."""
    composed: bool = False
    """Whether it is made of other operators, and those are what touches memory."""
    changed: tuple[int | str, ...] = ()
    """Arguments that it changes in place, by position or keyword."""
    creates: bool = False
    """Whether its result is a new tensor though it may be a view of its argument: literals."""
    fills: bool = False
    """Whether changed arguments are overwritten, without being read."""
    in_training: bool = False
    """Whether it changes them in training only."""

    def changed_of(self, args: Any, kwargs: Any) -> list[Any]:
        """Return the arguments of one call that it changes."""
        if self.in_training and not args[_IS_TRAINING]:
            return []
        positions = [args[each] for each in self.changed if isinstance(each, int) and each < len(args)]
        return positions + [kwargs.get(each) for each in self.changed if isinstance(each, str)]


def effect_of(function: Any) -> Effect:
    """Return what the operator ``function`` does to its arguments."""
    schema = getattr(function, "_schema", None)
    if schema is None:
        return Effect(getattr(function, "__name__", str(function)))
    name = schema.name.removeprefix("aten::")
    if schema.name.startswith(_INTERNAL_NAMESPACES):
        return Effect(name, silent=True)
    if schema.name in _CREATES:
        return Effect(name, creates=True)
    if _is_composed(function.name()):
        return Effect(name, composed=True)
    if function.is_view or torch.Tag.inplace_view in function.tags or schema.name in _METADATA_OPERATORS:
        return Effect(name, silent=True)
    if schema.name in _BATCH_NORMS:
        return Effect(name, changed=_RUNNING_STATS, in_training=True)
    outs = any(argument.is_out for argument in schema.arguments)
    return Effect(name, changed=_mutated_arguments(schema), fills=outs or schema.name in _FILLS)


def _is_composed(name: str) -> bool:
    """Return whether an operator is only a composition of others, with no backend kernel of its own."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    own = any(has_kernel(name, processor) for processor in ("CPU", "CUDA", "Meta"))
    return has_kernel(name, "CompositeImplicitAutograd") and not own


def _mutated_arguments(schema: Any) -> tuple[int | str, ...]:
    return tuple(
        argument.name if argument.kwarg_only else position
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the plain tensors of an argument or a result: of lists, of sparse tensors and of wrappers."""
    if isinstance(value, torch.Tensor):
        if hasattr(value, "__tensor_flatten__"):
            yield from _wrapped(value)
        elif value.layout is torch.strided:
            yield value
        else:
            yield from _sparse_parts(value)
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from tensors_in(each)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def _wrapped(wrapper: Any) -> Iterator[torch.Tensor]:
    for name in wrapper.__tensor_flatten__()[0]:
        yield from tensors_in(getattr(wrapper, name))


def _sparse_parts(sparse: torch.Tensor) -> Iterator[torch.Tensor]:
    layout = sparse.layout
    if layout is torch.sparse_coo:
        yield from (sparse._indices(), sparse._values())
    elif layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (sparse.crow_indices(), sparse.col_indices(), sparse.values())
    elif layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (sparse.ccol_indices(), sparse.row_indices(), sparse.values())


OnOperator = Callable[[Any, Effect, Any, Any, Any], None]
"""Callback: is given the operator, its effect, its arguments, its named arguments and its result."""


class Listener(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Reports operators that touch contents, in this thread and in the threads of autograd.

    Operators on tensors that wrap others are reported as those on the tensors inside; operators composed of
    others, as inference mode leaves them, as their parts.

    Parameters
    ----------
    wrappers
        Further types that wrap others, besides those that can be flattened.
    """

    supports_higher_order_operators = True

    def __init__(self, on_operator: OnOperator, wrappers: tuple[type, ...] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._on_operator = on_operator
        self._wrappers = wrappers
        self._effects: dict[Any, Effect] = {}
        self._plain: dict[Any, bool] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func`` and report what it did; called by torch."""
        if types and not self._are_plain(types):
            return NotImplemented
        effect = self._effects.get(func)
        if effect is None:
            effect = self._effects[func] = effect_of(func)
        kwargs = kwargs or {}
        if effect.composed:
            with self:
                return func.decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        if not effect.silent:
            self._on_operator(func, effect, args, kwargs, result)
        return result

    def _are_plain(self, types: Any) -> bool:
        """Return whether no type wraps other tensors."""
        key = tuple(types)
        known = self._plain.get(key)
        if known is None:
            known = self._plain[key] = not any(map(self._wraps, key))
        return known

    def _wraps(self, kind: type) -> bool:
        return issubclass(kind, self._wrappers) or hasattr(kind, "__tensor_flatten__")
