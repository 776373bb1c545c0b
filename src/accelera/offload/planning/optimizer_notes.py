"""Notes of an optimizer's step: parameters alike are noted once, and the notes repeated for the others."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple, final

import torch

from accelera.offload.planning.recording_keeper import Begin, Create, Excerpt, Free, Notes
from accelera.offload.tensors.tensor import OffloadedTensor

_ONE_BY_ONE = (
    "SGD",
    "Adam",
    "AdamW",
    "NAdam",
    "RAdam",
    "Adamax",
    "Adagrad",
    "Adadelta",
    "RMSprop",
    "Rprop",
    "ASGD",
)
"""Optimizers of PyTorch that update one parameter after the other, each without regard to the others."""


class _Template(NamedTuple):
    """What is done for one parameter, and for all others of its kind."""

    parameter: torch.Tensor
    make_states: Excerpt
    first_update: Excerpt
    update: Excerpt


@final
class OptimizerNotes:
    """Steps of one optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, notes: Notes) -> None:
        self._optimizer = optimizer
        self._notes = notes
        self._templates: dict[Hashable, _Template] = {}
        self._blocks: dict[int, dict[int, int]] = {}
        """For each parameter by identity, its blocks for those of the parameter that stands for it."""

    def step(self) -> None:
        """Note a step; in the first, states are made for all parameters of a group before any is updated."""
        if not _updates_one_by_one(self._optimizer):
            self._optimizer.step()
            return
        first = not self._templates
        groups = [list(group["params"]) for group in self._optimizer.param_groups]
        if first:
            self._learn(groups)
        for number, parameters in enumerate(groups):
            trained = [each for each in parameters if each.grad is not None]
            chosen = [(each, self._templates[number, _kind(each)]) for each in trained]
            for each, template in chosen if first else ():
                self._repeat(each, template.parameter, template.make_states)
            for each, template in chosen:
                self._repeat(each, template.parameter, template.first_update if first else template.update)

    def _learn(self, groups: list[list[torch.Tensor]]) -> None:
        """Carry out two steps for one parameter of each kind."""
        own = self._optimizer.param_groups
        try:
            for number, parameters in enumerate(groups):
                for group in own:
                    group["params"] = []
                for each in parameters:
                    if each.grad is not None and (number, _kind(each)) not in self._templates:
                        own[number]["params"] = [each]
                        self._templates[number, _kind(each)] = self._template(each)
        finally:
            for group, parameters in zip(own, groups, strict=True):
                group["params"] = parameters

    def _template(self, parameter: torch.Tensor) -> _Template:
        with self._notes.set_aside() as first:
            self._optimizer.step()
        with self._notes.set_aside() as later:
            self._optimizer.step()
        making = len(first.events) - len(later.events)
        allocated = len(first.allocations) - len(later.allocations)
        return _Template(
            parameter,
            Excerpt(first.events[:making], first.allocations[:allocated]),
            Excerpt(first.events[making:], first.allocations[allocated:]),
            later,
        )

    def _repeat(self, parameter: torch.Tensor, standing: torch.Tensor, excerpt: Excerpt) -> None:
        """Note for ``parameter`` what was noted for the one that stands for it."""
        blocks = self._blocks.setdefault(id(parameter), {})
        for mine, other in ((parameter, standing), (parameter.grad, standing.grad)):
            blocks.update(zip(_numbers(other), _numbers(mine), strict=True))
        for event in excerpt.events:
            if isinstance(event, Create):
                block = self._notes.create(event.nbytes, event.role, event.name, filled=event.filled)
                blocks[event.block] = block.id
            elif isinstance(event, Begin):
                uses = tuple((blocks.get(block, block), read, write) for block, read, write in event.uses)
                self._notes.add(Begin(uses, event.op))
            elif isinstance(event, Free):
                self._notes.free(blocks.get(event.block, event.block))
            else:
                self._notes.add(event)
        for number, nbytes in excerpt.allocations:
            self._notes.allocate(number, nbytes, "optimizer")


def _updates_one_by_one(optimizer: torch.optim.Optimizer) -> bool:
    kind = type(optimizer)
    if kind.__name__ not in _ONE_BY_ONE or not kind.__module__.startswith("torch.optim"):
        return False
    groups = optimizer.param_groups
    return not any(group.get("foreach") or group.get("fused") or group.get("capturable") for group in groups)


def _kind(parameter: torch.Tensor) -> Hashable:
    """Return what decides how a parameter is updated."""
    return (_layout(parameter), _layout(parameter.grad))


def _layout(tensor: Any) -> Hashable:
    cut = tuple(block.nbytes for block in tensor.blocks) if isinstance(tensor, OffloadedTensor) else None
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, type(tensor), cut


def _numbers(tensor: Any) -> list[int]:
    return [block.id for block in tensor.blocks] if isinstance(tensor, OffloadedTensor) else []
