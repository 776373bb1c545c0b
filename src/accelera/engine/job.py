"""Carrying a plan out, whatever happens on the way.

A job knows its operands, how to plan itself for a given device and room, and which kernel computes
a step. ``carry_out`` runs it: it opens the result, keeps the journal, and when the device runs out
of memory plans again in half the room, and at last on the CPU, for what is not stored yet. The
result appears under its name only when complete.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from accelera.devices import Device, get_device
from accelera.engine.coverage import Coverage, as_box
from accelera.engine.events import Observer, Observers
from accelera.engine.journal import Journal, journal_path, read_journal
from accelera.engine.report import RunReport
from accelera.engine.runner import Interrupted, Kernel, Runner, RunOptions
from accelera.engine.target import Target, abandon, publish
from accelera.errors import BudgetExceededError, DeviceMemoryError
from accelera.plan import Block, Plan, Step
from accelera.stores import Store
from accelera.trace import Recorder
from accelera.units import format_bytes

logger = logging.getLogger("accelera.engine")

_LEAST_CAPACITY = 1 << 20


class Adaptation(Protocol):
    """How a run hears of memory pressure."""

    def under_pressure(self) -> bool:
        """Return whether the next blocks should be smaller."""

    def on_out_of_memory(self) -> None:
        """Take note that the device ran out."""


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

    def run(self) -> tuple[Store, RunReport]:
        began = time.perf_counter()
        self.job.target.check(self.job.operation, list(self.job.inputs))
        plan = self.job.plan(self.device, None, self._former_spec())
        logger.debug("%s", plan.explain())
        result = self.job.target.open(resume=self.options.resume)
        try:
            self._open_journal(plan)
            report = self._run_until_done(plan, result)
            publish(result)
        except BaseException as error:
            self._give_up(result, error)
            raise
        if self.journal is not None:
            self.journal.remove()
        report = replace(report, seconds=time.perf_counter() - began, fallbacks=tuple(self.fallbacks))
        self.observer.on_finish(report)
        return result, report

    def _former_spec(self) -> Mapping[str, Any] | None:
        path = self.job.target.path
        if not self.options.resume or path is None:
            return None
        header, _ = read_journal(journal_path(path))
        spec: Mapping[str, Any] = header["spec"]
        return spec

    def _open_journal(self, plan: Plan) -> None:
        path = self.job.target.path
        prints = {
            name: store.fingerprint() for name, store in zip(self.job.names, self.job.inputs, strict=True)
        }
        if path is None:
            return
        header = {
            "operation": plan.operation,
            "operands": {
                operand.name: [list(operand.shape), str(operand.dtype)] for operand in plan.operands
            },
            "result": [list(self.job.target.shape), str(self.job.target.dtype)],
            "fingerprints": prints,
            "spec": plan.spec,
            **self.options.extra,
        }
        begin = Journal.resume if self.options.resume else Journal.begin
        self.journal = begin(journal_path(path), header)
        self.done = self.journal.done

    def _give_up(self, result: Store, error: BaseException) -> None:
        keep = self.journal is not None and len(self.done) > 0
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

        def skip(step: Step) -> bool:
            return len(self.done) > 0 and self.done.covers(as_box(step.write.region))

        run = RunOptions(
            observer=self.observer,
            recorder=self.options.recorder,
            readers=self.options.readers,
            on_written=written,
            skip=skip,
            keep_going=lambda: adaptation is None or not adaptation.under_pressure(),
        )
        self.observer.on_start(plan)
        return Runner(plan, (*self.job.inputs, view), self.device, self.job.kernel, run).run()

    def _smaller(self, plan: Plan, error: Exception) -> Plan:
        """Return a plan in half the room, or on the CPU when the device has not even that."""
        adaptation = self.options.adaptation
        if adaptation is not None and isinstance(error, DeviceMemoryError):
            adaptation.on_out_of_memory()
        half = plan.forecast.peak_pool_bytes // 2
        self.device.empty_cache()
        try:
            if half < _LEAST_CAPACITY:
                raise error
            smaller = self.job.plan(self.device, half, None)
            self._note(f"planned again in {format_bytes(half)} on {self.device.name}", error)
            return smaller
        except (BudgetExceededError, DeviceMemoryError, Interrupted):
            if self.device.name == "cpu":
                raise error from None
        self.device = get_device("cpu")
        self._note("continued on the CPU", error)
        return self.job.plan(self.device, None, None)

    def _note(self, what: str, error: Exception) -> None:
        why = "memory pressure" if isinstance(error, Interrupted) else str(error)
        self.fallbacks.append(f"{what}: {why}")
        logger.warning("%s %s: %s", self.job.operation, what, why)
