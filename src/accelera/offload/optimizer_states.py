"""States that an optimizer was given, as by ``load_state_dict``, go to the pool before the next step."""

from __future__ import annotations

from typing import Any, final

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from accelera.offload.adopting import adopted, can_be_adopted
from accelera.offload.keeper import Keeper
from accelera.offload.tensor import OffloadedTensor


@final
class OptimizerStates:
    """Looks, before every step of any optimizer, after the states of the weights of one keeper."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._handle = register_optimizer_step_pre_hook(self._before_step)

    def stop(self) -> None:
        """Look no more."""
        self._handle.remove()

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for weight, state in optimizer.state.items():
            if isinstance(weight, OffloadedTensor) and weight.keeper is self._keeper:
                self._move(weight, state)

    def _move(self, weight: OffloadedTensor, state: dict[str, Any]) -> None:
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == weight.shape and can_be_adopted(value):
                title = f"{weight.blocks[0].name}.{name}"
                state[name] = adopted(self._keeper, value, title, "optimizer_state")
