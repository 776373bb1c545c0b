"""Gradients and optimizer states of offloaded parameters, moved into the cache."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, MutableMapping
from typing import Any, final

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from accelera.errors import DTypeError
from accelera.offload.allocation_scope import AllocationScope, ScopeEntry
from accelera.offload.block_cache import BlockCache
from accelera.offload.tensor import OffloadedTensor, can_be_offloaded, new_tensor, wrap


def keep_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """See to it that the gradients of new_tensor parameters go to the pool; those that are known stay so."""
    for parameter in parameters:
        if parameter.requires_grad and isinstance(parameter, OffloadedTensor) and not _watched(parameter):
            parameter.register_post_accumulate_grad_hook(move_gradient)  # type: ignore[no-untyped-call]


def move_gradient(parameter: torch.Tensor) -> None:
    """Replace an ordinary ``.grad`` of an new_tensor parameter by one in the pool.

    A sparse gradient stays where it is: it has only the rows that were used. Raises DTypeError for a sparse
    gradient of a parameter in several blocks.
    """
    gradient = parameter.grad
    if (
        gradient is None
        or isinstance(gradient, OffloadedTensor)
        or not isinstance(parameter, OffloadedTensor)
    ):
        return
    if gradient.layout != torch.strided:
        _refuse_cut(parameter)
        return
    name = f"{parameter.blocks[0].name}.grad"
    kept = new_tensor(parameter.cache, gradient.shape, gradient.dtype, name=name, role="gradient")
    with torch.no_grad():
        kept.copy_(gradient)
    parameter.grad = kept


def _watched(parameter: torch.Tensor) -> bool:
    hooks: Any = parameter._post_accumulate_grad_hooks
    return hooks is not None and move_gradient in hooks.values()


def _refuse_cut(parameter: OffloadedTensor) -> None:
    if len(parameter.blocks) > 1:
        raise DTypeError(
            f"[backward] the sparse gradient of {parameter.blocks[0].name} {tuple(parameter.shape)}: this "
            f"weight is kept in {len(parameter.blocks)} blocks, and only dense gradients can be; make the "
            "embedding with sparse=False"
        )


@final
class OptimizerStates:
    """Looks, before every step of any optimizer, after the states of the weights of some caches.

    It does so for as long as somebody holds it. What the step allocates counts in ``scope``.
    """

    def __init__(self, caches: Iterable[BlockCache], scope: AllocationScope) -> None:
        known = weakref.WeakSet(caches)
        self._entries: weakref.WeakKeyDictionary[torch.optim.Optimizer, ScopeEntry]
        self._entries = weakref.WeakKeyDictionary()
        before = register_optimizer_step_pre_hook(
            functools.partial(_before_step, known, scope, self._entries)
        )
        after = register_optimizer_step_post_hook(functools.partial(_after_step, self._entries))
        weakref.finalize(self, before.remove)
        weakref.finalize(self, after.remove)


Entries = MutableMapping[torch.optim.Optimizer, ScopeEntry]


def _before_step(
    known: weakref.WeakSet[BlockCache],
    scope: AllocationScope,
    entries: Entries,
    optimizer: torch.optim.Optimizer,
    *_: Any,
) -> None:
    weights = [each for group in optimizer.param_groups for each in group["params"]]
    ours = [each for each in weights if isinstance(each, OffloadedTensor) and each.cache in known]
    if not ours:
        return
    for weight in ours:
        _move_state(weight, optimizer.state.get(weight, {}))
    entries[optimizer] = entry = scope.open("step")
    entry.linger()  # a step that raises calls no hook


def _after_step(entries: Entries, optimizer: torch.optim.Optimizer, *_: Any) -> None:
    entry = entries.pop(optimizer, None)
    if entry is not None:
        entry.close()


def _move_state(weight: OffloadedTensor, state: dict[str, Any]) -> None:
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.shape == weight.shape and can_be_offloaded(value):
            title = f"{weight.blocks[0].name}.{name}"
            state[name] = wrap(weight.cache, value, title, "optimizer_state")
