"""Collective operations of ``torch.distributed``: they go on after they return, so they are waited for."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from accelera.errors import DeviceError
from accelera.offload import tiled
from accelera.offload.operating.operands import Operands
from accelera.offload.tensors.tensor import OffloadedTensor

NAMESPACE = "c10d"
"""Where PyTorch has them."""

_BETWEEN_TWO = ("send", "recv_", "recv_any_source_")
"""Waiting for these can be waiting for ever: the other side may wait as well."""


def collective(func: Any, args: Any, kwargs: Any) -> Any:
    """Carry out ``func`` to its end with its operands whole in the pool.

    Its schema does not tell what it changes, so all of them count as changed. Raises BudgetExceededError when
    they do not fit, DeviceError for a message from one process to another.
    """
    name = func.overloadpacket.__name__
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, OffloadedTensor)]
    if name in _BETWEEN_TWO:
        raise DeviceError(f"[{name}] {leaves[0]} is offloaded, and has no lasting address; give a copy of it")
    copies = tiled.gathered(str(func), leaves, leaves[0].keeper)
    wholes = [copies.get(id(leaf), leaf) for leaf in leaves]
    with Operands(str(func), wholes, {id(one) for one in wholes}) as operands:
        shown = {id(leaf): operands.bring(one) for leaf, one in zip(leaves, wholes, strict=True)}
        given, named = tree_map_only(OffloadedTensor, lambda leaf: shown[id(leaf)], (args, kwargs))
        result = func(*given, **named)
        _wait(result)
    for leaf in leaves:
        if id(leaf) in copies:
            leaf.copy_(copies[id(leaf)])
    back = {id(shown[id(leaf)]): leaf for leaf in leaves}
    return tree_map_only(torch.Tensor, lambda one: back.get(id(one), one), result)


def _wait(result: Any) -> None:
    works: list[Any] = [one for one in tree_leaves(result) if isinstance(one, torch.ScriptObject)]
    for work in works:
        work.wait()
