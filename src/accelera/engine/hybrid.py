"""Products whose blocks CPU and accelerator make together, planned inside one budget of RAM.

    budget = the result, where it is new memory
           + what the accelerator needs of RAM: its staging buffers and threads
           + the CPU's share: its blocks, and all else that a planned product reserves

The accelerator's own memory is used as far as it is free. Each device makes one block at a time, by a plan of
that block in its share; a plan is made once for each shape of block. A device that fails leaves its blocks to
the CPU.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, final

from accelera._logs import logger
from accelera.devices import Device, get_device
from accelera.engine.blocks import (
    USUAL_BLOCKS,
    BlockPlans,
    blocks_of,
    chunk_of,
    cut,
    largest_of,
    steps_of,
    sum_of,
)
from accelera.engine.calibration import cost_model
from accelera.engine.job import PlannedJob, PlanRun
from accelera.engine.matmul import PlannedMatmul
from accelera.engine.options import MemorySplit, OperationOptions
from accelera.engine.report import DeviceRun, Progress, RunReport, totals
from accelera.engine.runner import Interrupted, Kernel, PlanRunner, RunControl
from accelera.errors import (
    ArgumentError,
    BudgetExceededError,
    DeviceError,
    DeviceMemoryError,
)
from accelera.execution import ExecutionStrategy, StrategyManager, ThreadsExecutor, WorkloadProfile
from accelera.execution._internal import Kernel as Function
from accelera.memory import MemoryManager
from accelera.plan import Plan
from accelera.plan._internal import (
    DevicePlacement,
    DevicePlan,
    MatmulProblem,
    OperandBlock,
    Pattern,
    PlanStep,
    Spans,
    require_exact_cover,
)
from accelera.stores import Store
from accelera.units import format_bytes

StrategyChoice = str | ExecutionStrategy | StrategyManager
"""A name, a strategy, or a manager whose strategy and observers are used."""


@final
class AcceleratorExecutor:
    """Executor of an accelerator for ``StrategyManager``: one block after another, in the device's memory."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.name = device.name

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> Sequence[Any]:
        """Run the kernel's batch form for this device and return its results; raises the device's errors."""
        batch = getattr(process_fn, "batch", None)
        if batch is None:
            raise DeviceError(f"[{self.name}] {process_fn!r} has no form for a device; give a Kernel")
        found: Sequence[Any] = batch(tasks, self.name)
        return found

    def is_available(self) -> bool:
        """Return whether the device has memory left."""
        return self.device.available_bytes() > 0

    def memory_available(self) -> int:
        """Return the free bytes of the device's memory."""
        return self.device.available_bytes()

    def empty_cache(self) -> None:
        """Return cached memory to the system."""
        self.device.empty_cache()


@final
class HybridDevices:
    """CPU and accelerator, and the strategy by which they share blocks; measures nothing.

    Parameters
    ----------
    choice
        The strategy. Of a ``StrategyManager`` its strategy and its observers count; its executors do not: the
        devices are the engine's, one block at a time each, which takes all cores or the whole accelerator.
    device
        The accelerator.
    """

    def __init__(self, choice: StrategyChoice, device: Device) -> None:
        strategy = strategy_of(choice)
        observers = choice.observers if isinstance(choice, StrategyManager) else ()
        accelerator = AcceleratorExecutor(device)
        self.device = device
        self.strategy = strategy
        self.manager = StrategyManager(
            ThreadsExecutor(1), accelerator, strategy, observers=observers, learn=False
        )

    def profile(self, blocks: int) -> WorkloadProfile:
        """Return ``blocks`` blocks as a batch of work; each takes what memory the device has."""
        memory = max(1, self.device.available_bytes())
        return WorkloadProfile(blocks, memory_per_task=memory, complexity=1.0, parallelization=1.0)

    @property
    def always(self) -> bool:
        """Whether even what fits in one piece is to be shared."""
        return self.strategy.uses_gpu and self.strategy != ExecutionStrategy.GpuOnly


def strategy_of(choice: StrategyChoice) -> ExecutionStrategy:
    """Return the strategy that ``choice`` names or holds.

    Raises
    ------
    UnknownNameError
        When no strategy is called so.
    ArgumentError
        When it is none of a name, a strategy and a manager.
    """
    if isinstance(choice, StrategyManager):
        return choice.strategy
    if isinstance(choice, ExecutionStrategy):
        return choice
    if not isinstance(choice, str):
        raise ArgumentError(
            f"[engine] strategy={choice!r}: give 'auto', 'cpu', 'gpu', 'hybrid', an ExecutionStrategy or a"
            f" StrategyManager"
        )
    return ExecutionStrategy.named(choice)


def hybrid_devices(choice: StrategyChoice | None, device: Device) -> HybridDevices | None:
    """Return the devices that share products with ``device``; None when ``device`` works alone.

    Logs a warning when the strategy needs an accelerator and ``device`` is the CPU.
    """
    if choice is None:
        return None
    strategy = strategy_of(choice)
    if not device.host_memory:
        return HybridDevices(choice, device)
    if strategy.uses_gpu:
        logger.warning(
            "[engine] strategy %s asks for an accelerator, and the engine computes on %s, which is none:"
            " all runs on the CPU; give device='cuda:0', or strategy='cpu'",
            strategy,
            device.name,
        )
    return None


@final
@dataclass
class _DeviceSide:
    """State of one device during a run."""

    planner: BlockPlans
    limit_bytes: int | None = None
    """Room for blocks, where it turned out to be less than planned."""
    stats: DeviceRun = field(default_factory=DeviceRun)
    reports: list[RunReport] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while the device works: it makes one block at a time."""


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
        self._progress_lock = threading.Lock()

    def run(self) -> RunReport:
        """Compute all missing blocks; raises the first error once all threads have ended."""
        began = time.perf_counter()
        steps = [step for step in self._plan.steps() if not self._control.skip(step)]
        self._skipped = self._plan.forecast.steps - len(steps)
        function: Function[PlanStep, None] = Function(self._on_cpu, releases_gil=True)
        function.gpu_batch(self._on_accelerator)
        try:
            result = self._places.manager.execute(steps, function, self._places.profile(len(steps)))
        finally:
            self._wait_until_idle()
        if result.fallback_occurred:
            self._note_fallback(result.errors)
        return self._report(time.perf_counter() - began)

    def _wait_until_idle(self) -> None:
        """Stop and wait until no device works on a block: after an interruption one may still do so."""
        self._stopping.set()
        for side in (self._accelerator, self._cpu):
            with side.lock:
                pass

    def _on_cpu(self, step: PlanStep) -> None:
        with self._cpu.lock:
            if not self._control.keep_going():
                raise Interrupted
            self._make_block(self._cpu, step, self._cpu.planner.plan(step, self._cpu.limit_bytes))

    def _on_accelerator(self, steps: Sequence[PlanStep], device: str) -> list[None]:
        for step in steps:
            self._make_on_accelerator(step)
        return [None] * len(steps)

    def _make_on_accelerator(self, step: PlanStep) -> None:
        side = self._accelerator
        with side.lock, self._counting_failures(side):
            plan = side.planner.plan(step, side.limit_bytes)
            while True:
                try:
                    self._make_block(side, step, plan)
                    return
                except DeviceMemoryError as error:
                    plan = self._smaller_plan(side, step, plan, error)

    def _smaller_plan(self, side: _DeviceSide, step: PlanStep, plan: Plan, error: DeviceMemoryError) -> Plan:
        """Return a plan in half the memory, and limit later blocks to it; raises ``error`` if none fits."""
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
            side.stats = replace(side.stats, failed=side.stats.failed + 1)
            raise

    def _make_block(self, side: _DeviceSide, step: PlanStep, plan: Plan) -> None:
        """Multiply one block from the stores into the result's."""
        blocks = (*step.reads, step.write)
        views = [store[block.region] for store, block in zip(self._stores, blocks, strict=True)]
        options = OperationOptions(readers=self._options.readers)
        control = RunControl(keep_going=lambda: not self._stopping.is_set())
        report = PlanRunner(plan, views, side.planner.device, self._kernel, options, control).run()
        self._finish_block(side, step.write, report)

    def _finish_block(self, side: _DeviceSide, block: OperandBlock, report: RunReport) -> None:
        with self._progress_lock:
            self._control.on_written(block)
            stats = side.stats
            side.stats = replace(
                stats,
                blocks=stats.blocks + 1,
                busy_s=stats.busy_s + report.seconds,
                moved_bytes=stats.moved_bytes + report.moved_bytes,
                peak_pool_bytes=max(stats.peak_pool_bytes, report.peak_pool_bytes),
            )
            side.reports.append(report)
            self._report_progress()

    def _report_progress(self) -> None:
        sides = (self._cpu.stats, self._accelerator.stats)
        made, moved = sum(each.blocks for each in sides), sum(each.moved_bytes for each in sides)
        total = self._plan.forecast.steps
        self._control.observer.on_progress(
            Progress(made + self._skipped, total, made, moved, self._plan.moved_bytes)
        )

    def _note_fallback(self, errors: Sequence[BaseException]) -> None:
        name, failed = self._accelerator.planner.device.name, self._accelerator.stats.failed
        self._fallbacks.append(f"the CPU took over from {name} after {failed} failures: {errors[0]}")
        logger.warning("matmul: %s", self._fallbacks[-1])

    def _report(self, seconds: float) -> RunReport:
        sides = {side.planner.device.name: side for side in (self._cpu, self._accelerator)}
        reports = [report for side in sides.values() for report in side.reports]

        return RunReport(
            plan=self._plan,
            device=" + ".join(sides),
            seconds=seconds,
            bytes_read={name: sum(each.bytes_read[name] for each in reports) for name in ("A", "B")},
            peak_pool_bytes=self._cpu.stats.peak_pool_bytes,
            **totals(reports),
            steps_run=len(reports),
            steps_skipped=self._skipped,
            fallbacks=tuple(self._fallbacks),
            per_device={name: side.stats for name, side in sides.items()},
        )


@final
@dataclass(frozen=True)
class HybridMatmul:
    """``A @ B``, checked and ready to be shared between the CPU and ``places``."""

    product: PlannedMatmul
    places: HybridDevices

    def job(self) -> PlannedJob:
        """Return what ``carry_out`` runs."""
        return replace(self.product.job(), plan=self.plan, runner=self._run)

    def plan(
        self, device: Device, limit_bytes: int | None = None, spec: Mapping[str, Any] | None = None
    ) -> Plan:
        """Return the plan; ``limit_bytes`` lowers the CPU's room, ``spec`` repeats an earlier one's blocks.

        Raises BudgetExceededError when the budget does not hold both sides.
        """
        cpu, accelerator = self._block_plans()
        problem = self.product.problem(cpu.device)
        blocks = blocks_of(spec)
        if blocks:
            require_exact_cover(blocks, problem.c.shape)
        blocks = blocks or self._blocks(problem)
        steps = tuple(steps_of(problem, blocks, cost_model(cpu.device)))
        on_cpu = self._plan_on_cpu(cpu, steps, limit_bytes)
        on_accelerator = [accelerator.plan(step) for step in steps]
        decision = self.places.manager.explain(self.places.profile(len(steps)))
        count = _accelerator_count(decision.strategy, on_accelerator, on_cpu)
        placement = DevicePlacement(
            str(decision.strategy),
            decision.reasons[0] if decision.reasons else decision.rule,
            (
                _device_plan(cpu, on_cpu[count:], on_cpu),
                _device_plan(accelerator, on_accelerator[:count], on_accelerator),
            ),
        )
        spec = {"blocks": [[list(span) for span in block] for block in blocks], "limit_bytes": limit_bytes}
        taken = (*on_accelerator[:count], *on_cpu[count:])
        return self._plan_of_blocks(problem, steps, largest_of(on_cpu), placement, taken, spec)

    def _plan_on_cpu(
        self, cpu: BlockPlans, steps: tuple[PlanStep, ...], limit_bytes: int | None
    ) -> list[Plan]:
        try:
            return [cpu.plan(step, limit_bytes) for step in steps]
        except BudgetExceededError as error:
            needed = self._budget_bytes + error.needed_bytes - cpu.budget_bytes
            raise BudgetExceededError(
                f"[matmul] a budget of {format_bytes(self._budget_bytes)} for a product on CPU and"
                f" {self.places.device.name} together: {needed} bytes are needed, as the device takes staging"
                f" buffers of RAM and the CPU its own blocks; give them, or leave the strategy out",
                needed_bytes=needed,
                budget_bytes=self._budget_bytes,
            ) from error

    def _plan_of_blocks(
        self,
        problem: MatmulProblem,
        steps: tuple[PlanStep, ...],
        largest: Plan,
        placement: DevicePlacement,
        taken: Sequence[Plan],
        spec: Mapping[str, Any],
    ) -> Plan:
        """Return the plan of the whole product: each step is a block."""
        compulsory = sum(0 if operand.in_place else operand.nbytes for operand in problem.operands)
        return replace(
            largest,
            operands=problem.operands,
            schedule="blocks",
            shape_note=f"C in {len(steps)} blocks of at most {_block_shape(steps)}, each made by one device",
            budget_bytes=self._budget_bytes,
            reserved=self._reserved(largest),
            forecast=sum_of(largest.forecast, taken, placement),
            lower_bound_bytes=compulsory,
            compulsory_bytes=compulsory,
            pattern=Pattern.of(partial(iter, steps)),
            spec=spec,
            alternatives=(),
            placement=placement,
        )

    def _run(
        self,
        plan: Plan,
        stores: Sequence[Store],
        device: Device,
        kernel: Kernel,
        options: OperationOptions,
        control: RunControl,
    ) -> PlanRun:
        if plan.placement is None:
            return PlanRunner(plan, stores, device, kernel, options, control)
        return HybridRun(plan, stores, kernel, options, control, self.places, self._block_plans())

    def _block_plans(self) -> tuple[BlockPlans, BlockPlans]:
        cpu, device = get_device("cpu"), self.places.device
        readers = self.product.options.readers
        usable_bytes = MemoryManager(device).get_usable_memory()
        device_memory = MemorySplit.on(
            device, usable_bytes, self.product.problem(device).operands, readers, 0
        )
        left = self._budget_bytes - self.product.target().new_bytes - _host_bytes(device_memory, device)
        cpu_memory = MemorySplit.on(cpu, left, self.product.problem(cpu).operands, readers, 0)
        return BlockPlans(self.product, cpu, cpu_memory), BlockPlans(self.product, device, device_memory)

    @property
    def _budget_bytes(self) -> int:
        options = self.product.options
        given = options.budget_bytes if options.host_budget_bytes is None else options.host_budget_bytes
        return get_device("cpu").available_bytes() if given is None else given

    def _reserved(self, largest: Plan) -> dict[str, int]:
        device = self.places.device
        problem = self.product.problem(device)
        device_memory = MemorySplit.on(device, 0, problem.operands, self.product.options.readers, 0)
        added = {"result": self.product.target().new_bytes, device.name: _host_bytes(device_memory, device)}
        return {**largest.reserved, **added}

    def _blocks(self, problem: MatmulProblem) -> tuple[Spans, ...]:
        """Return the blocks: the tiles that the user fixed, or a cut chosen here."""
        if self.product.tiles is None:
            return cut(problem, USUAL_BLOCKS, chunk_of(self.product))
        batch = tuple((0, size) for size in problem.batch)
        return tuple((*batch, rows, columns) for rows, columns in self.product.tiles)


def _block_shape(steps: Sequence[PlanStep]) -> str:
    shapes = [step.write.shape for step in steps]
    return " x ".join(str(max(sizes)) for sizes in zip(*shapes, strict=True))


def _device_plan(plans: BlockPlans, taken: Sequence[Plan], possible: Sequence[Plan]) -> DevicePlan:
    """Return one device's part; its peak is that of the largest block, as any block may come to it."""
    most = largest_of(possible)
    seconds = sum(plan.forecast.seconds for plan in taken)
    peak_bytes = most.peak_bytes[most.tier]
    return DevicePlan(plans.device.name, len(taken), seconds, most.tier, peak_bytes, most.schedule)


def _host_bytes(room: MemorySplit, device: Device) -> int:
    return sum(room.reserved.values()) + device.staging_bytes()


def _accelerator_count(
    strategy: ExecutionStrategy, accelerator_plans: Sequence[Plan], cpu_plans: Sequence[Plan]
) -> int:
    """Return how many blocks, from the first on, the accelerator is expected to take.

    Where both take work when free, it takes blocks from the front and the CPU from the end.
    """
    fixed = strategy.gpu_tasks(len(cpu_plans))
    if fixed is not None:
        return fixed
    front, end = 0, len(cpu_plans)
    accelerator_s = cpu_s = 0.0
    while front < end:
        next_accelerator_s = accelerator_plans[front].forecast.seconds
        next_cpu_s = cpu_plans[end - 1].forecast.seconds
        if accelerator_s + next_accelerator_s <= cpu_s + next_cpu_s:
            accelerator_s, front = accelerator_s + next_accelerator_s, front + 1
        else:
            cpu_s, end = cpu_s + next_cpu_s, end - 1
    return front


def hybrid_job(product: PlannedMatmul, places: HybridDevices | None) -> PlannedJob | None:
    """Return the job that shares ``product`` between the devices of ``places``.

    None where there is nothing to share: no second device, or nothing to multiply.
    """
    if places is None or product.problem(places.device).is_empty:
        return None
    return HybridMatmul(product, places).job()
