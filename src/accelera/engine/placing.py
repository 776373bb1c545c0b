"""Blocks of a product made on several devices at once; who fails leaves its blocks to the CPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, final

from accelera.engine.events import Progress
from accelera.engine.options import OperationOptions
from accelera.engine.places import HybridDevices
from accelera.engine.report import DeviceRun, RunReport
from accelera.engine.runner import Interrupted, Kernel, PlanRunner, RunControl
from accelera.errors import BudgetExceededError, DeviceMemoryError
from accelera.execution import Kernel as Function
from accelera.logs import logger
from accelera.plan import OperandBlock, Plan, PlanStep
from accelera.stores import Store

if TYPE_CHECKING:
    from accelera.engine.placed import BlockPlans


@final
@dataclass
class _DeviceSide:
    """One device at work."""

    planner: BlockPlans
    limit_bytes: int | None = None
    """Room for blocks, where it turned out to be less than planned."""
    did: DeviceRun = field(default_factory=DeviceRun)
    reports: list[RunReport] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by whoever works on the device: it makes one block at a time."""


@final
class HybridRun:
    """One run of a plan whose steps are blocks, dealt out by a strategy."""

    def __init__(
        self,
        plan: Plan,
        stores: Sequence[Store],
        kernel: Kernel,
        options: OperationOptions,
        control: RunControl,
        places: HybridDevices,
        sides: tuple[BlockPlans, BlockPlans],
    ) -> None:
        self._plan = plan
        self._stores = stores
        self._kernel = kernel
        self._options = options
        self._control = control
        self._places = places
        self._cpu = _DeviceSide(sides[0], plan.spec["limit_bytes"])
        self._accelerator = _DeviceSide(sides[1])
        self._fallbacks: list[str] = []
        self._skipped = 0
        self._stopping = threading.Event()
        self._telling = threading.Lock()

    def run(self) -> RunReport:
        """Make all blocks that are not there; raise what stopped that, with all threads ended."""
        began = time.perf_counter()
        steps = [step for step in self._plan.steps() if not self._control.skip(step)]
        self._skipped = self._plan.forecast.steps - len(steps)
        function: Function[PlanStep, None] = Function(self._on_cpu, releases_gil=True)
        function.gpu_batch(self._on_accelerator)
        try:
            result = self._places.manager.execute(steps, function, self._places.profile(len(steps)))
        finally:
            self._end()
        if result.fallback_occurred:
            self._note_fallback(result.errors)
        return self._report(time.perf_counter() - began)

    def _end(self) -> None:
        """Wait until nobody is at a block any more: after an interruption one may be."""
        self._stopping.set()
        for side in (self._accelerator, self._cpu):
            with side.lock:
                pass

    def _on_cpu(self, step: PlanStep) -> None:
        with self._cpu.lock:
            if not self._control.keep_going():
                raise Interrupted
            self._make(self._cpu, step, self._cpu.planner.plan(step, self._cpu.limit_bytes))

    def _on_accelerator(self, steps: Sequence[PlanStep], device: str) -> list[None]:
        for step in steps:
            self._on_one(step)
        return [None] * len(steps)

    def _on_one(self, step: PlanStep) -> None:
        side = self._accelerator
        with side.lock, self._counting_failures(side):
            plan = side.planner.plan(step, side.limit_bytes)
            while True:
                try:
                    self._make(side, step, plan)
                    return
                except DeviceMemoryError as error:
                    plan = self._in_half_the_room(side, step, plan, error)

    def _in_half_the_room(
        self, side: _DeviceSide, step: PlanStep, plan: Plan, error: DeviceMemoryError
    ) -> Plan:
        """Return a smaller plan for this block and those to come; raises ``error`` when there is none."""
        side.planner.device.empty_cache()
        half = plan.forecast.peak_pool_bytes // 2
        try:
            smaller = side.planner.plan(step, half)
        except BudgetExceededError:
            raise error from None
        side.limit_bytes = half
        name = side.planner.device.name
        self._fallbacks.append(f"blocks on {name} planned again in half the room: {error}")
        logger.warning("matmul: %s", self._fallbacks[-1])
        return smaller

    @contextmanager
    def _counting_failures(self, side: _DeviceSide) -> Iterator[None]:
        try:
            yield
        except Exception:
            side.did = replace(side.did, failed=side.did.failed + 1)
            raise

    def _make(self, side: _DeviceSide, step: PlanStep, plan: Plan) -> None:
        """Multiply one block from the stores into the result's."""
        blocks = (*step.reads, step.write)
        views = [store[block.region] for store, block in zip(self._stores, blocks, strict=True)]
        options = OperationOptions(readers=self._options.readers)
        control = RunControl(keep_going=lambda: not self._stopping.is_set())
        report = PlanRunner(plan, views, side.planner.device, self._kernel, options, control).run()
        self._done(side, step.write, report)

    def _done(self, side: _DeviceSide, block: OperandBlock, report: RunReport) -> None:
        with self._telling:
            self._control.on_written(block)
            did = side.did
            side.did = replace(
                did,
                blocks=did.blocks + 1,
                busy_s=did.busy_s + report.seconds,
                moved_bytes=did.moved_bytes + report.moved_bytes,
                peak_pool_bytes=max(did.peak_pool_bytes, report.peak_pool_bytes),
            )
            side.reports.append(report)
            self._tell()

    def _tell(self) -> None:
        sides = (self._cpu.did, self._accelerator.did)
        made, moved = sum(each.blocks for each in sides), sum(each.moved_bytes for each in sides)
        total = self._plan.forecast.steps
        self._control.observer.on_progress(
            Progress(made + self._skipped, total, made, moved, self._plan.moved_bytes)
        )

    def _note_fallback(self, errors: Sequence[BaseException]) -> None:
        name, failed = self._accelerator.planner.device.name, self._accelerator.did.failed
        self._fallbacks.append(f"the CPU took over from {name} after {failed} failures: {errors[0]}")
        logger.warning("matmul: %s", self._fallbacks[-1])

    def _report(self, seconds: float) -> RunReport:
        sides = {side.planner.device.name: side for side in (self._cpu, self._accelerator)}
        reports = [report for side in sides.values() for report in side.reports]

        def total(figure: str) -> Any:
            return sum(getattr(report, figure) for report in reports)

        return RunReport(
            plan=self._plan,
            device=" + ".join(sides),
            seconds=seconds,
            bytes_read={name: sum(each.bytes_read[name] for each in reports) for name in ("A", "B")},
            bytes_written=total("bytes_written"),
            peak_pool_bytes=self._cpu.did.peak_pool_bytes,
            hits=total("hits"),
            misses=total("misses"),
            evictions=total("evictions"),
            fetched_bytes=total("fetched_bytes"),
            saved_bytes=total("saved_bytes"),
            stall_s=total("stall_s"),
            compute_s=total("compute_s"),
            steps_run=len(reports),
            steps_skipped=self._skipped,
            fallbacks=tuple(self._fallbacks),
            per_device={name: side.did for name, side in sides.items()},
        )
