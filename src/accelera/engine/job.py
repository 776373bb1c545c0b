"""Jobs: a plan run with its journal; when memory runs out, a smaller plan, and in the end the CPU.

A job knows its operands, how to plan itself for a given device and room, and which kernel computes
a step. ``carry_out`` runs it: it opens the result, keeps the journal, and when the device runs out
of memory plans again in half the memory, and in the end on the CPU, for what is not stored yet. The
result appears under its name only when complete.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Protocol

from accelera.devices import Device, get_device
from accelera.engine.journal import (
    Coverage,
    Journal,
    JournalRecord,
    as_box,
    check_journal,
    find_journal,
    finish_journal,
    forget_journal,
    journal_path,
)
from accelera.engine.operands import OperandWatch, ResultTarget, abandon, publish
from accelera.engine.options import OperationOptions
from accelera.engine.report import Observers, RunReport, nothing_run
from accelera.engine.runner import Interrupted, Kernel, PlanRunner, RunControl
from accelera.errors import (
    AcceleraError,
    BudgetExceededError,
    DeviceMemoryError,
    StoreChangedError,
    StoreError,
    StoreFormatError,
)
from accelera.memory._internal import LEDGER
from accelera.plan import Plan
from accelera.plan._internal import OperandBlock, PlanStep, SavedPlan, Spans
from accelera.stores import Store
from accelera.stores._internal import OutputStore, partial_path, remove_leftovers

logger = logging.getLogger("accelera.engine")

_LEAST_CAPACITY = 1 << 20
_MOST_NOTES = 4096
"""About the most lines of a journal, whatever the number of blocks."""
_MOST_BOXES = 1024
"""Size of the cache of ``Coverage.covers``: a tile is asked for again in each of its slabs."""
_NOTED_EVERY_S = 30.0
"""Most seconds until stored blocks are noted in the journal."""


class PlanRun(Protocol):
    """One run of a plan."""

    def run(self) -> RunReport:
        """Run all steps that are not done; raises the first error once all threads have ended."""


@dataclass(frozen=True)
class PlannedJob:
    """One operation on opened operands."""

    operation: str
    inputs: tuple[Store, ...]
    """Operands, as views of the rank that the plan works in."""
    names: tuple[str, ...]
    """Their names in the plan."""
    target: ResultTarget
    result_view: Callable[[Store], Store]
    """Returns the result with the axes that the plan works in."""
    plan: Callable[[Device, int | None, Mapping[str, Any] | None], Plan]
    """Plans for a device, a capacity limit in bytes (None: what the budget leaves) and a former spec."""
    kernel: Kernel
    runner: Callable[[Plan, Sequence[Store], Device, Kernel, OperationOptions, RunControl], PlanRun] = (
        PlanRunner
    )
    """Makes the run of a plan: on the given device, or on the devices that the plan names."""
    header: Mapping[str, Any] = field(default_factory=dict)
    """Further items of the journal's header, which distinguish other tasks on the same operands."""

    @property
    def named(self) -> dict[str, Store]:
        """The operands by their names in the plan."""
        return dict(zip(self.names, self.inputs, strict=True))


def carry_out(
    job: PlannedJob, device: Device, options: OperationOptions, watch: OperandWatch | None = None
) -> tuple[Store, RunReport]:
    """Run ``job`` on ``device``; return the result's store and the report.

    ``watch`` checks that the operands stay unchanged until the result is published; by default from now on.
    """
    return _JobAttempt(job, device, options).run(watch)


def left_behind(job: PlannedJob, watch: OperandWatch, *, resume: bool) -> JournalRecord | None:
    """Return the journal of the run to resume; None when there is none, or it holds nothing yet.

    Raises StoreError when it is of another run, StoreChangedError when an operand has changed since.
    """
    path = job.target.path
    if not resume or path is None or find_journal(journal_path(path)) is None:
        return None
    return check_journal(journal_path(path), _header(job, watch))


def begin_result(target: ResultTarget) -> Store:
    """Begin the result, after deleting the journal of an earlier run."""
    if target.path is not None:
        forget_journal(journal_path(target.path))
    return target.open(resume=False)


def follow(job: PlannedJob, device: Device, pinned: SavedPlan) -> Plan:
    """Return the plan that was made before.

    Raises ShapeError, DTypeError or ArgumentError when it was made for something else, StoreFormatError when
    its choices are none, BudgetExceededError when it does not fit.
    """
    pinned.require_same(job.operation, {name: (each.shape, each.dtype) for name, each in job.named.items()})
    try:
        plan = job.plan(device, None, pinned.spec)
    except AcceleraError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise StoreFormatError(
            f"[{job.operation}] plan= has no choices for this: {error!r}; plan again"
        ) from error
    if plan.saved().spec != pinned.spec:
        raise StoreFormatError(f"[{job.operation}] plan= has choices of another kind of run; plan again")
    return plan


def other_plan(target: ResultTarget) -> StoreError:
    """Return the error for a pinned plan that is not the one of the run to resume."""
    return StoreError(
        f"[resume] {target.path}: the interrupted run followed another plan than plan=; leave plan= out, or "
        f"run without resume"
    )


def _header(job: PlannedJob, watch: OperandWatch) -> dict[str, Any]:
    """Return the journal's header, by which a later run recognises the same job on the same operands."""
    return {
        "operation": job.operation,
        "operands": {name: [list(store.shape), str(store.dtype)] for name, store in job.named.items()},
        "result": [list(job.target.shape), str(job.target.dtype)],
        "fingerprints": watch.fingerprints,
        **job.header,
    }


class _JobAttempt:
    """One run of a job: its plan may change on the way, stored blocks stay."""

    def __init__(self, job: PlannedJob, device: Device, options: OperationOptions) -> None:
        self.job = job
        self.device = device
        self.options = options
        self.observer = Observers(options.observers)
        self.fallbacks: list[str] = []
        self.done = Coverage()
        self.journal: Journal | None = None
        self.unjournaled = _UnjournaledBoxes(math.prod(job.target.shape))
        self.operands_changed = False
        """True once an operand was found overwritten, so that no stored block is valid."""
        self.cannot_shrink = False
        """True once the plan cannot shrink, so that memory pressure is no longer checked."""

    def run(self, watch: OperandWatch | None) -> tuple[Store, RunReport]:
        """Run the job; return the result's store and the report."""
        began = time.perf_counter()
        target = self.job.target
        target.check(self.job.operation, list(self.job.inputs), resume=self.options.resume)
        watch = watch or target.watch(self.job.named)
        earlier = left_behind(self.job, watch, resume=self.options.resume)
        plan = self._first_plan(earlier)
        logger.debug("%s", plan.explain())
        if earlier is not None and target.path is not None and earlier.is_published(target.path):
            result, report = self._finished(plan)
        else:
            result, report = self._computed(
                plan, watch, resumes=earlier is not None and self._can_resume(earlier)
            )
        report = replace(
            report, seconds=time.perf_counter() - began, fallbacks=(*self.fallbacks, *report.fallbacks)
        )
        self.observer.on_finish(report)
        return result, report

    def _computed(self, plan: Plan, watch: OperandWatch, *, resumes: bool) -> tuple[Store, RunReport]:
        """Run the steps that are not done, and publish the result when it is complete."""
        result = self.job.target.open(resume=True) if resumes else begin_result(self.job.target)
        try:
            _wait_for_caller([*self.job.inputs, result])
            self._open_journal(plan, watch, resumes=resumes)
            report = self._run_until_done(plan, result)
            self._check_operands(watch)
            self._journal_completion(result)
            publish(result)
        except BaseException as error:
            self._clean_up(result, error, resumes=resumes)
            raise
        if self.journal is not None:
            self.journal.remove()
        return result, report

    def _finished(self, plan: Plan) -> tuple[Store, RunReport]:
        """Return the result of a run that was killed after it had published it."""
        path = self.job.target.path
        assert path is not None, "only results in files have journals"
        finish_journal(journal_path(path), lambda: remove_leftovers(path))
        return self.job.target.opened(), nothing_run(plan, self.device.name)

    def _can_resume(self, earlier: JournalRecord) -> bool:
        """Return whether the earlier run has stored blocks, and its partial file still exists."""
        path = self.job.target.path
        assert path is not None, "only results in files have journals"
        partial = partial_path(path)
        if earlier.boxes and not partial.exists():
            logger.warning("%s: %s is gone, so all is computed again", self.job.operation, partial)
        return bool(earlier.boxes) and partial.exists()

    def _first_plan(self, earlier: JournalRecord | None) -> Plan:
        """Return the interrupted run's plan if there is one and it fits the present budget, else a new one.

        A pinned plan is followed, or refused.
        """
        pinned = self.options.pinned
        if pinned is not None:
            return self._pinned_plan(pinned, earlier)
        if earlier is None:
            return self.job.plan(self.device, None, None)
        try:
            return self.job.plan(self.device, None, earlier.header["spec"])
        except BudgetExceededError as error:
            plan = self.job.plan(self.device, None, None)
            self._note_fallback("planned anew, as the interrupted run's plan does not fit", error)
            return plan

    def _pinned_plan(self, pinned: SavedPlan, earlier: JournalRecord | None) -> Plan:
        plan = follow(self.job, self.device, pinned)
        if earlier is not None and earlier.header["spec"] != pinned.spec:
            raise other_plan(self.job.target)
        return plan

    def _open_journal(self, plan: Plan, watch: OperandWatch, *, resumes: bool) -> None:
        path = self.job.target.path
        if path is not None:
            begin = Journal.resume if resumes else Journal.begin
            header = _header(self.job, watch)
            self.journal = begin(journal_path(path), {**header, "spec": plan.spec})
            self.done = Coverage(self.journal.done)

    def _check_operands(self, watch: OperandWatch) -> None:
        """Raise StoreChangedError, so that nothing is kept, when an operand was overwritten meanwhile."""
        try:
            watch.require_unchanged(self.job.operation)
        except StoreChangedError:
            self.operands_changed = True
            raise

    def _journal_completion(self, result: Store) -> None:
        """Note in the journal that the result is complete and is published next."""
        if self.journal is None:
            return
        self._journal_stored(result)
        if isinstance(result, OutputStore) and result.partial is not None:
            self.journal.note_complete(result.partial)

    def _journal_stored(self, result: Store) -> None:
        boxes = self.unjournaled.take()
        if boxes and self.journal is not None:
            result.flush()
            self.journal.note(*boxes)

    def _clean_up(self, result: Store, error: BaseException, *, resumes: bool) -> None:
        """Keep stored blocks and the journal for a resumed run, or delete the journal, then the result."""
        keep = not self.operands_changed and (resumes if self.journal is None else len(self.done) > 0)
        with suppress(StoreError):
            self._journal_stored(result)
        if self.journal is not None:
            self.journal.close() if keep else self.journal.remove()
        abandon(result, keep_partial=keep)
        self.observer.on_error(error)

    def _run_until_done(self, plan: Plan, result: Store) -> RunReport:
        while True:
            try:
                return self._run_once(plan, result)
            except (DeviceMemoryError, Interrupted) as error:
                plan = self._smaller_plan(plan, error)

    def _run_once(self, plan: Plan, result: Store) -> RunReport:
        view = self.job.result_view(result)
        adaptation = self.options.adaptation

        def written(block: OperandBlock) -> None:
            box = as_box(block.region)
            self.done.add(box)
            if self.journal is not None and self.unjournaled.add(box):
                self._journal_stored(result)

        before = Coverage(self.done)
        covered = lru_cache(_MOST_BOXES)(before.covers)

        def skip(step: PlanStep) -> bool:
            return len(before) > 0 and covered(as_box(step.write.region))

        control = RunControl(
            observer=self.observer,
            on_written=written,
            skip=skip,
            may_skip=len(before) > 0,
            keep_going=lambda: self.cannot_shrink or adaptation is None or not adaptation.under_pressure(),
        )
        stores = (*self.job.inputs, view)
        run = self.job.runner(plan, stores, self.device, self.job.kernel, self.options, control)
        # The result in RAM was reserved when it was allocated.
        run_bytes = max(0, plan.peak_bytes.get("ram", 0) - self.job.target.new_bytes)
        with LEDGER.reserve(self.job.operation, "engine", run_bytes):
            self.observer.on_start(plan)
            return run.run()

    def _smaller_plan(self, plan: Plan, error: DeviceMemoryError | Interrupted) -> Plan:
        """Return a plan in half the memory, or on the CPU when the device has not even that.

        Under memory pressure alone, a plan that cannot shrink is returned as it is.
        """
        adaptation = self.options.adaptation
        if adaptation is not None and isinstance(error, DeviceMemoryError):
            adaptation.on_out_of_memory()
        self.device.empty_cache()
        smaller = self._plan_in_half_the_memory(plan)
        if smaller is not None:
            self._note_fallback(f"planned again in half the room on {self.device.name}", error)
            return smaller
        if isinstance(error, Interrupted):
            self.cannot_shrink = True
            return plan
        if self.device.host_memory:
            raise error
        self.device = get_device("cpu")
        self._note_fallback("continued on the CPU", error)
        return self.job.plan(self.device, None, None)

    def _plan_in_half_the_memory(self, plan: Plan) -> Plan | None:
        half = plan.forecast.peak_pool_bytes // 2
        if half < _LEAST_CAPACITY:
            return None
        try:
            return self.job.plan(self.device, half, None)
        except BudgetExceededError:
            return None

    def _note_fallback(self, what: str, error: DeviceMemoryError | BudgetExceededError | Interrupted) -> None:
        why = "memory pressure" if isinstance(error, Interrupted) else str(error)
        self.fallbacks.append(f"{what}: {why}")
        logger.warning("%s %s: %s", self.job.operation, what, why)


class _UnjournaledBoxes:
    """Boxes of a result of ``elements`` elements that are stored and not yet in the journal."""

    def __init__(self, elements: int) -> None:
        self._batch_elements = elements / _MOST_NOTES
        self._boxes = Coverage()
        self._elements = 0
        self._last_noted_s = time.monotonic()

    def add(self, box: Spans) -> bool:
        """Add ``box``; return whether it is time to write the boxes to the journal."""
        self._boxes.add(box)
        self._elements += math.prod(stop - start for start, stop in box)
        return (
            self._elements >= self._batch_elements or time.monotonic() - self._last_noted_s > _NOTED_EVERY_S
        )

    def take(self) -> list[Spans]:
        """Remove and return all boxes."""
        boxes = list(self._boxes)
        self._boxes, self._elements, self._last_noted_s = Coverage(), 0, time.monotonic()
        return boxes


def _wait_for_caller(stores: Iterable[Store]) -> None:
    """Wait for the work on operands and result that this thread has queued on accelerators.

    Reader and writer threads use them on streams of their own.
    """
    tiers = {store.tier for store in stores} - {"ram", "disk"}
    if tiers and "torch" in sys.modules:
        from accelera.devices._internal import wait_for_current_work

        for tier in tiers:
            wait_for_current_work(tier)
