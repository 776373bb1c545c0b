"""States that an optimizer was given, as by ``load_state_dict``, go to the pool before the next step."""

from __future__ import annotations

import functools
import weakref
from typing import Any, final

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from accelera.offload.keeping.keeper import Keeper
from accelera.offload.tensors.adopting import adopted, can_be_adopted
from accelera.offload.tensors.tensor import OffloadedTensor


@final
class OptimizerStates:
    """Looks, before every step of any optimizer, after the states of the weights of one keeper.

    It does so for as long as somebody holds it.
    """

    def __init__(self, keeper: Keeper) -> None:
        handle = register_optimizer_step_pre_hook(functools.partial(_before_step, weakref.ref(keeper)))
        weakref.finalize(self, handle.remove)


def _before_step(keeper: weakref.ref[Keeper], optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for weight, state in optimizer.state.items():
        if isinstance(weight, OffloadedTensor) and weight.keeper is keeper():
            _move(weight, state)


def _move(weight: OffloadedTensor, state: dict[str, Any]) -> None:
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.shape == weight.shape and can_be_adopted(value):
            title = f"{weight.blocks[0].name}.{name}"
            state[name] = adopted(weight.keeper, value, title, "optimizer_state")
