"""Pipeline of the stages of an expression: planned and run one after the other, within one budget."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accelera.devices import Device
from accelera.engine.elementwise import Team
from accelera.engine.evaluate import PlannedExpression, evaluate, in_ram, plan_evaluate, workers
from accelera.engine.expression import Expr, Leaf, MatrixProduct
from accelera.engine.job import (
    PlannedJob,
    begin_result,
    carry_out,
    follow,
    left_behind,
    other_plan,
)
from accelera.engine.journal import JournalRecord
from accelera.engine.matmul import PlannedMatmul
from accelera.engine.operands import OperandWatch, ResultTarget, abandon
from accelera.engine.options import USUAL, OperationOptions
from accelera.engine.report import RunReport, totals
from accelera.engine.stages import ExpressionStage, is_staged, stages_of, stores_in, text_of
from accelera.errors import ArgumentError, BudgetExceededError
from accelera.plan import Plan
from accelera.plan._internal import SavedPlan, combine_plans
from accelera.settings import current_value
from accelera.stores import Store
from accelera.stores._internal import disk_folder
from accelera.units import format_bytes

logger = logging.getLogger("accelera.engine")

_ALWAYS_IN_RAM_BYTES = 64 << 10
"""Results between stages up to this size never go to a file."""
_RAM_SHARE = 3
"""Such results take a third of the budget at most; larger ones go to files."""


def evaluate_all(
    expr: Expr,
    out: Any = None,
    *,
    device: Device,
    options: OperationOptions = USUAL,
    operation: str = "evaluate",
) -> tuple[Store, RunReport]:
    """Compute any expression by one plan; return the result's store and the report.

    Products and reductions inside it are stages. Raises BudgetExceededError (before anything is
    allocated), ShapeError, DTypeError, StoreError.
    """
    if not _has_stages(expr):
        return evaluate(expr, out, device=device, options=options, operation=operation)
    with Team(workers()) as team:
        return _Pipeline(expr, out, operation, team, device, options).run()


def plan_all(
    expr: Expr,
    out: Any = None,
    *,
    device: Device,
    options: OperationOptions = USUAL,
    operation: str = "evaluate",
) -> Plan:
    """Return the plan by which ``evaluate_all`` would compute ``expr``; nothing is read or allocated."""
    if not _has_stages(expr):
        return plan_evaluate(expr, out, device=device, options=options, operation=operation)
    with Team(workers()) as team:
        return _Pipeline(expr, out, operation, team, device, options).plan()


def _has_stages(expr: Expr) -> bool:
    return isinstance(expr, MatrixProduct) or is_staged(expr)


@dataclass(frozen=True)
class _StagePlans:
    """Plans of all stages, and the RAM that intermediates take beside each."""

    plans: tuple[Plan, ...]
    held_bytes: tuple[int, ...]
    """Per stage, the bytes of the budget that intermediates take while it runs."""


class _Pipeline:
    """The stages of one expression, planned and run."""

    def __init__(
        self, expr: Expr, out: Any, operation: str, team: Team, device: Device, options: OperationOptions
    ) -> None:
        self._expr, self._operation, self._team = expr, operation, team
        self._device = in_ram(device)
        self._options = options
        self._stages = stages_of(expr)
        self._target = ResultTarget(out, expr.shape, expr.dtype)
        limit = options.budget_bytes
        self._budget = self._device.available_bytes() if limit is None else limit
        self._pins = self._pinned_stages(options.pinned)
        self._former_specs: Sequence[Mapping[str, Any] | None] = [None] * len(self._stages)
        """Specs of an interrupted run's plans, one per stage, to compute the same results again."""
        self._fallbacks: list[str] = []

    def _pinned_stages(self, pinned: SavedPlan | None) -> Sequence[SavedPlan | None]:
        count = len(self._stages)
        if pinned is None or count == 1:
            return [pinned] * count
        pinned.require_stages(self._operation, count)
        return [pinned.stage(number, self._operation_of(number)) for number in range(count)]

    def _operation_of(self, number: int) -> str:
        stage = self._stages[number]
        if isinstance(stage.expr, MatrixProduct):
            return "matmul"
        return self._operation if stage.result is None else "evaluate"

    def run(self) -> tuple[Store, RunReport]:
        """Run all stages; return the result's store and the report."""
        count, path = len(self._stages), self._target.path
        if self._options.recorder is not None and count > 1:
            raise ArgumentError(
                f"[{self._operation}] recorder=: a recorder follows one pool, and every stage of this "
                "expression has one; record its parts one by one"
            )
        watch = self._watch()
        earlier = left_behind(self._job(count - 1, 0), watch, resume=self._options.resume)
        layout = self._layout() if earlier is None else self._resumed_layout(earlier)
        published = earlier is not None and path is not None and earlier.is_published(path)
        if path is not None and earlier is None:
            abandon(begin_result(self._target), keep_partial=False)  # checks that it can be written
        try:
            found = [
                self._run_stage(number, layout, watch)
                for number in range(count - 1 if published else 0, count)
            ]
        finally:
            for stage in self._stages:
                if stage.result is not None:
                    stage.result.release()
        store, report = found[-1]
        if count == 1:
            return store, report
        return store, _combined_report(
            [each for _, each in found], self._combined_plan(layout), self._fallbacks
        )

    def _watch(self) -> OperandWatch:
        """Return the watch over the operands of all stages, until the result is published."""
        operands = stores_in(self._stages)
        self._target.check(self._operation, operands, resume=self._options.resume)
        named = {str(number): store for number, store in enumerate(operands, 1)}
        return self._target.watch(named)

    def _resumed_layout(self, earlier: JournalRecord) -> _StagePlans:
        """Return the plans of the interrupted run if they fit the present budget, else new ones.

        Pinned plans are followed, or refused.
        """
        former = earlier.header.get("stages")
        if self._pins[0] is not None:
            if former != [None if pin is None else pin.spec for pin in self._pins]:
                raise other_plan(self._target)
            return self._layout()
        if not isinstance(former, list) or len(former) != len(self._stages):
            return self._layout()
        self._former_specs = former
        try:
            return self._layout()
        except BudgetExceededError as error:
            self._former_specs = [None] * len(self._stages)
            layout = self._layout()
            self._fallbacks.append(f"planned anew, as the interrupted run's plans do not fit: {error}")
            logger.warning("%s %s", self._operation, self._fallbacks[-1])
            return layout

    def plan(self) -> Plan:
        """Return the plan of all stages."""
        return self._combined_plan(self._layout())

    def _combined_plan(self, layout: _StagePlans) -> Plan:
        if len(layout.plans) == 1:
            return layout.plans[0]
        names = ["out" if stage.result is None else stage.result.name for stage in self._stages]
        return combine_plans(self._operation, layout.plans, names, layout.held_bytes, self._budget)

    def _run_stage(self, number: int, layout: _StagePlans, watch: OperandWatch) -> tuple[Store, RunReport]:
        job = self._job(number, layout.held_bytes[number])
        stages = [plan.saved().spec for plan in layout.plans]
        job = replace(job, header={**job.header, "stages": stages})
        is_last = self._stages[number].result is None
        options = replace(
            self._options, resume=self._options.resume and is_last, pinned=self._pins[number], adaptation=None
        )
        found = carry_out(job, self._device, options, watch)
        for each in self._stages[number].last_reads:
            each.release()
        return found

    def _job(self, number: int, held_bytes: int) -> PlannedJob:
        """Return the job of a stage, within the budget less ``held_bytes``."""
        stage, options = self._stages[number], self._options.within(self._budget - held_bytes)
        out = self._target.out if stage.result is None else stage.result
        if isinstance(stage.expr, MatrixProduct):
            a, b = (each.store for each in stage.expr.arguments if isinstance(each, Leaf))
            job = PlannedMatmul(a, b, out, options).job()
        else:
            name = self._operation_of(number)
            job = PlannedExpression(stage.expr, out, name, options, team=self._team).job()
        plan = _with_former_spec(job.plan, self._former_specs[number])
        return replace(job, plan=plan, header={"task": text_of(self._expr)})

    def _layout(self) -> _StagePlans:
        """Return the plans of all stages, with intermediates in RAM up to a third of the budget.

        Raises BudgetExceededError naming the smallest budget for the whole.
        """
        self._place_intermediates(self._budget // _RAM_SHARE)
        try:
            return self._plan_stages()
        except BudgetExceededError:
            self._place_intermediates(0)
            return self._plan_stages()

    def _plan_stages(self) -> _StagePlans:
        held = tuple(self._held_bytes(number) for number in range(len(self._stages)))
        plans: list[Plan] = []
        needed: dict[int, int] = {}
        for number, beside in enumerate(held):
            job, pin = self._job(number, beside), self._pins[number]
            try:
                plans.append(
                    job.plan(self._device, None, None) if pin is None else follow(job, self._device, pin)
                )
            except BudgetExceededError as error:
                needed[number] = error.needed_bytes + beside
        if needed:
            self._refuse(needed)
        return _StagePlans(tuple(plans), held)

    def _refuse(self, needed: Mapping[int, int]) -> None:
        number = max(needed, key=needed.__getitem__)
        most, result = needed[number], self._target.new_bytes
        is_result_large = number == len(self._stages) - 1 and result > most // 2
        advice = (
            f"the {format_bytes(result)} result is kept in RAM: pass out= with a file name to write it to a "
            "file, or give"
            if is_result_large
            else "give"
        )
        if self._folder() is None:
            advice = "temporary folders are in memory; set ACCELERA_SPILL to a folder on a disk, or give"
        raise BudgetExceededError(
            f"[{self._operation}] stage {number + 1} of {len(self._stages)} does not fit a budget of "
            f"{format_bytes(self._budget)} ({self._budget} bytes): with intermediate results it needs "
            f"{format_bytes(most)} ({most} bytes); {advice} a budget of at least {most} bytes",
            needed_bytes=most,
            budget_bytes=self._budget,
        )

    def _place_intermediates(self, limit_bytes: int) -> None:
        """Keep intermediates in RAM, smallest first, while they take at most ``limit_bytes`` at a time."""
        folder = self._folder()
        for stage in self._stages:
            if stage.result is not None:
                stage.result.store_in(folder if stage.result.nbytes > _ALWAYS_IN_RAM_BYTES else None)
        for stage in sorted(self._stages, key=lambda each: 0 if each.result is None else each.result.nbytes):
            if stage.result is not None and stage.result.ram_bytes == 0:
                stage.result.store_in(None)
                if max(self._held_bytes(number) for number in range(len(self._stages))) > limit_bytes:
                    stage.result.store_in(folder)

    def _held_bytes(self, number: int) -> int:
        """Return the bytes of RAM that intermediates take while a stage runs."""
        held = 0
        for begin, stage in enumerate(self._stages[: number + 1]):
            users = [each for each in range(number, len(self._stages)) if self._reads(each, stage)]
            if stage.result is not None and (begin == number or users):
                held += stage.result.ram_bytes
        return held

    def _reads(self, number: int, stage: ExpressionStage) -> bool:
        return any(each is stage.result for each in self._stages[number].reads)

    def _folder(self) -> Path | None:
        """Return the folder of intermediates: the spill setting, else one on a disk; None if there is none.

        Files on a tmpfs are memory that no plan would count; a folder that the setting names is used anyway.
        """
        spill = current_value("spill")
        if spill is not None:
            return Path(str(spill)).expanduser()
        path = self._target.path
        return disk_folder(*([] if path is None else [path.parent]))


def _with_former_spec(
    plan: Callable[[Device, int | None, Mapping[str, Any] | None], Plan], former: Mapping[str, Any] | None
) -> Callable[[Device, int | None, Mapping[str, Any] | None], Plan]:
    """Return ``plan`` with ``former`` as its spec where no spec and no limit is given."""

    def planned(device: Device, limit_bytes: int | None, spec: Mapping[str, Any] | None) -> Plan:
        return plan(device, limit_bytes, (spec or former) if limit_bytes is None else spec)

    return planned


def _combined_report(reports: Sequence[RunReport], plan: Plan, fallbacks: Sequence[str]) -> RunReport:
    """Return one report of the stages that ran (the last ones, or all): totals, and the largest peak."""
    first = len(plan.stages) - len(reports) + 1
    read = {
        f"{number}.{name}": size
        for number, each in enumerate(reports, first)
        for name, size in each.bytes_read.items()
    }
    return replace(
        reports[-1],
        plan=plan,
        **totals(reports),
        seconds=sum(each.seconds for each in reports),
        steps_run=sum(each.steps_run for each in reports),
        steps_skipped=sum(each.steps_skipped for each in reports),
        bytes_read=read,
        peak_pool_bytes=max(each.peak_pool_bytes for each in reports),
        fallbacks=(*fallbacks, *(note for each in reports for note in each.fallbacks)),
    )
