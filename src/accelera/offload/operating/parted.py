"""An offloaded tensor in several blocks, whose gradient must not be whole either."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch.utils._pytree import tree_leaves

from accelera.offload.tensors.tensor import OffloadedTensor
from accelera.offload.tiled.marking import mark_gradients


@final
class PartedTensor(OffloadedTensor):
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
            if torch.is_grad_enabled() and func.__name__ != "__get__" and not _transforming():
                _prepare(result, args, kwargs)
        return result


def _transforming() -> bool:
    """Whether a transform of ``torch.func`` is under way: it makes gradients by a graph of its own."""
    functorch: Any = torch._C._functorch
    return functorch.peek_interpreter_stack() is not None


def _prepare(result: Any, args: Any, kwargs: Any) -> None:
    results = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
    if any(one.grad_fn is not None for one in results):
        operands = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        parted = next(one for one in operands if isinstance(one, PartedTensor))
        mark_gradients(results, operands, parted.keeper)
