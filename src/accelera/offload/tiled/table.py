"""Which operations work on tensors in several blocks, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from accelera.offload.keeping.keeper import Keeper
from accelera.offload.tiled import joining, lookups, losses
from accelera.offload.tiled.fresh import fresh
from accelera.offload.tiled.operand import is_tiled
from accelera.offload.tiled.pointwise import pointwise
from accelera.offload.tiled.products import FORMS, product
from accelera.offload.tiled.reductions import RULES, dot, equal, reduction
from accelera.offload.tiled.rowwise import ALONG, along, by_rows
from accelera.offload.tiled.space import Operand

Tiled = Callable[[Any, Any, Any, Keeper], Any]
"""Carries out an operation; gives None when it cannot with these arguments."""


def dropout(func: Any, args: Any, kwargs: Any, keeper: Keeper) -> Any:
    """Return the elements that stay and which they are."""
    return by_rows(func, args, kwargs, keeper, [Operand(args[0], tuple(range(args[0].ndim)))], None)


def of_one(func: Any, args: Any, kwargs: Any, keeper: Keeper) -> Any:
    """Carry out a reduction of each tensor of a list, the list having one."""
    single = getattr(torch.ops.aten, _SINGLE[func.overloadpacket.__name__])
    return [single(args[0][0], *args[1:], **kwargs)]


_SINGLE = {"_foreach_norm": "linalg_vector_norm", "_foreach_max": "max"}

POINTWISE = [
    "copy_",
    "_to_copy",
    "clone",
    "zero_",
    "fill_",
    "masked_fill_",
    "masked_fill",
    "normal_",
    "uniform_",
    "bernoulli_",
    "exponential_",
    "random_",
    "cauchy_",
    "log_normal_",
    "geometric_",
]
"""Work element by element although PyTorch does not tag them so."""

FRESH = [
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
    "rand_like",
    "randn_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
]

TABLE: dict[str, Tiled] = {
    **dict.fromkeys(POINTWISE, pointwise),
    **dict.fromkeys(FRESH, fresh),
    **dict.fromkeys([*FORMS, *(f"{name}_" for name in FORMS)], product),
    **dict.fromkeys([*RULES, "norm", "linalg_vector_norm"], reduction),
    **dict.fromkeys(ALONG, along),
    "dot": dot,
    "vdot": dot,
    **dict.fromkeys(_SINGLE, of_one),
    "equal": equal,
    "native_dropout": dropout,
    "embedding": lookups.embedding,
    "index_select": lookups.index_select,
    "embedding_dense_backward": lookups.embedding_dense_backward,
    "embedding_renorm_": lookups.embedding_renorm_,
    "nll_loss_forward": losses.nll_loss_forward,
    "nll_loss_backward": losses.nll_loss_backward,
    "cat": joining.cat,
    "stack": joining.stack,
    "slice_backward": joining.slice_backward,
    "select_backward": joining.select_backward,
    "_unsafe_view": joining.unsafe_view,
}
"""By name; where one name has several forms, ``form`` chooses."""


def form(func: Any) -> Tiled | None:
    """Return how ``func`` is carried out on parts, or None."""
    name = func.overloadpacket.__name__
    if name in ("max", "min") and func._overloadname in _OTHER_FORMS:
        return _OTHER_FORMS[func._overloadname]
    if name in TABLE:
        return TABLE[name]
    if name.startswith(("_foreach_", "_fused_", "_amp_foreach_")) or torch.Tag.pointwise in func.tags:
        return pointwise
    return None


_OTHER_FORMS: dict[str, Tiled] = {"dim": along, "other": pointwise, "out": pointwise}


def run(func: Any, args: Any, kwargs: Any, keeper: Keeper) -> Any:
    """Carry out ``func``, some operand or result of which is in several blocks.

    NotImplemented when only the result is, and there is no form that makes it in parts.
    Raises BudgetExceededError when it works only on whole tensors and these do not fit the pool.
    """
    from accelera.offload.tiled.whole import whole

    tiled = form(func) if _all_strided(args, kwargs) else None
    result = None if tiled is None else tiled(func, args, kwargs, keeper)
    if result is not None:
        return result
    if not any(isinstance(leaf, list) for leaf in tree_leaves(args)):
        result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
    if not any(is_tiled(leaf) for leaf in tree_leaves((args, kwargs))):
        return NotImplemented
    return whole(func, args, kwargs, keeper)


def _all_strided(args: Any, kwargs: Any) -> bool:
    leaves = tree_leaves((args, kwargs))
    return all(leaf.layout is torch.strided for leaf in leaves if isinstance(leaf, torch.Tensor))
