"""Carrying a plan out, whatever happens on the way.

A job knows its operands, how to plan itself for a given device and room, and which kernel computes
a step. ``carry_out`` runs it: it opens the result, keeps the journal, and when the device runs out
of memory plans again in half the room, and at last on the CPU, for what is not stored yet. The
result appears under its name only when complete.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from accelera.devices import Device, get_device
from accelera.engine.coverage import Coverage, as_box
from accelera.engine.events import Observer, Observers
from accelera.engine.fingerprints import fingerprint
from accelera.engine.journal import Journal, check_journal, forget_journal, journal_path
from accelera.engine.report import RunReport
from accelera.engine.runner import Interrupted, Kernel, Runner, RunOptions
from accelera.engine.target import Target, abandon, publish
from accelera.errors import BudgetExceededError, DeviceMemoryError
from accelera.plan import Block, Plan, Step
from accelera.stores import Store
from accelera.trace import Recorder

logger = logging.getLogger("accelera.engine")

_LEAST_CAPACITY = 1 << 20


class Adaptation(Protocol):
    """How a run hears of memory pressure."""

    def under_pressure(self) -> bool:
        """Return whether the next blocks should be smaller."""

    def on_out_of_memory(self) -> None:
        """Take note that the device ran out."""


class Run(Protocol):
    """A plan on its way."""

    def run(self) -> RunReport:
        """Carry out all steps that need it; raise what stopped them, with all threads ended."""


@dataclass(frozen=True)
class Job:
    """One operation on opened operands."""

    operation: str
    inputs: tuple[Store, ...]
    """Operands, as views of the rank that the plan works in."""
    names: tuple[str, ...]
    """How the plan calls them."""
    target: Target
    result_view: Callable[[Store], Store]
    """Returns the result with the axes that the plan works in."""
    plan: Callable[[Device, int | None, Mapping[str, Any] | None], Plan]
    """Plans for a device, a capacity limit in bytes (None: what the budget leaves) and a former spec."""
    kernel: Kernel
    runner: Callable[[Plan, Sequence[Store], Device, Kernel, RunOptions], Run] = Runner
    """Makes the run of a plan: on the device at hand, unless the plan says other places."""


@dataclass(frozen=True)
class JobOptions:
    """How a job is to be run."""

    observers: Iterable[Observer] = ()
    recorder: Recorder | None = None
    resume: bool = False
    readers: int = 2
    adaptation: Adaptation | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What else the journal's header shall say."""


def carry_out(job: Job, device: Device, options: JobOptions) -> tuple[Store, RunReport]:
    """Run ``job`` on ``device``; return the result's store and what happened."""
    return _Attempt(job, device, options).run()


class _Attempt:
    """The state of one job under way: its plan may change, what is stored stays."""

    def __init__(self, job: Job, device: Device, options: JobOptions) -> None:
        self.job = job
        self.device = device
        self.options = options
        self.observer = Observers(options.observers)
        self.fallbacks: list[str] = []
        self.done = Coverage()
        self.journal: Journal | None = None
        self.settled = False
        """True once the plan cannot shrink, so that pressure is asked about no more."""

    def run(self) -> tuple[Store, RunReport]:
        began = time.perf_counter()
        self.job.target.check(self.job.operation, list(self.job.inputs), resume=self.options.resume)
        header = self._header()
        plan = self._first_plan(header)
        logger.debug("%s", plan.explain())
        result = self._open()
        _wait_for_caller([*self.job.inputs, result])
        try:
            self._open_journal({**header, "spec": plan.spec})
            report = self._run_until_done(plan, result)
            publish(result)
        except BaseException as error:
            self._give_up(result, error)
            raise
        if self.journal is not None:
            self.journal.remove()
        report = replace(
            report, seconds=time.perf_counter() - began, fallbacks=(*self.fallbacks, *report.fallbacks)
        )
        self.observer.on_finish(report)
        return result, report

    def _header(self) -> dict[str, Any]:
        """Return what makes this job and its operands the same as those of an earlier run."""
        if self.job.target.path is None:
            return {}
        named = list(zip(self.job.names, self.job.inputs, strict=True))
        return {
            "operation": self.job.operation,
            "operands": {name: [list(store.shape), str(store.dtype)] for name, store in named},
            "result": [list(self.job.target.shape), str(self.job.target.dtype)],
            "fingerprints": {name: fingerprint(store) for name, store in named},
            **self.options.extra,
        }

    def _first_plan(self, header: Mapping[str, Any]) -> Plan:
        """Return the interrupted run's plan if there is one and it fits today's budget, else a new one."""
        if self.options.resume and self.job.target.path is not None:
            old = check_journal(journal_path(self.job.target.path), header)
            try:
                return self.job.plan(self.device, None, old["spec"])
            except BudgetExceededError:
                logger.debug("the interrupted run's plan needs more than this budget: planning again")
        return self.job.plan(self.device, None, None)

    def _open(self) -> Store:
        path = self.job.target.path
        if path is not None and not self.options.resume:
            forget_journal(journal_path(path))
        return self.job.target.open(resume=self.options.resume)

    def _open_journal(self, header: Mapping[str, Any]) -> None:
        path = self.job.target.path
        if path is not None:
            begin = Journal.resume if self.options.resume else Journal.begin
            self.journal = begin(journal_path(path), header)
            self.done = self.journal.done

    def _give_up(self, result: Store, error: BaseException) -> None:
        keep = self.options.resume or (self.journal is not None and len(self.done) > 0)
        abandon(result, keep_partial=keep)
        if self.journal is not None:
            self.journal.close() if keep else self.journal.remove()
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

        def written(block: Block) -> None:
            box = as_box(block.region)
            if self.journal is not None:
                result.flush()
                self.journal.note(box)
            self.done.add(box)

        before, answers = Coverage(self.done), dict[int, bool]()

        def skip(step: Step) -> bool:
            block = step.write
            if len(before) and block.id not in answers:
                answers[block.id] = before.covers(as_box(block.region))
            return answers.get(block.id, False)

        run = RunOptions(
            observer=self.observer,
            recorder=self.options.recorder,
            readers=self.options.readers,
            on_written=written,
            skip=skip,
            keep_going=lambda: self.settled or adaptation is None or not adaptation.under_pressure(),
        )
        self.observer.on_start(plan)
        return self.job.runner(plan, (*self.job.inputs, view), self.device, self.job.kernel, run).run()

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

    def _note(self, what: str, error: DeviceMemoryError | Interrupted) -> None:
        why = "memory pressure" if isinstance(error, Interrupted) else str(error)
        self.fallbacks.append(f"{what}: {why}")
        logger.warning("%s %s: %s", self.job.operation, what, why)


def _wait_for_caller(stores: Iterable[Store]) -> None:
    """Wait for what this thread has its accelerators do with operands and the result.

    Other threads read and write them here, on streams of their own.
    """
    tiers = {store.tier for store in stores} - {"ram", "disk"}
    if tiers and "torch" in sys.modules:
        from accelera.devices import wait_for_current_work

        for tier in tiers:
            wait_for_current_work(tier)
