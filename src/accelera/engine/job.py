"""Jobs: a plan carried out, with its journal, smaller plans when memory runs out, and the CPU at last.

A job knows its operands, how to plan itself for a given device and room, and which kernel computes
a step. ``carry_out`` runs it: it opens the result, keeps the journal, and when the device runs out
of memory plans again in half the room, and at last on the CPU, for what is not stored yet. The
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
from accelera.plan import OperandBlock, Plan, PlanStep, SavedPlan, Spans
from accelera.stores import OutputStore, Store, partial_path, remove_leftovers

logger = logging.getLogger("accelera.engine")

_LEAST_CAPACITY = 1 << 20
_MOST_NOTES = 4096
"""Lines that a journal gets, about, however many blocks there are."""
_MOST_BOXES = 1024
"""Answers remembered of what is stored: a tile comes up again in each of its slabs."""
_NOTED_EVERY_S = 30.0
"""Most seconds until what is stored is noted."""


class PlanRun(Protocol):
    """A plan on its way."""

    def run(self) -> RunReport:
        """Carry out all steps that need it; raise what stopped them, with all threads ended."""


@dataclass(frozen=True)
class PlannedJob:
    """One operation on opened operands."""

    operation: str
    inputs: tuple[Store, ...]
    """Operands, as views of the rank that the plan works in."""
    names: tuple[str, ...]
    """How the plan calls them."""
    target: ResultTarget
    result_view: Callable[[Store], Store]
    """Returns the result with the axes that the plan works in."""
    plan: Callable[[Device, int | None, Mapping[str, Any] | None], Plan]
    """Plans for a device, a capacity limit in bytes (None: what the budget leaves) and a former spec."""
    kernel: Kernel
    runner: Callable[[Plan, Sequence[Store], Device, Kernel, OperationOptions, RunControl], PlanRun] = (
        PlanRunner
    )
    """Makes the run of a plan: on the device at hand, unless the plan says other places."""
    header: Mapping[str, Any] = field(default_factory=dict)
    """What the journal's header says besides, by which other tasks on the same operands are told apart."""

    @property
    def named(self) -> dict[str, Store]:
        """The operands by their names in the plan."""
        return dict(zip(self.names, self.inputs, strict=True))


def carry_out(
    job: PlannedJob, device: Device, options: OperationOptions, watch: OperandWatch | None = None
) -> tuple[Store, RunReport]:
    """Run ``job`` on ``device``; return the result's store and what happened.

    ``watch`` is over what must stay as it is until the result is published; by default the operands, from
    now on.
    """
    return _JobAttempt(job, device, options).run(watch)


def left_behind(job: PlannedJob, watch: OperandWatch, *, resume: bool) -> JournalRecord | None:
    """Return what the run to resume has left; None when there was none, or it had only just begun.

    Raises StoreError when it was another run, StoreChangedError when an operand changed since.
    """
    path = job.target.path
    if not resume or path is None or find_journal(journal_path(path)) is None:
        return None
    return check_journal(journal_path(path), _header(job, watch))


def begin_result(target: ResultTarget) -> Store:
    """Begin the result, after forgetting for good what an earlier run has noted of it."""
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
    except (LookupError, TypeError, ValueError) as error:
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
    """Return what makes a job and its operands the same as those of an earlier run."""
    return {
        "operation": job.operation,
        "operands": {name: [list(store.shape), str(store.dtype)] for name, store in job.named.items()},
        "result": [list(job.target.shape), str(job.target.dtype)],
        "fingerprints": watch.prints,
        **job.header,
    }


class _JobAttempt:
    """The state of one job under way: its plan may change, what is stored stays."""

    def __init__(self, job: PlannedJob, device: Device, options: OperationOptions) -> None:
        self.job = job
        self.device = device
        self.options = options
        self.observer = Observers(options.observers)
        self.fallbacks: list[str] = []
        self.done = Coverage()
        self.journal: Journal | None = None
        self.unnoted = _Unnoted(math.prod(job.target.shape))
        self.spoiled = False
        """True once an operand was found overwritten, so that nothing stored is of use."""
        self.settled = False
        """True once the plan cannot shrink, so that pressure is asked about no more."""

    def run(self, watch: OperandWatch | None) -> tuple[Store, RunReport]:
        """Do the job; return the result's store and what happened."""
        began = time.perf_counter()
        target = self.job.target
        target.check(self.job.operation, list(self.job.inputs), resume=self.options.resume)
        watch = watch or target.watch(self.job.named)
        left = left_behind(self.job, watch, resume=self.options.resume)
        plan = self._first_plan(left)
        logger.debug("%s", plan.explain())
        if left is not None and target.path is not None and left.is_published(target.path):
            result, report = self._finished(plan)
        else:
            result, report = self._computed(plan, watch, goes_on=left is not None and self._can_go_on(left))
        report = replace(
            report, seconds=time.perf_counter() - began, fallbacks=(*self.fallbacks, *report.fallbacks)
        )
        self.observer.on_finish(report)
        return result, report

    def _computed(self, plan: Plan, watch: OperandWatch, *, goes_on: bool) -> tuple[Store, RunReport]:
        """Run the plan, as far as it is not done, into a result that is published when it is complete."""
        result = self.job.target.open(resume=True) if goes_on else begin_result(self.job.target)
        try:
            _wait_for_caller([*self.job.inputs, result])
            self._open_journal(plan, watch, goes_on=goes_on)
            report = self._run_until_done(plan, result)
            self._check_operands(watch)
            self._note_all(result)
            publish(result)
        except BaseException as error:
            self._give_up(result, error, goes_on=goes_on)
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

    def _can_go_on(self, left: JournalRecord) -> bool:
        """Return whether something is stored, and where it should be."""
        path = self.job.target.path
        assert path is not None, "only results in files have journals"
        partial = partial_path(path)
        if left.boxes and not partial.exists():
            logger.warning("%s: %s is gone, so all is computed again", self.job.operation, partial)
        return bool(left.boxes) and partial.exists()

    def _first_plan(self, left: JournalRecord | None) -> Plan:
        """Return the interrupted run's plan if there is one and it fits today's budget, else a new one.

        A pinned plan is followed, or refused.
        """
        pinned = self.options.pinned
        if pinned is not None:
            return self._pinned_plan(pinned, left)
        if left is None:
            return self.job.plan(self.device, None, None)
        try:
            return self.job.plan(self.device, None, left.header["spec"])
        except BudgetExceededError as error:
            plan = self.job.plan(self.device, None, None)
            self._note("planned anew, as the interrupted run's plan does not fit", error)
            return plan

    def _pinned_plan(self, pinned: SavedPlan, left: JournalRecord | None) -> Plan:
        plan = follow(self.job, self.device, pinned)
        if left is not None and left.header["spec"] != pinned.spec:
            raise other_plan(self.job.target)
        return plan

    def _open_journal(self, plan: Plan, watch: OperandWatch, *, goes_on: bool) -> None:
        path = self.job.target.path
        if path is not None:
            begin = Journal.resume if goes_on else Journal.begin
            header = _header(self.job, watch)
            self.journal = begin(journal_path(path), {**header, "spec": plan.spec})
            self.done = Coverage(self.journal.done)

    def _check_operands(self, watch: OperandWatch) -> None:
        """Raise StoreChangedError, and keep nothing, when an operand was overwritten meanwhile."""
        try:
            watch.require_unchanged(self.job.operation)
        except StoreChangedError:
            self.spoiled = True
            raise

    def _note_all(self, result: Store) -> None:
        """Note in the journal that the result is complete and gets its name next."""
        if self.journal is None:
            return
        self._note_stored(result)
        if isinstance(result, OutputStore) and result.partial is not None:
            self.journal.note_complete(result.partial)

    def _note_stored(self, result: Store) -> None:
        boxes = self.unnoted.take()
        if boxes and self.journal is not None:
            result.flush()
            self.journal.note(*boxes)

    def _give_up(self, result: Store, error: BaseException, *, goes_on: bool) -> None:
        """Keep what is stored for a run that resumes; without it, the journal goes first."""
        keep = not self.spoiled and (goes_on if self.journal is None else len(self.done) > 0)
        with suppress(StoreError):
            self._note_stored(result)
        if self.journal is not None:
            self.journal.close() if keep else self.journal.remove()
        abandon(result, keep_partial=keep)
        self.observer.on_error(error)

    def _run_until_done(self, plan: Plan, result: Store) -> RunReport:
        while True:
            try:
                return self._run_once(plan, result)
            except (DeviceMemoryError, Interrupted) as error:
                plan = self._smaller(plan, error)

    def _run_once(self, plan: Plan, result: Store) -> RunReport:
        view = self.job.result_view(result)
        adaptation = self.options.adaptation

        def written(block: OperandBlock) -> None:
            box = as_box(block.region)
            self.done.add(box)
            if self.journal is not None and self.unnoted.add(box):
                self._note_stored(result)

        before = Coverage(self.done)
        covered = lru_cache(_MOST_BOXES)(before.covers)

        def skip(step: PlanStep) -> bool:
            return len(before) > 0 and covered(as_box(step.write.region))

        control = RunControl(
            observer=self.observer,
            on_written=written,
            skip=skip,
            may_skip=len(before) > 0,
            keep_going=lambda: self.settled or adaptation is None or not adaptation.under_pressure(),
        )
        self.observer.on_start(plan)
        stores = (*self.job.inputs, view)
        return self.job.runner(plan, stores, self.device, self.job.kernel, self.options, control).run()

    def _smaller(self, plan: Plan, error: DeviceMemoryError | Interrupted) -> Plan:
        """Return a plan in half the room, or on the CPU when the device has not even that.

        Under mere pressure a plan that cannot shrink goes on as it is.
        """
        adaptation = self.options.adaptation
        if adaptation is not None and isinstance(error, DeviceMemoryError):
            adaptation.on_out_of_memory()
        self.device.empty_cache()
        smaller = self._in_half_the_room(plan)
        if smaller is not None:
            self._note(f"planned again in half the room on {self.device.name}", error)
            return smaller
        if isinstance(error, Interrupted):
            self.settled = True
            return plan
        if self.device.host_memory:
            raise error
        self.device = get_device("cpu")
        self._note("continued on the CPU", error)
        return self.job.plan(self.device, None, None)

    def _in_half_the_room(self, plan: Plan) -> Plan | None:
        half = plan.forecast.peak_pool_bytes // 2
        if half < _LEAST_CAPACITY:
            return None
        try:
            return self.job.plan(self.device, half, None)
        except BudgetExceededError:
            return None

    def _note(self, what: str, error: DeviceMemoryError | BudgetExceededError | Interrupted) -> None:
        why = "memory pressure" if isinstance(error, Interrupted) else str(error)
        self.fallbacks.append(f"{what}: {why}")
        logger.warning("%s %s: %s", self.job.operation, what, why)


class _Unnoted:
    """Boxes that are stored and not in the journal yet, of a result of ``elements``."""

    def __init__(self, elements: int) -> None:
        self._enough = elements / _MOST_NOTES
        self._boxes = Coverage()
        self._elements = 0
        self._since_s = time.monotonic()

    def add(self, box: Spans) -> bool:
        """Take in ``box``; return whether it is time to note what there is."""
        self._boxes.add(box)
        self._elements += math.prod(stop - start for start, stop in box)
        return self._elements >= self._enough or time.monotonic() - self._since_s > _NOTED_EVERY_S

    def take(self) -> list[Spans]:
        """Return what there is, to be noted now."""
        boxes = list(self._boxes)
        self._boxes, self._elements, self._since_s = Coverage(), 0, time.monotonic()
        return boxes


def _wait_for_caller(stores: Iterable[Store]) -> None:
    """Wait for what this thread has its accelerators do with operands and the result.

    Other threads read and write them here, on streams of their own.
    """
    tiers = {store.tier for store in stores} - {"ram", "disk"}
    if tiers and "torch" in sys.modules:
        from accelera.devices import wait_for_current_work

        for tier in tiers:
            wait_for_current_work(tier)
