"""Gradients of tensors in several blocks: made in blocks too, never whole.

PyTorch computes the gradient of a weight from ordinary tensors, so no operand says that its result must be
cut. Here the gradient that enters the nodes between a result and such a weight is marked: an operation on a
marked tensor whose result is bigger than a block is carried out blockwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

from accelera.offload.block_cache import BlockCache
from accelera.offload.blockwise.run import blockwise_rule, run
from accelera.offload.op_schema import infer_meta, is_plain, schema_of
from accelera.offload.tensor import OffloadedTensor

Node = Any


@final
class MarkedTensor(torch.Tensor):
    """Gradient whose products may be larger than a block; such products are computed blockwise."""

    plain: torch.Tensor
    cache: BlockCache

    @staticmethod
    def __new__(cls, plain: torch.Tensor, cache: BlockCache) -> MarkedTensor:
        """Wrap ``plain``; results bigger than the cache's blocks go to its pool."""
        tensor: MarkedTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            plain.shape,
            strides=plain.stride(),
            storage_offset=plain.storage_offset(),
            dtype=plain.dtype,
            device=plain.device,
        )
        tensor.plain, tensor.cache = plain, cache
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Carry out ``func``, in parts if its result is too big; a view of a marked tensor is marked."""
        cache = next(leaf.cache for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, MarkedTensor))
        plain_args, plain_kwargs = tree_map_only(MarkedTensor, lambda leaf: leaf.plain, (args, kwargs or {}))
        if schema_of(func).is_view:
            view = tree_map_only(
                torch.Tensor, lambda leaf: MarkedTensor(leaf, cache), func(*plain_args, **plain_kwargs)
            )
            return return_and_correct_aliasing(func, args, kwargs or {}, view)  # type: ignore[no-untyped-call]
        if blockwise_rule(func) is not None and _too_big(func, plain_args, plain_kwargs, cache):
            return run(func, plain_args, plain_kwargs, cache)
        return func(*plain_args, **plain_kwargs)

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        """Tell the shape."""
        return f"MarkedTensor(size={tuple(self.shape)}, dtype={self.dtype})"


class _MarkGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor, cache: BlockCache) -> torch.Tensor:
        return MarkedTensor(gradient.detach(), cache)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return unmarked(gradient), None


class _UnmarkGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: MarkedTensor) -> torch.Tensor:
        return gradient.plain.view_as(gradient.plain)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def _marked(tensor: torch.Tensor, cache: BlockCache) -> Any:
    return _MarkGradient.apply(tensor, cache)  # type: ignore[no-untyped-call]


def unmarked(tensor: Any) -> Any:
    """Return the ordinary tensor behind a marked one, anything else as it is."""
    return _UnmarkGradient.apply(tensor) if isinstance(tensor, MarkedTensor) else tensor  # type: ignore[no-untyped-call]


def mark_gradients(
    results: Iterable[torch.Tensor], operands: Iterable[torch.Tensor], cache: BlockCache
) -> None:
    """Make the nodes between ``results`` and the offloaded among ``operands`` compute in marked gradients."""
    operands = [one for one in operands if one.requires_grad]
    wanted = {_node(one) for one in operands if isinstance(one, OffloadedTensor) and len(one.blocks) > 1}
    known = {_node(one): _node(one) in wanted for one in operands}
    for result in results:
        if result.grad_fn is not None:
            _hook_paths(result.grad_fn, known, cache)


def _node(tensor: torch.Tensor) -> Node:
    return torch.autograd.graph.get_gradient_edge(tensor).node


def _hook_paths(node: Node, known: dict[Node, bool], cache: BlockCache) -> bool:
    """Return whether a wanted node is reachable from ``node``; hook every node for which that holds."""
    if node not in known:
        behind = [_hook_paths(one, known, cache) for one, _ in node.next_functions if one is not None]
        known[node] = any(behind)
        if known[node]:
            _hook(node, cache)
    return known[node]


def _hook(node: Node, cache: BlockCache) -> None:
    def before(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(_marked(one, cache) if is_plain(one) else one for one in gradients)

    def after(made: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(unmarked(one) for one in made)

    node.register_prehook(before)
    node.register_hook(after)


def _too_big(func: Any, args: Any, kwargs: Any, cache: BlockCache) -> bool:
    results = tree_leaves(infer_meta(func, args, kwargs))
    tensors = [one for one in results if isinstance(one, torch.Tensor)]
    return any(one.numel() * one.element_size() > cache.block_bytes for one in tensors)


@final
class PartitionedTensor(OffloadedTensor):
    """An offloaded tensor that sees to it that functions of it have gradients in several blocks as well."""

    @classmethod
    def __torch_function__(  # type: ignore[override]
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func``, and prepare its gradient."""
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            if torch.is_grad_enabled() and func.__name__ != "__get__" and not _in_functorch_transform():
                _prepare(result, args, kwargs)
        return result


def _in_functorch_transform() -> bool:
    """Return whether a ``torch.func`` transform is active: it builds its own graph for gradients."""
    functorch: Any = torch._C._functorch
    return functorch.peek_interpreter_stack() is not None


def _prepare(result: Any, args: Any, kwargs: Any) -> None:
    results = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
    if any(one.grad_fn is not None for one in results):
        operands = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        parted = next(one for one in operands if isinstance(one, PartitionedTensor))
        mark_gradients(results, operands, parted.cache)
