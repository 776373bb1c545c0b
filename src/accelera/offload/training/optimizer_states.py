"""States that an optimizer was given, as by ``load_state_dict``, go to the pool before the next step."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, MutableMapping
from typing import Any, final

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from accelera.offload.keeping.allocation_scope import AllocationScope, ScopeEntry
from accelera.offload.keeping.keeper import Keeper
from accelera.offload.tensors.adopting import adopted, can_be_adopted
from accelera.offload.tensors.tensor import OffloadedTensor


@final
class OptimizerStates:
    """Looks, before every step of any optimizer, after the states of the weights of some keepers.

    It does so for as long as somebody holds it. What the step allocates counts in ``scope``.
    """

    def __init__(self, keepers: Iterable[Keeper], scope: AllocationScope) -> None:
        known = weakref.WeakSet(keepers)
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
    known: weakref.WeakSet[Keeper],
    scope: AllocationScope,
    entries: Entries,
    optimizer: torch.optim.Optimizer,
    *_: Any,
) -> None:
    weights = [each for group in optimizer.param_groups for each in group["params"]]
    ours = [each for each in weights if isinstance(each, OffloadedTensor) and each.keeper in known]
    if not ours:
        return
    for weight in ours:
        _move(weight, optimizer.state.get(weight, {}))
    entries[optimizer] = entry = scope.open("step")
    entry.linger()  # a step that raises tells nobody


def _after_step(entries: Entries, optimizer: torch.optim.Optimizer, *_: Any) -> None:
    entry = entries.pop(optimizer, None)
    if entry is not None:
        entry.close()


def _move(weight: OffloadedTensor, state: dict[str, Any]) -> None:
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.shape == weight.shape and can_be_adopted(value):
            title = f"{weight.blocks[0].name}.{name}"
            state[name] = adopted(weight.keeper, value, title, "optimizer_state")
