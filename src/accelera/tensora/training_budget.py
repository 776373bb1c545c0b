"""Training steps inside a budget of bytes: one arena for the tensors of a step, and a plan of their fates."""

from __future__ import annotations

import dataclasses
import functools
import os
import tempfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import numpy as np

from accelera import units
from accelera.errors import ArgumentError, BudgetExceededError, StateError
from accelera.memory._internal import trim_heap
from accelera.tensora.core import Tensor, native
from accelera.tensora.memory_limit import process_limit, set_limit
from accelera.tensora.step_plans import StepPlan, StepPlans, TensorFate
from accelera.tensora.typing import Device

Given = ParamSpec("Given")
Returned = TypeVar("Returned")

_MOST_PLANS = 32
"""Recorded steps with plans that a budget keeps; the one used longest ago is dropped first."""

_LEAST_CAPACITY = 64
"""Bytes of an arena; a step that has fewer is refused when it ends."""

_MOST_DEPARTURES = 4
"""Calls in a row that may leave a plan before numbers count; optimizers make their states in the first."""


@dataclass(frozen=True)
class BudgetPlan:
    """Prediction for steps under one budget."""

    peak_bytes: int
    """Most bytes that tensors hold: those outside of the step, and the top of its arena."""
    added_s: float
    """Time of operations that run again, and of traffic to the spill file."""
    added_share: float
    """The same, as a share of the step's time."""
    floor_bytes: int
    """Smallest budget for which a plan exists."""


@dataclass(frozen=True)
class BudgetReport:
    """Measured memory of the last step; all sizes in bytes."""

    followed: bool
    """Whether the step followed a plan to its end."""
    departure: str
    """Operation at which the step departed from its plan, and the reason; empty if it did not."""
    predicted_bytes: int | None
    """Peak of the plan that it followed."""
    peak_bytes: int
    """Tensors outside of the step's arena, and the parts of the arena that were ever used."""
    spilled_bytes: int
    """Written to the file."""
    reruns: int
    """Operations that ran again."""


class TrainingBudget:
    """Limit of the bytes that tensors hold during training steps, which are its ``with`` blocks.

    The first step is recorded; contents that do not fit are spilled to a file meanwhile. Then plans are made:
    each tensor that lies idle between two uses is kept, packed (a mask as bits), computed again, or written
    to the file. Later steps follow the first plan that fits, at planned addresses, with the same results to
    the bit. A step that departs from its plan falls back to spilling, and is planned anew.

    A step that does not fit raises `accelera.errors.BudgetExceededError` when it ends, with bytes that are
    enough for it. From the operation that did not fit on, it is recorded without being computed: no tensor
    that existed before is written, and reading contents that were not computed raises.

    >>> import accelera.tensora as ts
    >>> budget = ts.budget("64MiB")
    >>> w = ts.ones((256, 256)).requires_grad_()
    >>> for _ in range(3):
    ...     with budget:
    ...         (ts.ones((64, 256)) @ w).sum().backward()
    ...         w.grad = None
    >>> budget.report.followed
    True

    Parameters
    ----------
    limit
        Bytes, or a size as "64MiB": of all tensors on the device, those made before included.
    optimizer
        Changes each parameter inside the backward pass, as soon as its gradient is complete, and lets go of
        the gradient; its ``step()`` then finds nothing left to do. Not for steps that use the gradients in
        between (clipping, accumulation over several backward passes).
    spill_dir
        Folder of the file; that of temporary files if none is given.
    device
        "cpu", or a CUDA device: tensors elsewhere are no part of the budget then, and memory of the host
        stands for the file.

    Raises
    ------
    ValueError
        If `limit` is no size, or there is no such device.
    TypeError
        If the optimizer cannot change one parameter at a time.

    """

    def __init__(
        self, limit: int | str, *, optimizer: Any = None, spill_dir: str | None = None, device: Device = "cpu"
    ) -> None:
        self.limit_bytes = units.parse_limit("budget", limit)
        self.device = str(device)
        native.memory_stats(self.device)  # raises ValueError if there is no such device
        if optimizer is not None and not getattr(optimizer, "separable", False):
            raise ArgumentError(
                f"[budget] {type(optimizer).__name__} cannot change one parameter at a time; "
                "leave optimizer= out"
            )
        self._optimizer = optimizer
        self._spill_dir = os.path.abspath(spill_dir or tempfile.gettempdir())
        self._steps: Any = None
        self._capacity = 0
        self._plans: OrderedDict[Any, StepPlans] = OrderedDict()
        self._departures: Counter[Any] = Counter()
        """Calls in a row that left the plan of their structure of arguments."""
        self._current = _CurrentStep(None, 0, None)
        self._high_bytes = 0
        self._undo: list[Callable[[], None]] = []
        self.report = BudgetReport(False, "", None, 0, 0, 0)

    # --- steps

    def __enter__(self) -> TrainingBudget:
        self._begin(None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(error)

    def __call__(self, function: Callable[Given, Returned]) -> Callable[Given, Returned]:
        """Return the function with each call as a step; plans are kept by the structure of the arguments.

        Numbers are inputs: calls that differ only in them follow one plan while they run its operations.
        """

        @functools.wraps(function)
        def step(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
            self._begin(self._key_of((args, kwargs)))
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                self._end(error)
                raise
            self._end(None)
            return result

        step.budget = self  # type: ignore[attr-defined]
        return step

    def _key_of(self, arguments: Any) -> Any:
        numbers: list[Any] = []
        structure = _signature(arguments, numbers)
        # Where calls keep leaving the plan, a number decides which operations run: each value has a plan.
        varies = self._departures[structure] >= _MOST_DEPARTURES
        return structure, tuple(numbers) if varies else ()

    def _begin(self, key: Any) -> None:
        outside = self._outside_bytes()
        left = process_limit(self.device)
        most = self.limit_bytes if left is None else min(self.limit_bytes, left)
        room = most - outside
        if self._steps is None:
            self._steps = native.StepBudget(max(room, _LEAST_CAPACITY), self._spill_dir, self.device)
        room = min(self._steps.capacity, room)
        plans = self._plans.get(key)
        if plans is not None:
            self._plans.move_to_end(key)
        plan = None if plans is None else plans.select(room - self._high_bytes)
        self._steps.begin(room, plans.prepare(plan) if plans is not None and plan is not None else None)
        self._current = _CurrentStep(key, outside, plan)
        fusion, stats = native.fusion_least(), native.memory_stats(self.device)
        self._undo = [
            lambda: native.set_fusion_least(fusion),
            lambda: set_limit("step", None, self.device),
        ]
        native.set_fusion_least(2**63 - 1)
        set_limit("step", max(most, stats.live_bytes), self.device)
        if self._optimizer is not None:
            self._undo += _update_inside_backward(self._optimizer)

    def _end(self, error: BaseException | None) -> None:
        for undo in self._undo:
            undo()
        self._undo = []
        self._steps.end()
        measured, now = self._steps.report, self._current
        arena = measured.peak_bytes
        predicted = None
        if measured.followed and now.plan is not None:
            # Blocks that outlive the step may take, at its end, the place of some that ended.
            capacity = self._steps.capacity
            arena = min(measured.low_top_bytes + measured.high_bytes, capacity)
            predicted = now.outside_bytes + min(now.plan.top_bytes + measured.high_bytes, capacity)
        self._high_bytes = measured.high_bytes
        self.report = BudgetReport(
            measured.followed,
            measured.departure,
            predicted,
            now.outside_bytes + arena,
            measured.spilled_bytes,
            measured.reruns,
        )
        lacks_memory = isinstance(error, MemoryError) and measured.needed_bytes > 0
        if lacks_memory or (measured.refusal and (error is None or isinstance(error, MemoryError))):
            raise self._refusal(measured, now, error) from error
        if now.key is not None and not now.key[1]:
            count = self._departures[now.key[0]]
            self._departures[now.key[0]] = count + 1 if measured.departure else 0
        if error is None and not measured.followed and self._steps.operation_count:
            self._keep_plans(now.key)

    def _keep_plans(self, key: Any) -> None:
        self._plans.pop(key, None)  # their memory is needed by the search for new ones
        trim_heap()  # and that of the step's graph, in pieces too small for the search
        plans = self._plans[key] = StepPlans(self._steps, self.device)
        while len(self._plans) > _MOST_PLANS:
            self._plans.popitem(last=False)
        # Laid out here, where the arena is empty: the next step begins without a search for memory.
        plan = plans.select(self.limit_bytes - self._outside_bytes() - self._high_bytes)
        if plan is not None:
            plans.prepare(plan)
        plans.release()
        trim_heap()

    def _outside_bytes(self) -> int:
        used = 0 if self._steps is None else self._steps.used_bytes
        return int(native.memory_stats(self.device).live_bytes) - used

    def _refusal(self, measured: Any, now: _CurrentStep, error: BaseException | None) -> BudgetExceededError:
        """Return the error of a step that did not fit, with the floor of its record."""
        needed = measured.needed_bytes
        if self._steps.operation_count:
            floor = StepPlans(self._steps, self.device).staircase[-1].top_bytes + measured.high_bytes
            needed = max(needed, floor)
        needed = max(now.outside_bytes + needed, self.limit_bytes + 1)
        part = "the step" if error is None else "what ran before contents were read"
        if not self._steps.used_bytes:
            self._steps = None  # the next one is as large as the limit allows then
        reason = measured.refusal or str(error).removeprefix("[budget] ")
        return BudgetExceededError(
            f"[budget] {reason}; {now.outside_bytes} bytes are outside of the step. The limit is "
            f"{self.limit_bytes} bytes; {needed} are enough for {part}",
            needed_bytes=needed,
            budget_bytes=self.limit_bytes,
        )

    # --- plans of recorded steps

    def _recorded_plans(self) -> StepPlans:
        plans = self._plans.get(self._current.key)
        if plans is None:
            raise StateError("[budget] no step was recorded; run one before its plans are asked for")
        return plans

    def _fixed_bytes(self) -> int:
        """Return the bytes that no plan changes: outside of the arena, and of tensors that outlive a step."""
        return self._current.outside_bytes + self._high_bytes

    def staircase(self) -> list[BudgetPlan]:
        """Return all plans of the last step, of falling peak and rising time.

        Raises
        ------
        RuntimeError
            If no step was recorded yet.

        """
        return [self._prediction(plan) for plan in self._recorded_plans().staircase]

    def __repr__(self) -> str:
        limit, peak = map(units.format_bytes, (self.limit_bytes, self.report.peak_bytes))
        last = f"last peak {peak}" if self.report.peak_bytes else "no step yet"
        return f"<TrainingBudget of {limit} on {self.device}, {last}>"

    def plan(self, limit: int | str | None = None) -> BudgetPlan:
        """Return the plan of the last step that some budget selects, by default this one.

        Raises
        ------
        BudgetExceededError
            If the limit is below the floor, which the error names.
        RuntimeError
            If no step was recorded yet.

        """
        return self._prediction(self._select_plan(limit))

    def tensors(self, limit: int | str | None = None) -> list[TensorFate]:
        """Return the fate of each tensor that may leave, in the plan that `plan` returns for the same limit.

        Raises
        ------
        BudgetExceededError
            If the limit is below the floor, which the error names.
        RuntimeError
            If no step was recorded yet.

        """
        return self._recorded_plans().tensors(self._select_plan(limit))

    def _prediction(self, plan: StepPlan) -> BudgetPlan:
        plans, fixed = self._recorded_plans(), self._fixed_bytes()
        floor = fixed + plans.staircase[-1].top_bytes
        return BudgetPlan(fixed + plan.top_bytes, plan.seconds, plan.seconds / plans.seconds, floor)

    def _select_plan(self, limit: int | str | None) -> StepPlan:
        nbytes = self.limit_bytes if limit is None else units.parse_limit("budget", limit)
        plans, fixed = self._recorded_plans(), self._fixed_bytes()
        plan = plans.select(nbytes - fixed)
        if plan is not None:
            return plan
        floor = fixed + plans.staircase[-1].top_bytes
        raise BudgetExceededError(
            f"[budget] asked for {nbytes} bytes; the floor of this step is {floor}, give at least that",
            needed_bytes=floor,
            budget_bytes=nbytes,
        )

    def explain(self) -> str:
        """Return the plan as text: memory, time, fate of each tensor, the floor, and the neighbouring plans.

        Raises
        ------
        RuntimeError
            If no step was recorded yet.

        """
        plans, fixed = self._recorded_plans(), self._fixed_bytes()
        plan, steps = plans.select(self.limit_bytes - fixed), plans.staircase
        size = units.format_bytes
        lines = [
            f"budget {size(self.limit_bytes)}: {size(self._current.outside_bytes)} outside of the step, "
            f"{size(self._high_bytes)} of it outlive it",
            f"free peak {size(fixed + steps[0].top_bytes)}, floor {size(fixed + steps[-1].top_bytes)}",
        ]
        if plan is None:
            return "\n".join([*lines, "no plan fits: tensors are spilled as they come"])
        position = steps.index(plan)
        lines.append(
            f"plan {position + 1} of {len(steps)}: peak {size(fixed + plan.top_bytes)}, "
            f"+{plan.seconds / plans.seconds:.1%} time (+{plan.seconds * 1e3:.1f} ms)"
        )
        return "\n".join(
            [*lines, *_fate_lines(plans.tensors(plan)), *_neighbour_lines(plans, position, fixed)]
        )


@dataclass(frozen=True)
class _CurrentStep:
    """The running step, or the last one."""

    key: Any
    outside_bytes: int
    plan: StepPlan | None


def _fate_lines(tensors: list[TensorFate]) -> list[str]:
    """Return a line for each group of tensors with the same operation, size and fate."""
    lines = []
    for fate in ("pack", "recompute", "offload", "keep"):
        groups: dict[tuple[str, int], list[float]] = {}
        for each in tensors:
            if each.fate == fate:
                groups.setdefault((each.operation, each.nbytes), []).append(each.added_s)
        total = sum(nbytes * len(costs) for (_, nbytes), costs in groups.items())
        count = sum(map(len, groups.values()))
        lines.append(f"{fate.upper()} {count} tensors, {units.format_bytes(total)}")
        for (operation, nbytes), costs in sorted(groups.items(), key=lambda item: -item[0][1] * len(item[1])):
            cost = f" +{sum(costs) * 1e3:.2f} ms" if fate != "keep" else ""
            lines.append(f"  {len(costs)} x {operation} of {units.format_bytes(nbytes)}{cost}")
    return lines


def _neighbour_lines(plans: StepPlans, position: int, fixed: int) -> list[str]:
    lines, steps = [], plans.staircase
    for words, i in (("next smaller", position + 1), ("next faster", position - 1)):
        if 0 <= i < len(steps):
            size = units.format_bytes(fixed + steps[i].top_bytes)
            lines.append(f"{words}: {size} at +{steps[i].seconds / plans.seconds:.1%}")
    return lines


def _signature(value: Any, numbers: list[Any]) -> Any:
    """Return the structure of arguments: shapes and types of tensors, names, texts and truth values.

    Numbers are appended to ``numbers``; only their types are part of the structure.
    """
    if isinstance(value, Tensor):
        return tuple(value.shape), str(value.dtype)
    if isinstance(value, dict):
        return tuple((name, _signature(entry, numbers)) for name, entry in value.items())
    if isinstance(value, list | tuple):
        return tuple(_signature(entry, numbers) for entry in value)
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float | complex | np.number):
        numbers.append(value)
        return type(value).__name__
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        entries = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return type(value).__name__, _signature(entries, numbers)
    shape = getattr(value, "shape", None)
    return type(value).__name__, None if shape is None else tuple(shape)


def _update_inside_backward(optimizer: Any) -> list[Callable[[], None]]:
    """Update each parameter as soon as its gradient is complete; return functions that undo this."""
    undo: list[Callable[[], None]] = []
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.requires_grad:
                hook = param.register_post_accumulate_grad_hook(
                    functools.partial(_update_param, optimizer, group)
                )
                undo.append(hook.remove)
    return undo


def _update_param(optimizer: Any, group: dict[str, Any], param: Any) -> None:
    optimizer.update(group, [param], [param.grad])
    param.grad = None


def budget(
    limit: int | str, *, optimizer: Any = None, spill_dir: str | None = None, device: Device = "cpu"
) -> TrainingBudget:
    """Return a `TrainingBudget`: its ``with`` blocks are training steps, and it decorates functions.

    Parameters
    ----------
    limit
        Bytes, or a size as "64MiB", that tensors on the device may hold during a step.
    optimizer
        Changes each parameter inside the backward pass; see `TrainingBudget`.
    spill_dir
        Folder of the file for tensors that leave memory.
    device
        "cpu" or a CUDA device, whose tensors leave for memory of the host.

    """
    return TrainingBudget(limit, optimizer=optimizer, spill_dir=spill_dir, device=device)


def explain(step: Any) -> str:
    """Return the plan of a budget, or of a function that one decorates, in words.

    Raises
    ------
    TypeError
        If `step` is neither.
    RuntimeError
        If no step was recorded yet.

    """
    found = step if isinstance(step, TrainingBudget) else getattr(step, "budget", None)
    if not isinstance(found, TrainingBudget):
        raise ArgumentError(
            f"[explain] a {type(step).__name__}; give a TrainingBudget or a function decorated with one"
        )
    return found.explain()
