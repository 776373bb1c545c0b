"""Plans of a recorded training step, found once; each budget selects the first of them that fits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from accelera._native import StepGraph

LEAST_BYTES = 4096
"""Smaller tensors always stay."""
SPILL_SECONDS_PER_BYTE = 2 / 1.0e9
"""To a file and back: a constant, as plans must not vary with the measured speed of a disk."""
FLOPS_PER_SECOND = 1.5e11
BYTES_PER_SECOND = 1.5e10
SECONDS_PER_OPERATION = 2e-6
"""An operation's time as plans have it, a roofline over the op table's costs. Measured times would make plans
differ from run to run; only ratios of these matter."""
CUDA_FLOPS_PER_SECOND = 2.0e13
CUDA_BYTES_PER_SECOND = 1.0e12
CUDA_SECONDS_PER_OPERATION = 5e-6
CUDA_SPILL_SECONDS_PER_BYTE = 2 / 2.5e10
"""The same of a CUDA device, with memory of the host over PCI Express 4 instead of a file."""
CUDA_FLOPS_PER_SECOND_OF_OPERATION = {
    "conv": 2.0e12,
    "conv_input": 2.0e12,
    "conv_weight": 2.5e11,
    "attention": 5.0e12,
    "attention_backward": 5.0e12,
}
"""Operations whose kernels are far slower than products, so that repeating them costs more: estimates from
their machine code, not measured on a device."""
FATES = ("keep", "recompute", "recompute", "offload", "pack")
"""Names by the planner's numbers; the second "recompute" also drops the intermediate results."""


@dataclass(frozen=True)
class TensorFate:
    """Fate of a tensor between two uses."""

    operation: str
    """Operation that made the tensor."""
    nbytes: int
    fate: str
    """"keep", "pack" (a mask as bits), "recompute" or "offload"."""
    added_s: float
    """Time that the plan would save by keeping it."""


class StepPlan(NamedTuple):
    """One plan of a step, its blocks laid out."""

    number: int
    """In `PlanFrontier`."""
    seconds: float
    """Time that the plan adds."""
    live_bytes: int
    """Peak of the bytes that live at the same time."""
    top_bytes: int
    """Highest end of a block in the arena."""
    fates: bytes
    """Number of the fate (see `FATES`) for each gap: a time in which a tensor is idle between two uses."""


class PlanFrontier:
    """Pareto frontier of plans: of rising time and falling peak, independent of any budget.

    The arena layout of a plan is computed when it is first needed, as a budget needs only a few of them. The
    graph is as large as the step's record, so it is made when it is needed and kept until `release`.
    """

    def __init__(
        self, make_graph: Callable[[], StepGraph], spill_s_per_byte: float, least_bytes: int
    ) -> None:
        self._make_graph = make_graph
        self._costs = spill_s_per_byte, least_bytes
        self._choices = self.graph.choices(*self._costs)
        self._plans: dict[int, StepPlan] = {}

    @functools.cached_property
    def graph(self) -> StepGraph:
        """The step as the planner reads it."""
        return self._make_graph()

    def release(self) -> None:
        """Free the graph until it is needed again."""
        self.__dict__.pop("graph", None)

    def __getitem__(self, number: int) -> StepPlan:
        if number not in self._plans:
            seconds, _, fates = self._choices[number]
            top, live = self.graph.memory(*self._costs, fates)
            self._plans[number] = StepPlan(number, seconds, live, top, fates)
        return self._plans[number]

    def select(self, room: int) -> StepPlan | None:
        """Return the first plan whose arena ends within `room` bytes; None if none does.

        So with less room the selected plan never needs more memory, and never less time.
        """
        fitting = (i for i, (_, peak, _) in enumerate(self._choices) if peak <= room)
        return next((self[i] for i in fitting if self[i].top_bytes <= room), None)

    @functools.cached_property
    def staircase(self) -> list[StepPlan]:
        """All plans that some room selects, in order of falling `top_bytes`."""
        steps: list[StepPlan] = []
        for number in range(len(self._choices)):
            if not steps or self[number].top_bytes < steps[-1].top_bytes:
                steps.append(self[number])
        return steps


class StepPlans(PlanFrontier):
    """Plans of one step that a budget recorded."""

    def __init__(self, steps: Any, device: str) -> None:
        self._log = steps.log()
        self.seconds = float(operation_seconds(self.columns, device).sum())
        spill = SPILL_SECONDS_PER_BYTE if device == "cpu" else CUDA_SPILL_SECONDS_PER_BYTE
        super().__init__(functools.partial(_graph_of_log, self._log, device), spill, LEAST_BYTES)
        self._prepared: tuple[int, Any] = (-1, None)

    @property
    def columns(self) -> dict[str, Any]:
        """The record of the step by columns; rebuilt on each access, because they are as large as it."""
        columns: dict[str, Any] = self._log.columns()
        return columns

    def prepare(self, plan: StepPlan) -> Any:
        """Return a plan in the form that steps follow."""
        if self._prepared[0] != plan.number:
            actions, places, *_ = self.graph.schedule(*self._costs, plan.fates)
            self._prepared = (plan.number, self._log.plan(actions, places))
        return self._prepared[1]

    def tensors(self, plan: StepPlan) -> list[TensorFate]:
        """Return what a plan does with each tensor that may leave, in order of their operations."""
        fates, columns = bytearray(plan.fates), self.columns
        rows = []
        for i, (value, _, _) in enumerate(self.graph.gaps(LEAST_BYTES)):
            fate, seconds = fates[i], 0.0
            if fate:
                fates[i] = 0
                seconds = max(0.0, plan.seconds - self.graph.added_seconds(*self._costs, bytes(fates)))
                fates[i] = fate
            operation = columns["names"][columns["born"][value]]
            rows.append(TensorFate(operation, columns["nbytes"][value], FATES[fate], seconds))
        return rows


def operation_seconds(columns: dict[str, Any], device: str = "cpu") -> Any:
    """Return the estimated time of each operation of a logged step, in seconds."""
    cpu = device == "cpu"
    compute = np.asarray(columns["flops"], "float64") / (FLOPS_PER_SECOND if cpu else _cuda_rates(columns))
    moved = np.asarray(columns["moved_bytes"], "float64")
    memory = moved / (BYTES_PER_SECOND if cpu else CUDA_BYTES_PER_SECOND)
    return np.maximum(compute, memory) + (SECONDS_PER_OPERATION if cpu else CUDA_SECONDS_PER_OPERATION)


def _cuda_rates(columns: dict[str, Any]) -> Any:
    """Return the rate of each operation on a CUDA device, in operations on numbers per second."""
    rates = CUDA_FLOPS_PER_SECOND_OF_OPERATION
    return np.asarray([rates.get(name, CUDA_FLOPS_PER_SECOND) for name in columns["names"]], "float64")


def packed_forms(columns: dict[str, Any]) -> tuple[Any, Any]:
    """Return the bytes of each value packed as bits (0: no mask), and the seconds to pack and unpack it."""
    truths = np.asarray(columns["truths"], "int64")
    return -(-truths // 8), 2 * (truths / BYTES_PER_SECOND + SECONDS_PER_OPERATION)


def _graph_of_log(log: Any, device: str) -> StepGraph:
    columns = log.columns()
    return _step_graph(columns, operation_seconds(columns, device))


def _step_graph(log: dict[str, Any], seconds: Any) -> StepGraph:
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
