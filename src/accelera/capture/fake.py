"""Models without memory: shapes and element types are followed, and misfits of both are explained."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from accelera.capture.known_values import keep_value
from accelera.errors import ArgumentError, DTypeError, ShapeError


def is_on_meta(module: torch.nn.Module) -> bool:
    """Return whether any weight of ``module`` has a shape and no contents."""
    return any(each.is_meta for each in module.parameters())


@contextmanager
def default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """Build in ``dtype``: under FakeTensorMode a module cannot be converted afterwards."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def initializers_of_shapes() -> Iterator[None]:
    """Let the initializer that redraws until its values are in range skip tensors without contents."""
    names, name = vars(torch.nn.init), "_no_grad_trunc_normal_"
    before = names.get(name)
    if before is None:
        yield
        return

    def drawn(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        without_contents = tensor.is_meta or isinstance(tensor, FakeTensor)
        return tensor if without_contents else before(tensor, *args, **kwargs)

    names[name] = drawn
    try:
        yield
    finally:
        names[name] = before


class CopiesOfFakes(TorchFunctionMode):
    """Let ``copy.deepcopy`` make fakes of the same mode, as modules that clone their layers need.

    Torch's own copies the mode along with the tensor, and refuses to compute with tensors of two modes.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Carry out one call of torch."""
        if func is not torch.Tensor.__deepcopy__ or not isinstance(args[0], FakeTensor):
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        if id(tensor) not in memo:
            copy = tensor.detach().clone()
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            memo[id(tensor)] = torch.nn.Parameter(copy) if is_parameter else copy
            memo[id(tensor)].requires_grad_(tensor.requires_grad)
        return memo[id(tensor)]


def as_fake(value: Any, mode: FakeTensorMode) -> Any:
    """Return ``value`` with fake tensors in place of all others; the values of small ones stay known."""

    def convert(tensor: torch.Tensor) -> Any:
        fake = _fake(tensor, mode)
        keep_value(fake, tensor)
        return fake

    return pytree.tree_map_only(torch.Tensor, convert, value)


@contextmanager
def values_explained(
    op: str = "capture", remedy: str = "capture a real model with fake=False, which follows values"
) -> Iterator[None]:
    """Explain in the error that the model needs values; torch names only the operator.

    ``op`` is the operation named in the message, ``remedy`` the advice given besides a model whose shapes do
    not depend on its data.
    """
    try:
        with unlogged_errors():
            yield
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise ArgumentError(
            f"[{op}] the model asks for values at {error.func}, and only its shapes are followed; {remedy}, "
            "or give a model whose shapes do not depend on its data (experts of transformers: "
            'experts_implementation="grouped_mm")'
        ) from error


@contextmanager
def unlogged_errors() -> Iterator[None]:
    """Suppress the log record that torch writes for an error on fake tensors besides raising it."""
    logger = logging.getLogger(torch._subclasses.fake_tensor.__name__)
    logger.addFilter(_reject_record)
    try:
        yield
    finally:
        logger.removeFilter(_reject_record)


def _reject_record(_: logging.LogRecord) -> bool:
    return False


@contextmanager
def faked(module: torch.nn.Module, mode: FakeTensorMode) -> Iterator[None]:
    """Replace the weights and buffers of ``module`` by fake ones, and put the real ones back."""
    swapped: list[tuple[dict[str, Any], str, Any]] = []
    fakes: dict[int, Any] = {}
    try:
        for part in module.modules():
            for place in (part._parameters, part._buffers):
                for name, tensor in place.items():
                    if tensor is not None and not isinstance(tensor, FakeTensor):
                        swapped.append((place, name, tensor))
                        place[name] = fakes.setdefault(id(tensor), _fake(tensor, mode))
        yield
    finally:
        for place, name, tensor in swapped:
            place[name] = tensor


def _fake(tensor: torch.Tensor, mode: FakeTensorMode) -> Any:
    if isinstance(tensor, FakeTensor):
        return tensor
    if not tensor.is_meta:
        return mode.from_tensor(tensor, static_shapes=True)
    with mode:
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
    return fake.requires_grad_(tensor.requires_grad)


_SHOWN = 4
_TORCH_ERRORS = (RuntimeError, IndexError, TypeError, AssertionError)


class _Layer(NamedTuple):
    name: str
    module: torch.nn.Module
    given: list[torch.Tensor]


@contextmanager
def misfits_explained(op: str, model: torch.nn.Module) -> Iterator[None]:
    """Name the layer of ``model`` that torch's error came from, and the shapes that it was given.

    Raises ShapeError, DTypeError where torch's message is about element types, or ArgumentError where torch's
    error is no RuntimeError; that error is the cause.
    """
    try:
        yield
    except _TORCH_ERRORS as error:
        layer = _layer_of(error, model) if type(error) in _TORCH_ERRORS else None
        if layer is None or not _is_raised_by_torch(error):
            raise
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        of_types = isinstance(error, TypeError) or "dtype" in reason or "scalar type" in reason
        misfit = ShapeError if isinstance(error, RuntimeError) else ArgumentError
        raise (DTypeError if of_types else misfit)(
            f"[{op}] {layer.name or 'the model'}, {_describe_layer(layer.module)}, cannot take "
            f"{_describe_tensors(layer.given)}: {reason}; give inputs as the model takes them"
        ) from error


def _is_raised_by_torch(error: BaseException) -> bool:
    """Return whether torch raised ``error``, and not an assertion or a type check in the model's own code."""
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


def _describe_layer(module: Any) -> str:
    own = [f"{name} {tuple(each.shape)}" for name, each in module.named_parameters(recurse=False)]
    return f"a {type(module).__name__}" + (f" of {', '.join(own[:_SHOWN])}" if own else "")


def _describe_tensors(tensors: list[torch.Tensor]) -> str:
    shown = [f"{tuple(each.shape)} of {str(each.dtype).removeprefix('torch.')}" for each in tensors]
    return " and ".join(shown[:_SHOWN]) or "what it is given"
