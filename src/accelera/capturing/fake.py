"""Models without memory: shapes and element types are followed, no weight is ever allocated."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree


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
    """Let initializers that draw again and again skip tensors without contents."""
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
    """Return ``value`` with every tensor in it replaced by a fake one."""
    return pytree.tree_map(lambda leaf: _fake(leaf, mode) if isinstance(leaf, torch.Tensor) else leaf, value)


@contextmanager
def values_explained(
    op: str = "capture", remedy: str = "capture a real model with fake=False, which follows values"
) -> Iterator[None]:
    """Say in an error's words that what ran needs values, where torch names only the operator.

    ``op`` is who says it, ``remedy`` what helps besides a model whose shapes do not depend on its data. What
    torch would log of an error besides raising it is left out.
    """
    logger = logging.getLogger(torch._subclasses.fake_tensor.__name__)
    logger.addFilter(_nothing)
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise ValueError(
            f"[{op}] the model asks for values at {error.func}, and only its shapes are followed; {remedy}, "
            "or give a model whose shapes do not depend on its data (experts of transformers: "
            'experts_implementation="grouped_mm")'
        ) from error
    finally:
        logger.removeFilter(_nothing)


def _nothing(_: logging.LogRecord) -> bool:
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
