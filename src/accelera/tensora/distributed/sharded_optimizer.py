"""Optimizers of which each rank keeps the states of some parameters (ZeRO's first stage)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from accelera.errors import ArgumentError
from accelera.tensora.core import Tensor, native
from accelera.tensora.distributed.buckets import share
from accelera.tensora.distributed.group import ProcessGroup
from accelera.tensora.optim.optimizer import Optimizer, Params, State


class ZeroRedundancyOptimizer(Optimizer):
    """Optimizer whose states lie in the ranks, each parameter's in one (S. Rajbhandari et al. 2020).

    Each rank changes its own parameters and gives them to the others. The steps are those of the optimizer
    without shards, bit by bit. Gradients are to be the same in all ranks, as `DistributedDataParallel` leaves
    them.

    Parameters
    ----------
    params
        Tensors, or groups of them, the same in all ranks.
    optimizer_class
        As `optim.AdamW`: of those that change each parameter by itself.
    process_group
        The ranks.
    **defaults
        Options of the optimizer.

    Raises
    ------
    ValueError
        If the optimizer changes all parameters together, as L-BFGS does.

    """

    separable = False  # a parameter that is changed inside the backward pass would not reach the other ranks

    def __init__(
        self,
        params: Params,
        optimizer_class: type[Optimizer],
        process_group: ProcessGroup,
        **defaults: Any,
    ) -> None:
        if not optimizer_class.separable:
            raise ArgumentError(
                f"[ZeroRedundancyOptimizer] {optimizer_class.__name__} changes all parameters together; give"
                " one that changes each by itself, as AdamW does"
            )
        self.optimizer = optimizer_class(params, **defaults)
        self.process_group = process_group
        self.defaults = self.optimizer.defaults
        self.param_groups = self.optimizer.param_groups
        self.state = self.optimizer.state
        self._loads = [0] * process_group.size
        self._owners: list[int] = []
        for group in self.param_groups:
            self._divide(group["params"])

    def owner_of(self, param: Tensor) -> int:
        """Return the rank that keeps the state of a parameter."""
        return dict(zip(map(id, self._params()), self._owners, strict=True))[id(param)]

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Add tensors under ``"params"``, with options of their own; in all ranks."""
        self.optimizer.add_param_group(group)
        self._divide(self.param_groups[-1]["params"])

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change this rank's parameters that have a gradient, and take the others from their ranks."""
        loss = None if closure is None else closure()
        mine, changed = self._local_params(), self._owned()
        for group in self.param_groups:
            params = [each for each in group["params"] if id(each) in mine and each.grad is not None]
            if params:
                self.update(group, params, [each.grad for each in params])
        for rank, params in enumerate(changed):
            share(self.process_group, [each for each in params if each.grad is not None], rank)
        return loss

    def update(self, group: dict[str, Any], params: list[Any], grads: list[Any]) -> None:
        """Write the next step into parameters of this rank."""
        self.optimizer.update(group, params, grads)

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, as the optimizer without shards has it; all ranks call this together.

        Each rank gets all of it, on its own device.
        """
        whole = self.optimizer.state_dict()
        known: dict[int, State] = whole["state"]
        outlines = {
            number: {name: _outline(each) for name, each in one.items()} for number, one in known.items()
        }
        described = self.process_group.all_gather_object(outlines)
        state: dict[int, State] = {}
        by_owner: list[list[Any]] = [[] for _ in self._loads]
        for number, (param, owner) in enumerate(zip(self._params(), self._owners, strict=True)):
            if number in described[owner]:
                known_here = known if owner == self.process_group.rank else {}
                state[number] = _complete_state(described[owner][number], known_here.get(number), param)
                by_owner[owner] += [each for each in state[number].values() if isinstance(each, Tensor)]
        for owner, tensors in enumerate(by_owner):
            share(self.process_group, tensors, owner)
        return {**whole, "state": state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load this rank's part of a whole state, which any number of ranks may have saved.

        Raises
        ------
        ValueError
            If groups or parameters are not as many.

        """
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        owners = dict(zip(numbers, self._owners, strict=False))
        rank = self.process_group.rank
        mine = {number: each for number, each in state_dict["state"].items() if owners.get(number) == rank}
        self.optimizer.load_state_dict({**state_dict, "state": mine})
        self.state = self.optimizer.state

    def _params(self) -> list[Any]:
        return [each for group in self.param_groups for each in group["params"]]

    def _divide(self, params: list[Any]) -> None:
        """Give each parameter to the rank that has least so far, the largest first."""
        owners = [0] * len(params)
        for i in sorted(range(len(params)), key=lambda i: -params[i].nbytes):
            owners[i] = min(range(len(self._loads)), key=self._loads.__getitem__)
            self._loads[owners[i]] += params[i].nbytes
        self._owners += owners

    def _owned(self) -> list[list[Any]]:
        """Parameters by their rank."""
        ranks: list[list[Any]] = [[] for _ in self._loads]
        for param, owner in zip(self._params(), self._owners, strict=True):
            ranks[owner].append(param)
        return ranks

    def _local_params(self) -> set[int]:
        return {id(each) for each in self._owned()[self.process_group.rank]}


class _Outline(NamedTuple):
    """Placeholder for a tensor of a state."""

    shape: tuple[int, ...]
    dtype: str


def _outline(value: Any) -> Any:
    return _Outline(tuple(value.shape), value.dtype.name) if isinstance(value, Tensor) else value


def _complete_state(described: State, known: State | None, param: Any) -> State:
    """Return a state with its placeholders replaced by tensors: the known ones, or new ones to fill."""
    if known is not None:
        return dict(known)
    return {
        name: native.full(value.shape, 0, native.to_dtype(value.dtype), param.device)
        if isinstance(value, _Outline)
        else value
        for name, value in described.items()
    }
