"""Gradients of tensors in several blocks: made in blocks too, never whole.

PyTorch computes the gradient of a weight from ordinary tensors, so no operand says that its result must be
cut. Here the gradient that enters the nodes between a result and such a weight is marked: an operation on a
marked tensor whose result is bigger than a block is carried out by the tiled form.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

from accelera.offload.keeping.keeper import Keeper
from accelera.offload.keeping.plain import is_plain
from accelera.offload.tensors.tensor import OffloadedTensor
from accelera.offload.tiled.meta import foretold
from accelera.offload.tiled.table import form, run

Node = Any


@final
class MarkedTensor(torch.Tensor):
    """An ordinary tensor of whose products some are too big to be ordinary."""

    plain: torch.Tensor
    keeper: Keeper

    @staticmethod
    def __new__(cls, plain: torch.Tensor, keeper: Keeper) -> MarkedTensor:
        """Wrap ``plain``; results bigger than the keeper's blocks go to its pool."""
        tensor: MarkedTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            plain.shape,
            strides=plain.stride(),
            storage_offset=plain.storage_offset(),
            dtype=plain.dtype,
            device=plain.device,
        )
        tensor.plain, tensor.keeper = plain, keeper
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Carry out ``func``, in parts if its result is too big; a view of a marked tensor is marked."""
        keeper = next(leaf.keeper for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, MarkedTensor))
        plain_args, plain_kwargs = tree_map_only(MarkedTensor, lambda leaf: leaf.plain, (args, kwargs or {}))
        if _is_view(func):
            view = tree_map_only(
                torch.Tensor, lambda leaf: MarkedTensor(leaf, keeper), func(*plain_args, **plain_kwargs)
            )
            return return_and_correct_aliasing(func, args, kwargs or {}, view)  # type: ignore[no-untyped-call]
        if form(func) is not None and _too_big(func, plain_args, plain_kwargs, keeper):
            return run(func, plain_args, plain_kwargs, keeper)
        return func(*plain_args, **plain_kwargs)

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        """Tell the shape."""
        return f"MarkedTensor(size={tuple(self.shape)}, dtype={self.dtype})"


class _Mark(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor, keeper: Keeper) -> torch.Tensor:
        return MarkedTensor(gradient.detach(), keeper)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return unmarked(gradient), None


class _Unmark(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: MarkedTensor) -> torch.Tensor:
        return gradient.plain.view_as(gradient.plain)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def _marked(tensor: torch.Tensor, keeper: Keeper) -> Any:
    return _Mark.apply(tensor, keeper)  # type: ignore[no-untyped-call]


def unmarked(tensor: Any) -> Any:
    """Return the ordinary tensor behind a marked one, anything else as it is."""
    return _Unmark.apply(tensor) if isinstance(tensor, MarkedTensor) else tensor  # type: ignore[no-untyped-call]


def mark_gradients(results: Iterable[torch.Tensor], operands: Iterable[torch.Tensor], keeper: Keeper) -> None:
    """Make the nodes between ``results`` and the offloaded among ``operands`` compute in marked gradients."""
    operands = [one for one in operands if one.requires_grad]
    wanted = {_node(one) for one in operands if isinstance(one, OffloadedTensor) and len(one.blocks) > 1}
    known = {_node(one): _node(one) in wanted for one in operands}
    for result in results:
        if result.grad_fn is not None:
            _reaches(result.grad_fn, known, keeper)


def _node(tensor: torch.Tensor) -> Node:
    return torch.autograd.graph.get_gradient_edge(tensor).node


def _reaches(node: Node, known: dict[Node, bool], keeper: Keeper) -> bool:
    """Whether a wanted node is behind ``node``; every node from which one is gets its hooks."""
    if node not in known:
        behind = [_reaches(one, known, keeper) for one, _ in node.next_functions if one is not None]
        known[node] = any(behind)
        if known[node]:
            _hook(node, keeper)
    return known[node]


def _hook(node: Node, keeper: Keeper) -> None:
    def before(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(_marked(one, keeper) if is_plain(one) else one for one in gradients)

    def after(made: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(unmarked(one) for one in made)

    node.register_prehook(before)
    node.register_hook(after)


def _too_big(func: Any, args: Any, kwargs: Any, keeper: Keeper) -> bool:
    results = tree_leaves(foretold(func, args, kwargs))
    tensors = [one for one in results if isinstance(one, torch.Tensor)]
    return any(one.numel() * one.element_size() > keeper.block_bytes for one in tensors)


def _is_view(func: Any) -> bool:
    infos = [one.alias_info for one in func._schema.returns]
    return any(info is not None and not info.is_write for info in infos)
