"""Plans of a recorded training step, found once; each budget selects the first of them that fits."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from accelera._native import StepGraph

LEAST_BYTES = 4096
"""Smaller tensors always stay."""
SPILL_SECONDS_PER_BYTE = 2 / 1.0e9
"""To a file and back, assumed of any disk: plans must not depend on its mood."""
FLOPS_PER_SECOND = 1.5e11
BYTES_PER_SECOND = 1.5e10
SECONDS_PER_OPERATION = 2e-6
"""An operation's time as plans have it, a roofline over the op table's costs. Measured times would make plans
differ from run to run; only ratios of these matter."""
CUDA_FLOPS_PER_SECOND = 2.0e13
CUDA_BYTES_PER_SECOND = 1.0e12
CUDA_SECONDS_PER_OPERATION = 5e-6
CUDA_SPILL_SECONDS_PER_BYTE = 2 / 1.2e10
"""The same of a CUDA device, with memory of the host instead of a file."""
FATES = ("keep", "recompute", "recompute", "offload", "pack")
"""By the number that the planner gives them; the second kind drops what is made on the way."""


@dataclass(frozen=True)
class TensorFate:
    """Fate of a tensor between two uses."""

    operation: str
    """That made it."""
    nbytes: int
    fate: str
    """"keep", "pack" (a mask as bits), "recompute" or "offload"."""
    added_seconds: float
    """Time that the plan would save by keeping it."""


class StepPlan(NamedTuple):
    """One plan of a step, its blocks laid out."""

    number: int
    """In `PlanFrontier`."""
    seconds: float
    """Time that it adds."""
    live_bytes: int
    """Most bytes at once."""
    top_bytes: int
    """Of the arena."""
    fates: bytes
    """By gap."""


class PlanFrontier:
    """Plans of rising time and falling peak, which know no budget.

    Blocks of a plan are laid out when its top is first asked for: a budget asks for a few of them.
    """

    def __init__(self, graph: StepGraph, spill_s_per_byte: float, least_bytes: int) -> None:
        self.graph = graph
        self._prices = spill_s_per_byte, least_bytes
        self._found = graph.choices(*self._prices)
        self._laid_out: dict[int, StepPlan] = {}

    def __getitem__(self, number: int) -> StepPlan:
        if number not in self._laid_out:
            seconds, _, fates = self._found[number]
            top, live = self.graph.memory(*self._prices, fates)
            self._laid_out[number] = StepPlan(number, seconds, live, top, fates)
        return self._laid_out[number]

    def select(self, room: int) -> StepPlan | None:
        """Return the first plan whose arena ends within `room` bytes; None if none does.

        So less room never means more memory, nor less time.
        """
        fitting = (i for i, (_, peak, _) in enumerate(self._found) if peak <= room)
        return next((self[i] for i in fitting if self[i].top_bytes <= room), None)

    @functools.cached_property
    def staircase(self) -> list[StepPlan]:
        """All plans that some room selects: of falling top."""
        steps: list[StepPlan] = []
        for number in range(len(self._found)):
            if not steps or self[number].top_bytes < steps[-1].top_bytes:
                steps.append(self[number])
        return steps


class StepPlans(PlanFrontier):
    """Plans of one step that a budget recorded."""

    def __init__(self, steps: Any, device: str) -> None:
        self._log = steps.log()
        self.columns: dict[str, Any] = self._log.columns()
        seconds = operation_seconds(self.columns, device)
        self.seconds = float(seconds.sum())
        spill = SPILL_SECONDS_PER_BYTE if device == "cpu" else CUDA_SPILL_SECONDS_PER_BYTE
        super().__init__(_graph_of(self.columns, seconds), spill, LEAST_BYTES)
        self._prepared: tuple[int, Any] = (-1, None)

    def prepare(self, plan: StepPlan) -> Any:
        """Return a plan in the form that steps follow."""
        if self._prepared[0] != plan.number:
            actions, places, *_ = self.graph.schedule(*self._prices, plan.fates)
            self._prepared = (plan.number, self._log.plan(actions, places))
        return self._prepared[1]

    def tensors(self, plan: StepPlan) -> list[TensorFate]:
        """Return what a plan does with each tensor that may leave, in order of their operations."""
        fates = bytearray(plan.fates)
        rows = []
        for i, (value, _, _) in enumerate(self.graph.gaps(LEAST_BYTES)):
            fate, seconds = fates[i], 0.0
            if fate:
                fates[i] = 0
                seconds = max(0.0, plan.seconds - self.graph.added_seconds(*self._prices, bytes(fates)))
                fates[i] = fate
            operation = self.columns["names"][self.columns["born"][value]]
            rows.append(TensorFate(operation, self.columns["nbytes"][value], FATES[fate], seconds))
        return rows


def operation_seconds(columns: dict[str, Any], device: str = "cpu") -> Any:
    """Return the time that plans take each operation of a logged step for."""
    cpu = device == "cpu"
    compute = np.asarray(columns["flops"], "float64") / (FLOPS_PER_SECOND if cpu else CUDA_FLOPS_PER_SECOND)
    moved = np.asarray(columns["moved_bytes"], "float64")
    memory = moved / (BYTES_PER_SECOND if cpu else CUDA_BYTES_PER_SECOND)
    return np.maximum(compute, memory) + (SECONDS_PER_OPERATION if cpu else CUDA_SECONDS_PER_OPERATION)


def packed_forms(columns: dict[str, Any]) -> tuple[Any, Any]:
    """Return the bytes of each value as bits, 0 where it is no mask, and the time into that form and back."""
    truths = np.asarray(columns["truths"], "int64")
    return -(-truths // 8), 2 * (truths / BYTES_PER_SECOND + SECONDS_PER_OPERATION)


def _graph_of(log: dict[str, Any], seconds: Any) -> StepGraph:
    def column(name: str, dtype: str) -> Any:
        return np.asarray(log[name], dtype)

    def rows(name: str) -> tuple[Any, Any]:
        starts, items = log[name]
        return np.asarray(starts, "int64"), np.asarray(items, "int32")

    packed_bytes, pack_seconds = packed_forms(log)
    return StepGraph(
        seconds=seconds,
        workspace=column("workspace", "int64"),
        pure=column("pure", "uint8"),
        reads=rows("reads"),
        writes=rows("writes"),
        births=rows("births"),
        nbytes=column("nbytes", "int64"),
        born=column("born", "int32"),
        freed=column("freed", "int32"),
        fixed=column("lent", "uint8"),
        packed_bytes=packed_bytes,
        pack_seconds=pack_seconds,
    )
