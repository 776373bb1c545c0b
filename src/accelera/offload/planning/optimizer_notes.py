"""Notes of an optimizer's step: parameters alike are noted once, and the notes repeated for the others."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, final

import torch

from accelera.offload.planning.recording_keeper import Begin, Create, Event, Free, Notes
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


@final
class OptimizerNotes:
    """Steps of one optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, notes: Notes, keeper: Any) -> None:
        self._optimizer = optimizer
        self._notes = notes
        self._keeper = keeper
        self._blocks: dict[int, dict[int, int]] = {}
        """For each parameter by identity, its blocks for those of the parameter that stands for it."""

    def step(self) -> None:
        """Carry out a step, for one parameter of each kind if that tells all."""
        groups = self._optimizer.param_groups
        if not _updates_one_by_one(self._optimizer):
            self._optimizer.step()
            return
        everything = [group["params"] for group in groups]
        try:
            for index, parameters in enumerate(everything):
                for group in groups:
                    group["params"] = []
                self._step_group(groups[index], parameters)
        finally:
            for group, parameters in zip(groups, everything, strict=True):
                group["params"] = parameters

    def _step_group(self, group: dict[str, Any], parameters: list[torch.Tensor]) -> None:
        standing: dict[Hashable, tuple[torch.Tensor, list[Event], list[tuple[int, int]]]] = {}
        for parameter in parameters:
            if parameter.grad is None:
                continue
            kind = _kind(parameter)
            known = standing.get(kind)
            if known is None:
                standing[kind] = (parameter, *self._noted(group, parameter))
            else:
                self._repeat(parameter, *known)

    def _noted(
        self, group: dict[str, Any], parameter: torch.Tensor
    ) -> tuple[list[Event], list[tuple[int, int]]]:
        """Carry out the step for one parameter; return its events and allocations."""
        events, allocations = len(self._notes.events), len(self._notes.allocations)
        group["params"] = [parameter]
        self._optimizer.step()
        group["params"] = []
        return self._notes.events[events:], self._notes.allocations[allocations:]

    def _repeat(
        self, parameter: torch.Tensor, standing: torch.Tensor, events: list[Event], allocations: list[Any]
    ) -> None:
        """Note for ``parameter`` what was noted for the one that stands for it."""
        blocks = self._blocks.setdefault(id(parameter), {})
        for mine, other in ((parameter, standing), (parameter.grad, standing.grad)):
            blocks.update(zip(_numbers(other), _numbers(mine), strict=True))
        for event in events:
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
        for number, nbytes in allocations:
            self._notes.allocate(number, nbytes, "")


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
