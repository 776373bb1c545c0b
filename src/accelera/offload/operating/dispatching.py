"""What an operation does with offloaded operands: views, whole operands pinned for its time, or parts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import torch

from accelera.errors import BudgetExceededError, DeviceError
from accelera.offload.operating.collectives import NAMESPACE, collective
from accelera.offload.operating.computing import compute
from accelera.offload.operating.given import compute_into
from accelera.offload.operating.lists import one_by_one
from accelera.offload.operating.signatures import is_composite, signature_of
from accelera.offload.tensors.replacing import set_tensor
from accelera.offload.tensors.views import reshape_in_place, view

Rule = Callable[[Any, Any, Any], Any]
"""Carries out an operation on its arguments, at least one of which is offloaded."""

REFUSED = {
    "set_": "give it another storage",
    "resize_": "change its size in place",
    "resize_as_": "change its size in place",
    "as_strided_": "change its shape in place",
}
"""In-place changes of what a tensor is that its bytes may not be enough for."""

RESHAPING = ("squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "swapdims_")
"""In-place changes of what a tensor is that show the same bytes with other sizes and strides."""

_AT_ONCE = ("gru",)
"""Composite operations that PyTorch carries out with other last bits for tensors of a subclass.

In inference mode they get all their weights at once, if these fit the pool together.
"""

_VIEWS = torch._C.DispatchKey.ADInplaceOrView


def dispatch(func: Any, args: Any, kwargs: Any) -> Any:
    """Carry out ``func``."""
    return rule_of(func)(func, args, kwargs)


@cache
def rule_of(func: Any) -> Rule:
    """Return how ``func`` is carried out."""
    name = func.overloadpacket.__name__
    if func.namespace == NAMESPACE:
        return collective
    if func is torch.ops.aten.set_.source_Tensor:
        return set_tensor
    if name in REFUSED:
        return _refuse
    if name in RESHAPING:
        return reshape_in_place
    if name.startswith(("_foreach_", "_fused_", "_amp_foreach_")):
        return one_by_one
    if is_composite(func):
        return _decompose
    signature = signature_of(func)
    if signature.writes_given:
        return compute_into
    return view if signature.is_view else compute


def _decompose(func: Any, args: Any, kwargs: Any) -> Any:
    """Carry out the parts of ``func``: composite ones get here in inference mode only.

    Views made on the way are to know that their base requires a gradient, as for ordinary tensors: products
    choose their form by that.
    """
    if func.overloadpacket.__name__ in _AT_ONCE:
        with suppress(BudgetExceededError):
            return compute(func, args, kwargs)
    if func.has_kernel_for_dispatch_key(_VIEWS):
        return func.decompose(*args, **kwargs)
    with torch._C._SetExcludeDispatchKeyGuard(_VIEWS, False):
        return func.decompose(*args, **kwargs)


def _refuse(func: Any, args: Any, _: Any) -> Any:
    name = func.overloadpacket.__name__
    raise DeviceError(
        f"[{name}] {args[0]} is offloaded: PyTorch cannot {REFUSED[name]}; use the form without the "
        "underscore, or offloaded(model).restore() first"
    )
